"""The Ray cluster that jobs run on: a local head that is kept alive, or an existing cluster.

Nothing here imports Ray. The service talks to a cluster through its dashboard's HTTP interface, and starts a local
one as a process.
"""
