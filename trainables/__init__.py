"""Trainables to tune out of the box: each one file, read from top to bottom, to be copied freely."""
