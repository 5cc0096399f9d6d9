"""Recorded learning curves: load them from a file, sample their rows, and train by looking up values."""
