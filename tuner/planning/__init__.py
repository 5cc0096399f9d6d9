"""The price catalogue, plans, estimates and advice: what a job will cost, and how it could have cost less. Pure functions."""
