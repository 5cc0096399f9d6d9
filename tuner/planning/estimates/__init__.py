"""Estimates for a described run on each machine of the catalogue, and related questions. Pure functions that cite their formulas."""
