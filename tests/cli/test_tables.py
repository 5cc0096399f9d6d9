"""Tables can be pasted into reports and spreadsheets, and are complete without a terminal."""

import csv
import io
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Group
from rich.text import Text
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tuner.cli import render, tables
from tuner.cli.escape import plural, span, usd
from tuner.cli.tables import Style
from tuner.schemas.answers import Trainable, Trainables

CELL = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=30)
ROWS = st.integers(1, 4).flatmap(
    lambda wide: st.lists(st.lists(CELL, min_size=wide, max_size=wide), min_size=1, max_size=5)
)


def made(rows: list[list[str]]) -> Group:
    table = tables.plain(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    return Group(Text("before"), table, Text("after"))


@given(ROWS)
def test_csv_holds_every_cell_and_no_other_text(rows: list[list[str]]) -> None:
    csv_rows = list(csv.reader(io.StringIO(tables.text(made(rows), Style.CSV))))
    head, *rest = rows
    assert csv_rows[0] == head
    assert len(csv_rows) == len(rows)
    for printed_row, row in zip(csv_rows[1:], rest, strict=True):
        for printed, cell in zip(printed_row, row, strict=True):
            plain = tables.AMOUNT.sub(r"\1\2", cell) if tables.AMOUNT.fullmatch(cell) else cell
            assert (printed or "-") in (plain or "-", f"'{plain}")  # with a quote if it could be a formula


@given(ROWS)
def test_markdown_has_one_line_per_row_with_all_cells(rows: list[list[str]]) -> None:
    lines = tables.text(made(rows), Style.MARKDOWN).splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == len(rows) + 1
    assert {line.replace("\\\\", "").replace("\\|", "").count("|") for line in table} == {len(rows[0]) + 1}


@given(ROWS)
@example([["\U0001f3fb"]])  # an emoji modifier, which has no width of its own
def test_plain_text_holds_every_cell_untruncated(rows: list[list[str]]) -> None:
    shown = tables.text(made(rows), Style.TABLE)
    for row in rows:
        for cell in row:
            assert cell in shown


def test_numbers_are_right_aligned_and_text_is_left_aligned() -> None:
    shown = tables.text(made([["what", "cost"], ["a", "$1.00"], ["b", "$10.50"], ["c", "-"]]), Style.TABLE)
    assert shown == "before\nwhat    cost\na      $1.00\nb     $10.50\nc          -\nafter\n"
    marked = tables.text(made([["what", "cost"], ["a", "$1.00"]]), Style.MARKDOWN)
    assert "| --- | ---: |" in marked


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("-0.5", "-0.5"),
        ("+3", "+3"),
        ("a=b", "a=b"),
    ],
)
def test_text_that_a_spreadsheet_would_run_is_escaped_in_csv(cell: str, printed: str) -> None:
    assert tables.text(made([["name"], [cell]]), Style.CSV) == f"name\n{printed}\n"


def test_bill_is_printed_as_markdown_and_csv(tuner: Tuner, rest: TestClient, done: str) -> None:
    bill = rest.get(f"/v1/jobs/{done}/bill").json()
    marked = tuner("bill", done, "--format", "markdown").stdout
    assert f"| total | {usd(bill['total_usd'])} |  |" in marked
    rows = list(csv.reader(io.StringIO(tuner("bill", done, "--format", "csv").stdout)))
    first = next(row for row in rows if row and row[0] == bill["trials"][0]["trial"])
    assert float(first[-1]) == bill["trials"][0]["total_usd"]
    assert ["total", f"{bill['total_usd']}", ""] in rows


