"""Run a deployment with its customers under the faults of a seed, and report the outcome."""

import heapq
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.chaos import checker, figures, reading
from tests.chaos.customers import FINAL, Customers
from tests.chaos.deployment import Deployment
from tests.chaos.history import History
from tests.chaos.parts import until
from tests.chaos.plan import Fault, Strike, strikes
from tests.chaos.strikes import strike

BOUND_S = 240.0
GONE_S = 40.0
# A strike without a victim is retried after AGAIN_S seconds, up to TRIES times, because drivers and workers
# come and go.
AGAIN_S, TRIES = 4.0, 4


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of a run. `at_once` jobs run at a time, each with a budget in the range `usd`."""

    seed: int
    seconds: float
    faults: Sequence[Fault]
    with_postgres: bool = True
    services: int = 1
    at_once: int = 2
    every_s: float = 7.0
    usd: tuple[float, float] = (0.0006, 0.0014)


@dataclass
class Outcome:
    """The outcome of a run. `lines` holds its figures as lines of text."""

    broken: list[checker.Broken] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    process_faults: int = 0
    jobs: int = 0


def run(settings: Run, history: History, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run the deployment under faults and return the outcome, which lists what is broken. Errors of the run
    itself are raised.
    """
    plan = strikes(settings.seed, settings.seconds, settings.faults, every_s=settings.every_s)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        Path(name).chmod(0o755)  # PostgreSQL runs as another user
        deployment = Deployment(
            Path(name),
            history,
            with_postgres=settings.with_postgres,
            services=settings.services,
            seed=settings.seed,
        )
        customers = None
        try:
            deployment.start()
            say("everything is there")
            customers = Customers(
                deployment, history, seed=settings.seed, at_once=settings.at_once, usd=settings.usd
            )
            until("a trial trains", lambda: any(line.what == "report" for line in history.lines), BOUND_S)
            say("trials train; now the faults begin")
            _strike_all(deployment, history, plan, settings.seconds, say)
            return _afterwards(deployment, customers, history, settings)
        finally:
            if customers is not None:
                customers.give_up()
            _keep_logs(deployment, Path(name), history.path)
            deployment.stop()


def _strike_all(
    deployment: Deployment,
    history: History,
    plan: Sequence[Strike],
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Begin each strike at its time, or a little later if it has no victim yet, and end it at its own time."""
    began, order = time.monotonic(), count()
    due: list[tuple[float, int, Callable[[], None]]] = []

    def begin(planned: Strike, tries: int = TRIES) -> None:
        lasts = planned.fault.longest_s > 0
        deployment.troubles += 1
        deployment.faults += 1
        try:
            done = strike(deployment, planned)
        finally:
            deployment.troubles -= 1
        deployment.faults -= not done.victim
        now_s = time.monotonic() - began
        if not done.victim and tries > 1 and now_s + AGAIN_S < seconds:
            heapq.heappush(due, (now_s + AGAIN_S, next(order), lambda: begin(planned, tries - 1)))
            return
        history.write(
            "strike", fault=planned.fault.name, victim=done.victim, of_job=done.of_job, for_s=planned.for_s
        )
        say(f"{time.monotonic() - began:6.1f} s  {planned.fault.name}: {done.victim or 'nobody was there'}")
        if lasts and done.victim:
            deployment.troubles += 1
            heapq.heappush(
                due, (time.monotonic() - began + planned.for_s, next(order), lambda: end(planned, done.end))
            )

    def end(planned: Strike, undo: Callable[[], object]) -> None:
        undo()
        deployment.troubles -= 1
        history.write("healed", fault=planned.fault.name)

    for planned_strike in plan:
        heapq.heappush(due, (planned_strike.at_s, next(order), lambda strike=planned_strike: begin(strike)))  # type: ignore[misc]
    while due:
        at_s, _, action = heapq.heappop(due)
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        action()
    time.sleep(max(0.0, began + seconds - time.monotonic()))


def _afterwards(deployment: Deployment, customers: Customers, history: History, settings: Run) -> Outcome:
    """End all faults, wait until every job has ended, and check the results."""
    deployment.heal()
    history.write("calm")
    until("all parts are there", lambda: deployment.calm() is not None and deployment._answers(0), BOUND_S)
    customers.enough()
    read = reading.reader(deployment)
    took = None
    with suppress(TimeoutError):
        took = until("all jobs are over", lambda: _all_over(read), BOUND_S)
        until("customers know", lambda: not customers.live, GONE_S)
        until("nobody trains", lambda: not deployment.left(), GONE_S)
    history.write("over", seconds=took)
    after = reading.after(deployment, read)
    outcome = Outcome(checker.broken(history.lines, after))
    outcome.broken += [checker.Broken("customer", "", repr(error)) for error in customers.errors]
    _print_figures(outcome, history, after, reading.attempts(read), took, settings)
    return outcome


def _all_over(read: reading.Read) -> bool:
    return all(state in FINAL for state in reading.states(read).values())


def _print_figures(
    outcome: Outcome,
    history: History,
    after: checker.After,
    attempts: dict[tuple[str, str, int], int],
    took: float | None,
    settings: Run,
) -> None:
    lines, by_name = history.lines, figures.faults(history.lines)
    kinds = {fault.name: fault.of for fault in settings.faults}
    outcome.jobs = len(after.jobs)
    outcome.process_faults = sum(times for name, times in by_name.items() if kinds[name] == "process")
    rules, over = [violation.rule for violation in outcome.broken], checker.over(after.jobs)
    failed = [line.facts["status"] for line in lines if line.what == "failed"]
    outcome.lines = [
        f"faults: {sum(by_name.values())}, of processes {outcome.process_faults}",
        *(f"  {times:3d}  {name}" for name, times in sorted(by_name.items())),
        f"jobs: {len(after.jobs)}, all over {'never' if took is None else f'{took:.0f} s'} after the faults; "
        f"reports: {sum(len(job.reports) for job in after.jobs)}, "
        f"GPU milliseconds: {sum(job.posted.gpu_ms for job in after.jobs)}",
        f"lost: {sum('lost' in rule for rule in rules)}, doubled: {sum('doubled' in rule for rule in rules)}, "
        f"micro-dollars over: {over.usd}, GPU milliseconds over: {over.gpu_ms}, otherwise broken: "
        f"{sum('lost' not in rule and 'doubled' not in rule for rule in rules)}",
        f"answers that a customer tried again after: {len(failed)}, of them other than 503 or none: "
        f"{sum(status not in (0, 503) for status in failed)}",
        f"head or driver lost to trials training again: {figures.summary_of(figures.recoveries(lines, attempts))}",
        f"requests that failed all the same while PostgreSQL alone was killed: {figures.unmended(lines)}",
        f"service killed to ready: {figures.summary_of(figures.back(lines, 'service'))}",
        f"PostgreSQL killed to answering: {figures.summary_of(figures.back(lines, 'database'))}",
    ]


def _keep_logs(deployment: Deployment, folder: Path, history: Path) -> None:
    """Copy the last 2 MB of each log next to the history, to help find the cause of a failure."""
    kept = history.with_suffix(".logs")
    kept.mkdir(exist_ok=True)
    of_ray = (folder / "home" / "ray_logs", deployment.head.temp_dir / "session_latest" / "logs")
    drivers = [log for place in of_ray for log in place.glob("job-driver-*.log")]
    for log in [*folder.glob("*.log"), *folder.glob("home/*.log"), *drivers]:
        with suppress(OSError):
            (kept / log.name).write_bytes(log.read_bytes()[-2_000_000:])
