"""Measurements that support the project's claims. Each compares tuner with a peer in the same run. README.md lists the figures and the commands."""
