"""The domain: frozen values and the rules on them. It needs only the standard library."""
