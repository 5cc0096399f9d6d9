"""Price catalogue, plans, estimates and advice: what work would cost or would have cost. Pure functions."""
