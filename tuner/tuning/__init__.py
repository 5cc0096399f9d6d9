"""What to do next: pure. No clock, no network, no global random generator."""
