"""What things are: frozen values and their rules. The standard library alone."""
