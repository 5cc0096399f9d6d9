"""`python -m benchmarks.journal`: what a driver spends to record a report, with simulated machines and a real database (SQLite).

Prints the SQL statements and the milliseconds of processor time for each report. The statements for attempts and the simulator's own time
are included.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import event, func, select

from tests import fakes
from tuner.database.prepared import PreparedStatement
from tuner.database.tables import attempts, reports
from tuner.domain.space import Config


class ShortSteps(fakes.Curves):
    def step_ns(self, config: Config, step: int) -> int:
        return 100_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument(
        "--statements", type=int, default=0, help="also print this many of the most frequent statements"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        service = fakes.service_in(Path(folder))
        job = fakes.submit(
            fakes.client_of(service),
            budget={"usd": 5, "trials": args.trials},
            fidelity={"unit": "epoch", "min": 1, "max": args.steps, "reduction_factor": 3},
            resources={"max_concurrent_trials": 2},
        )
        statements: Counter[str] = Counter()
        prepared: Counter[PreparedStatement] = Counter()
        execute = PreparedStatement._execute

        def count(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            statements[" ".join(statement.split())] += 1

        def count_prepared(self: PreparedStatement, *arguments: Any, **options: Any) -> Any:
            prepared[self] += 1
            return execute(self, *arguments, **options)

        event.listen(service.database.engine, "before_cursor_execute", count)
        began = time.process_time()
        with patch.object(PreparedStatement, "_execute", count_prepared):
            fakes.simulate(service, job, training=ShortSteps())
        took_s = time.process_time() - began
        event.remove(service.database.engine, "before_cursor_execute", count)
        statements.update({" ".join(str(each).split()): times for each, times in prepared.items()})
        with service.database.read() as db:
            reported, begun = (
                db.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (reports, attempts)
            )
        service.database.dispose()
    print(f"{reported} reports of {begun} attempts")
    print(f"{statements.total() / reported:.1f} statements a report")
    print(f"{1000 * took_s / reported:.2f} ms of processor time a report")
    for statement, times in statements.most_common(args.statements):
        print(f"{times / reported:6.2f} {statement[:120]}")


if __name__ == "__main__":
    main()
