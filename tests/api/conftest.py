"""Fixtures: an app over a service without Ray for each test, and a shared one with finished jobs, which no test changes."""

from collections.abc import Iterator

import pytest

from tests import fakes
from tests.fakes import FakeService
from tuner.simulator.world import Faults

service, client = fakes.fixtures("function")


class Finished:
    """Finished jobs: a plain one, one with crashes, killed drivers and preemptions, one that minimises. Two more wait and run."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.client = service, fakes.client_of(service)
        self.plain = self._run(seed=1, usd=0.003)
        up_s = [*((10.5 * n, 10.5 * n + 9) for n in range(5)), (60, None)]
        self.troubled = self._run(seed=2, usd=0.003, faults=Faults(crash=0.1, driver_restart=0.03), up_s=up_s)
        self.lowest = self._run(seed=3, usd=0.0015, mode="min")
        self.waiting = fakes.submit(self.client)
        self.under_way = fakes.submit(self.client, budget={"usd": 0.002})
        fakes.simulate(service, self.under_way, messages=80)

    def _run(
        self,
        *,
        seed: int,
        usd: float,
        mode: str = "max",
        faults: Faults | None = None,
        up_s: list[tuple[float, float | None]] | None = None,
    ) -> str:
        algorithm = {"scheduler": "asha", "sampler": "random", "seed": seed}
        objective = {"metric": "acc", "mode": mode}
        job = fakes.submit(self.client, algorithm=algorithm, objective=objective, budget={"usd": usd})
        fakes.simulate(self.service, job, faults=faults or Faults(), seed=seed, up_s=up_s)
        self.service.now.pass_s(10)
        return job

    @property
    def ended(self) -> tuple[str, str, str]:
        return self.plain, self.troubled, self.lowest

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.ended, self.waiting, self.under_way)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    service = fakes.service_in(tmp_path_factory.mktemp("finished"))
    yield Finished(service)
    service.database.dispose()
