"""One module a group of paths."""
