"""The command line.

Commands use the client, so they show what REST returns. Some start or use parts of the service itself, such as `serve` and `demo`.
"""
