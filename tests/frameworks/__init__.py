"""Trainables of other frameworks, under a real supervisor, fork server and children."""
