"""The command line.

Most commands send requests to a running service and show its answers. A few, such as `serve` and `demo`, start or use the service's own
code.
"""
