"""Example trainables, which can be tuned without changes. Each is a single file that can be read from top to bottom and copied freely."""
