"""Run the jobs of `benchmarks.plans`, either in the service on recorded learning curves and a simulated clock, or on a real Ray."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np

from tests import fakes
from tests.system.serving import Served
from tuner.client import Client
from tuner.cluster.nodes import Node
from tuner.domain.offer import MARKET_LABEL
from tuner.domain.space import Config, Int
from tuner.domain.time import NS
from tuner.driver.ports import LoopConfig
from tuner.schemas.job import Job
from tuner.simulator import world
from tuner.simulator.fleet import Markets
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.traces import load_traces
from tuner.simulator.worker import Overheads
from tuner.simulator.world import ALWAYS_UP, SimulatedRun, SpotMachines
from tuner.store import jobs

ENTRY = "trainables.digits_mlp:train"  # a pilot is stored under the code of this trainable; what actually trains is the table
NODES = 8
METRIC = "metric"
SECONDS_A_PILOT = 600


@dataclass(frozen=True)
class Machines:
    """The simulated machines of recorded jobs: their prices per hour, and what an attempt needs in addition to its steps."""

    usd: float = 0.2
    spot_usd: float = 0.07
    setup_ns: int = 5 * NS
    restore_ns: int = 3 * NS
    save_ns: int = NS // 2


LARGE = Machines()
# A machine with the default price of a local CPU, and the times of a small model.
SMALL = Machines(0.05, 0.02, NS // 20, NS * 6 // 100, NS // 50)


class Place(Protocol):
    """A place that runs jobs one after the other. A job learns nothing from other jobs, except from its own pilot."""

    @property
    def client(self) -> Client: ...

    def body(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a REST request that submits a job."""

    def run(self, job: str) -> Job:
        """Run the job to its end."""


class NearestTraining:
    """Implementation of `Training` that uses the recorded row nearest to a configuration."""

    def __init__(self, table: RecordedTable) -> None:
        self._table, self._rows = table, dict[str, int]()

    def step_ns(self, config: Config, step: int) -> int:
        return max(1, round(float(self._table.step_s[self._row(config), self._column(step)]) * NS))

    def value(self, config: Config, step: int) -> float:
        return float(self._table.metric[self._row(config), self._column(step)])

    def _column(self, step: int) -> int:
        return min(step, self._table.steps) - 1

    def _row(self, config: Config) -> int:
        key = str(sorted(config.items()))
        if key not in self._rows:
            squares = ((self._table.unit - self._table.unit_of(config)) ** 2).sum(axis=1)
            self._rows[key] = int(np.argmin(squares))
        return self._rows[key]


@dataclass(frozen=True)
class Recorded:
    """A service whose jobs train rows of a table, on machines of one CPU in both markets."""

    table: RecordedTable
    machines: Machines
    service: fakes.FakeService
    client: Client

    @property
    def training_usd(self) -> float:
        """The on-demand cost of training a mean row to its last step."""
        return round(self.table.full_s / 3600 * self.machines.usd, 6)

    def body(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a REST request. `trainings` is the budget in mean trainings."""
        rest = {name: value for name, value in changes.items() if name != "trainings"}
        budget = {"usd": round(self.training_usd * changes["trainings"], 6), **rest.pop("budget", {})}
        fidelity = {"unit": "epoch", "min": 1, "max": self.table.steps, **rest.pop("fidelity", {})}
        return {
            "name": "recorded",
            "trainable": ENTRY,
            "objective": {"metric": METRIC, "mode": "max"},
            "search_space": {
                name: _parameter(parameter) for name, parameter in self.table.space.parameters.items()
            },
            "budget": budget,
            "fidelity": fidelity,
            **rest,
        }

    def run(self, job: str) -> Job:
        with self.service.database.read() as db:
            row = jobs.get(db, job)
        wanted, spot = row.spec.resources, row.spec.resources.market != "on_demand"
        trace = load_traces("bamboo")[0]
        with patch.object(world, "MemoryJournal", lambda *_: self._journal(job)):
            run = SimulatedRun(
                row.spec,
                LoopConfig(job, row.offer.rate(wanted), row.concurrency, 10 * NS),
                NearestTraining(self.table),
                overheads=Overheads(
                    setup_ns=self.machines.setup_ns,
                    resumed_setup_ns=0,
                    restore_ns=self.machines.restore_ns,
                    save_ns=self.machines.save_ns,
                    stall_ns=self.machines.save_ns // 10,
                    save_every_ns="auto" if spot else None,
                ),
                seed=row.spec.algorithm.seed,
                heartbeat_ns=5 * NS,
                machines=SpotMachines(
                    markets=Markets(tuple(sorted(row.offers, key=_on_demand))),
                    up_times=trace.up_times(
                        row.concurrency, start_ns=_start(row.spec.algorithm.seed, trace.length_ns)
                    ),
                    notice_ns=trace.notice_ns,
                )
                if spot
                else ALWAYS_UP,
            )
        run.run(turns_max=10**7)
        self.service.now.at = max(self.service.now.at, run.clock.now())
        return self.client.job(job)

    def _journal(self, job: str) -> fakes.SimulatedSqlJournal:
        return fakes.SimulatedSqlJournal(self.service.database, job, self.service.project, fakes.EPOCH)


@contextmanager
def recorded(table: Path, machines: Machines = LARGE) -> Iterator[Recorded]:
    """Yield a service without any jobs."""
    with TemporaryDirectory(prefix="bench-plans-") as folder:
        prices = {"local": machines.usd, "local/spot": machines.spot_usd}
        made = fakes.service_in(Path(folder) / "home")
        service = replace(made, settings=replace(made.settings, node_prices=prices))
        both = [{MARKET_LABEL: "on-demand"}, {MARKET_LABEL: "spot"}]
        service.cluster.fake_nodes = [
            Node(f"n{i}", cpus=1, gpus=0, memory_bytes=8 << 30, labels=both[i % 2]) for i in range(2 * NODES)
        ]
        transport = fakes.client_of(service)._transport
        client = Client("http://tuner", fakes.KEY, transport=transport)
        yield Recorded(load_table(table), machines, service, client)
        client.close()
        service.database.dispose()


@dataclass(frozen=True)
class Real:
    """A service on a local Ray of two CPUs."""

    served: Served

    @property
    def client(self) -> Client:
        return self.served.client

    def body(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        listed_trainable = next(
            trainable
            for trainable in self.client.trainables().items
            if trainable.trainable == changes["trainable"]
        )
        return {
            "name": "real",
            "search_space": listed_trainable.search_space,
            "objective": listed_trainable.objective,
            **changes,
        }

    def run(self, job: str) -> Job:
        return self.client.wait(job, timeout_s=SECONDS_A_PILOT)


@contextmanager
def real() -> Iterator[Real]:
    with TemporaryDirectory(prefix="bench-plans-") as folder:
        served = Served(Path(folder) / "home").start()
        try:
            yield Real(served)
        finally:
            served.stop()


def _parameter(parameter: Any) -> dict[str, Any]:
    kind = "int" if isinstance(parameter, Int) else "float"
    return {"type": kind, "low": parameter.low, "high": parameter.high, "log": parameter.log}


def _start(seed: int, length_ns: int) -> int:
    return Random(f"plans/{seed}").randrange(length_ns)


def _on_demand(offer: Any) -> bool:
    return bool(offer.market != "spot")
