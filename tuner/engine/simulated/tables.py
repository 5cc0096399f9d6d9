"""Recorded learning curves: load them from a file, sample their rows, and train by looking up values."""

from tuner.engine.simulated.recorded import RecordedTable, RowsSampler, TableTraining
from tuner.engine.simulated.table_file import TableError, load_table

__all__ = ["RecordedTable", "RowsSampler", "TableError", "TableTraining", "load_table"]
