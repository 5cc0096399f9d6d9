"""Measurements of claims against a peer in the same run. README.md keeps the figures and the commands."""
