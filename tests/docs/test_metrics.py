"""docs/metrics.md has every metric that there is, as the code says it."""

from pathlib import Path

from tuner.api.families import table

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def test_the_table_is_that_of_the_code() -> None:
    """`python -m tuner.api.families` prints it."""
    assert table() in PAGE.read_text()
