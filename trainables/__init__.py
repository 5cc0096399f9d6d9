"""Example trainables that can be tuned as they are. Each is a single file that can be read from top to bottom and copied freely."""