def test_no_cell_of_csv_begins_with_a_dollar_sign(
    tuner: Tuner, rest: TestClient, done: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body()))
    for words in (
        *(["bill", done], ["trials", done], ["jobs"], ["ledger", done], ["prices"], ["spend"], ["audit"]),
        ["pareto", done],
        ["pareto", done, "--instance-type", "g4dn.xlarge"],
        ["plan", str(file)],
    ):
        printed = tuner(*words, "--format", "csv")
        assert printed.exit_code == 0, printed.output
        rows = list(csv.reader(io.StringIO(printed.stdout)))
        assert [cell for row in rows for cell in row if re.match(r"-?\$\d", cell)] == [], words
    pareto = rest.get(f"/v1/jobs/{done}/pareto", params={"instance_type": "g4dn.xlarge"}).json()["items"][0]
    priced = tuner("pareto", done, "--instance-type", "g4dn.xlarge", "--format", "csv").stdout
    head, first, *_ = csv.reader(io.StringIO(priced))
    assert head[:3] == ["cost to train", "from", "to"]
    names = ("cost_to_train_usd", "cost_low_usd", "cost_high_usd")
    assert [float(cell) for cell in first[:3]] == [pareto[name] for name in names]
    plan = rest.post("/v1/plans", json=fakes.body()).json()
    planned = csv.reader(io.StringIO(tuner("plan", str(file), "--format", "csv").stdout))
    (dollars,) = [row for row in planned if row[:1] == ["dollars"]]
    assert [float(cell) for cell in dollars[1:]] == [
        plan["usd"][name] for name in ("expected", "low", "high")
    ]


def test_table_lines_are_not_truncated_without_a_terminal(tuner: Tuner, rest: TestClient, done: str) -> None:
    for words in (["trials", done], ["bill", done], ["jobs"], ["report", done], ["best", done], ["spend"]):
        shown = tuner(*words).stdout
        assert "…" not in shown
        assert all(line == line.rstrip() for line in shown.splitlines())
    lines = [line for line in tuner("trials", done).stdout.splitlines() if line.startswith("trial")]
    assert len(lines) == 1 + len(rest.get(f"/v1/jobs/{done}/trials", params={"limit": 500}).json()["items"])


def test_json_and_format_options_are_mutually_exclusive(tuner: Tuner, done: str) -> None:
    assert tuner("bill", done, "--format", "csv", "--json").exit_code == 2


def test_plurals_and_durations_are_formatted() -> None:
    assert [plural(n, "preemption") for n in (0, 1, 2000)] == [
        "0 preemptions",
        "1 preemption",
        "2,000 preemptions",
    ]
    assert plural(1, "try", "tries") == "1 try"
    assert [span(s) for s in (0, 59.9, 60, 3599.7, 3600, 172_800)] == [
        "0 s", "1:00 min", "1:00 min", "1:00 h", "1:00 h", "2.0 days",
    ]  # fmt: skip


@given(st.floats(-1e9, 1e9))
def test_amounts_have_cents_and_a_sign_before_the_dollar(amount: float) -> None:
    shown = usd(round(amount, 6))
    assert shown.lstrip("-").startswith("$")
    assert len(shown.partition(".")[2]) in range(2, 7)


@pytest.mark.parametrize("style", Style)
def test_control_characters_are_removed_from_cells(style: Style) -> None:
    table = tables.plain("reason")
    table.add_row("lost\x1b]0;title\x07\x1b[2J\u202e")
    assert "lost]0;title[2J" in tables.text(table, style)
    shown = tables.text(table, style)
    assert not [char for char in shown if char != "\n" and not char.isprintable()]


def test_numbers_are_not_truncated_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = tables.plain(*(f"kind {i}" for i in range(8)))
    figures = [f"$0.00000{i}" for i in range(1, 9)]
    table.add_row(*figures)
    tables.show(table)
    assert capsys.readouterr().out.splitlines()[1].split() == figures


def test_list_of_trainables_says_which_of_them_cannot_be_tuned() -> None:
    known = Trainable(trainable="own:train", doc="", search_space=None, objective=None, error=None)
    items = [known, known.model_copy(update={"trainable": "own:other", "error": "own:other is async"})]
    shown = tables.text(render.trainables(Trainables(items=items)), Style.TABLE).splitlines()
    assert [line.split()[0] for line in shown[1:3]] == ["own:train", "own:other"]
    assert shown[3:] == ["Cannot be tuned: own:other is async"]
