"""Where decisions meet the world."""
