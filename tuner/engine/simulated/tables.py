"""Recorded learning curves: read from a file, searched row by row, trained by looking up."""

from tuner.engine.simulated.recorded import RecordedTable, RowsSampler, TableTraining
from tuner.engine.simulated.table_file import TableError, load_table

__all__ = ["RecordedTable", "RowsSampler", "TableError", "TableTraining", "load_table"]
