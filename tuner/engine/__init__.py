"""The engine runs jobs: it carries out the decisions of the core with workers, and records the results."""
