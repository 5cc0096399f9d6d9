"""The rules of advice. Each is a module with a function `finding`, and its thresholds as constants."""
