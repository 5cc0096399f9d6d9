"""Report the results as Markdown: regret for money, money for regret, the tables on which a method is worse than plain ASHA, and the worst runs."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.search import statistics
from benchmarks.search.methods import Method
from benchmarks.search.runner import Result
from benchmarks.search.statistics import Cell, Estimate
from benchmarks.search.tables import Array, family

RANDOM, FLOOR = "random", "asha"
OURS, STRONGEST = "ours", ("asha_kde", "bohb")
MARGIN = 0.03  # a regret that is larger by no more than this counts as equal in the report of the worst runs
Cells = Mapping[Cell, Sequence[Result]]


def report(
    results: Sequence[Result], budgets: Sequence[float], methods: Mapping[str, Method]
) -> Iterator[str]:
    cells = statistics.by_cell(results)
    for workers in sorted({workers for _, _, workers in cells}):
        for group in sorted({family(table) for _, table, _ in cells}):
            here = {key: runs for key, runs in cells.items() if key[2] == workers and family(key[1]) == group}
            if here:
                yield f"\n## {group}, {workers} workers\n"
                yield from _regrets(here, budgets, methods)
        here = {key: runs for key, runs in cells.items() if key[2] == workers}
        yield from _floor(here, budgets, methods)
        yield from _tail(here, budgets)


def _tables_of(cells: Cells, method: str) -> dict[str, Sequence[Result]]:
    return {table: runs for (name, table, _), runs in cells.items() if name == method}


def _regrets(cells: Cells, budgets: Sequence[float], methods: Mapping[str, Method]) -> Iterator[str]:
    """Yield a table of mean normalised regrets and ÷N with 95 % intervals. A cell is empty until all tables have a value."""
    tables = {table for _, table, _ in cells}
    yield f"Mean normalised regret of {len(tables)} tables, with 95 % bootstrap intervals over seeds.\n"
    yield "| method | seeds | " + " | ".join(f"@{budget:g}" for budget in budgets) + " | ÷N |"
    yield "| --- | --- | " + "--- | " * (len(budgets) + 1)
    for name, method in methods.items():
        runs = _tables_of(cells, name)
        if not runs:
            continue
        columns = [
            _mean([statistics.regrets(of, budget) for of in runs.values()], len(tables)) for budget in budgets
        ]
        saved = _saving(cells, name, max(budgets))
        yield f"| {method.title} | {_seeds(runs)} | {' | '.join(columns)} | {saved} |"


def _seeds(runs: Mapping[str, Sequence[Result]]) -> str:
    counts = [len({run.task.seed for run in of}) for of in runs.values()]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"


def _mean(of_tables: Sequence[Array], tables: int) -> str:
    if len(of_tables) < tables or any(len(values) == 0 for values in of_tables):
        return ""
    return _text(statistics.mean_over_tables(of_tables))


def _text(estimate: Estimate, digits: int = 3) -> str:
    low, high = (f"{value:.{digits}f}" for value in (estimate.low, estimate.high))
    return f"{estimate.mean:.{digits}f} [{low}, {high}]"


def _saving(cells: Cells, method: str, budget: float) -> str:
    runs, random = _tables_of(cells, method), _tables_of(cells, RANDOM)
    if set(runs) != set(random):
        return ""
    saved = statistics.saving(runs, random, budget)
    if saved.unreached and any(run.task.budget < budget for of in runs.values() for run in of):
        return ""
    missed = f", {saved.unreached} not reached" if saved.unreached else ""
    return _text(saved.factor, 1) + missed


def _floor(cells: Cells, budgets: Sequence[float], methods: Mapping[str, Method]) -> Iterator[str]:
    """Yield the differences to promotion ASHA with random proposals, over all tables and budgets."""
    floor = _tables_of(cells, FLOOR)
    if not floor:
        return
    yield "\n### Against promotion ASHA with random proposals\n"
    yield "Worse: the 95 % interval of the difference is above 0. By chance alone one cell in 40 is.\n"
    yield "| method | cells | better | worse | worse where (table @budget: difference) |"
    yield "| --- | --- | --- | --- | --- |"
    for name, method in methods.items():
        differences = list(_differences(_tables_of(cells, name), floor, budgets))
        if differences and name != FLOOR:
            worse = [f"{where}: {_text(d)}" for where, d in differences if d.low > 0]
            better = sum(d.high < 0 for _, d in differences)
            listed = "; ".join(worse) if method.ours or len(worse) <= 3 else f"{worse[0]}; …"
            yield f"| {method.title} | {len(differences)} | {better} | {len(worse)} | {listed} |"


def _differences(
    runs: Mapping[str, Sequence[Result]], floor: Mapping[str, Sequence[Result]], budgets: Sequence[float]
) -> Iterator[tuple[str, Estimate]]:
    for table in sorted(set(runs) & set(floor)):
        for budget in budgets:
            ours, theirs = statistics.regrets(runs[table], budget), statistics.regrets(floor[table], budget)
            if len(ours) and len(theirs):
                yield f"{table} @{budget:g}", statistics.difference(ours, theirs)


def _tail(cells: Cells, budgets: Sequence[float]) -> Iterator[str]:
    """Yield the tables on which ours is worse than the better of ASHA with KDE and BOHB, and the worst single run."""
    ours, *others = (_tables_of(cells, method) for method in (OURS, *STRONGEST))
    tables = sorted(set(ours).intersection(*others))
    rows = [row for budget in budgets for row in _tail_row(ours, others, tables, budget)]
    if not rows:
        return
    yield "\n### Ours against the better of promotion ASHA + KDE and BOHB, on each table\n"
    yield f"Worse: by more than {MARGIN}. Certainly worse: the whole 95 % interval of the difference is above {MARGIN}.\n"
    yield "| budget | tables | certainly worse | worse | the worst run of ours, of the others |"
    yield "| --- | --- | --- | --- | --- |"
    yield from rows


def _tail_row(
    ours: Mapping[str, Sequence[Result]],
    others: Sequence[Mapping[str, Sequence[Result]]],
    tables: Sequence[str],
    budget: float,
) -> Iterator[str]:
    """Yield the row of a budget. Yield nothing if no table has runs of all methods with this budget."""
    differences: dict[str, Estimate] = {}
    worst_of_ours, worst_of_others = [], []
    for table in tables:
        mine, *theirs = (statistics.regrets(of[table], budget) for of in (ours, *others))
        if all(map(len, (mine, *theirs))):
            better = min(theirs, key=lambda values: float(values.mean()))
            differences[table] = statistics.difference(mine, better)
            worst_of_ours.append(mine.max())
            worst_of_others.append(max(values.max() for values in theirs))
    if differences:
        certain = sum(d.low > MARGIN for d in differences.values())
        worse = [f"{table}: {_text(d)}" for table, d in differences.items() if d.mean > MARGIN]
        yield (
            f"| @{budget:g} | {len(differences)} | {certain} | {'; '.join(worse) or 'none'} "
            f"| {max(worst_of_ours):.2f}, {max(worst_of_others):.2f} |"
        )
