"""Routes of the REST API, one module for each group of paths."""
