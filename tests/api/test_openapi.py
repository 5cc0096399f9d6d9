"""Requests that the OpenAPI document allows and many that it does not get a documented response, and never a server error."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests import seeds
from tests.api.openapi_cases import Tried, Workflows, at_once, documented

ANSWERS = {200, 201, 202, 204, 401, 404, 409, 422}
SEEDS = range(41)  # 10,000 cases
KEPT_SEEDS: tuple[int, ...] = ()  # Seeds that failed once. Add yours, with the fault it found.
# The gate's 791 cases. They cover every status of ANSWERS, and all documented calls but six.
GATE_SEEDS = (1, 5, 9, *KEPT_SEEDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds.parametrize(metafunc, gate=GATE_SEEDS, every=[*SEEDS, *KEPT_SEEDS])


@dataclass(frozen=True)
class Cases:
    """Sends the requests of each seed once."""

    workflows: Workflows
    by_seed: dict[int, Tried] = field(default_factory=dict)

    def of(self, seed: int) -> Tried:
        if seed not in self.by_seed:
            with seeds.reproducible("tests/api/test_openapi.py::test_answers_are_as_documented", seed):
                self.by_seed[seed] = self.workflows.run(seed)
                assert max(self.by_seed[seed].by_status) < 500
        return self.by_seed[seed]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(Workflows(tmp_path_factory.mktemp("openapi"))) as workflows,
    ):
        patch.setattr("anyio.to_thread.run_sync", at_once)
        yield Cases(workflows)


def test_answers_are_as_documented(cases: Cases, seed: int) -> None:
    assert cases.of(seed).by_call


def test_requests_cover_every_call_and_every_status(cases: Cases) -> None:
    """A change of the document changes the generated requests. Each call that those of the gate's seeds miss gets one more."""
    seen = Tried()
    for seed in GATE_SEEDS:
        seen.add(cases.of(seed))
    seen.add(cases.workflows.send_each(documented() - seen.by_call.keys()))
    print(f"\nfigures: {seen}")
    assert max(seen.by_status) < 500
    assert seen.by_call.keys() == documented()
    assert seen.by_status.keys() >= ANSWERS
