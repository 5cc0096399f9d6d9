"""Use cases behind REST, the command line and the client, and the background loops that keep jobs running."""
