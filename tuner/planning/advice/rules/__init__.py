"""The rules: each a module with one `finding`, and its thresholds as constants."""
