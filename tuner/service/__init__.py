"""Use cases: what REST, and with it the command line and the client, can ask for; and the controller that keeps jobs running."""
