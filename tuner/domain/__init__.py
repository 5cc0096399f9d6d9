"""The domain: immutable values and the rules for them. It imports nothing outside itself but the standard library."""
