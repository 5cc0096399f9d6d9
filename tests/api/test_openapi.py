"""Requests that the OpenAPI document allows and many that it does not get a documented response, and never a server error."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests import seeds
from tests.api.openapi_cases import Tried, Workflows, at_once, documented

ANSWERS = {200, 201, 202, 204, 401, 404, 409, 422}
SEEDS = range(41)  # 10,000 cases
KEPT_SEEDS: tuple[int, ...] = ()  # Seeds that failed once. Add yours, with the fault it found.
# The gate's 816 cases. They cover every documented call, every status of ANSWERS, and 164 pairs of a call and a status. Choose other seeds
# when the document has changed so much that `test_requests_cover_every_call_and_every_status` tries further ones, which takes 4 s each.
GATE_SEEDS = (5, 9, 14, *KEPT_SEEDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds.parametrize(metafunc, gate=GATE_SEEDS, every=[*SEEDS, *KEPT_SEEDS])


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Tried]]:
    """Return a function that sends the requests of a seed once and returns their counts."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(Workflows(tmp_path_factory.mktemp("openapi"))) as workflows,
    ):
        patch.setattr("anyio.to_thread.run_sync", at_once)

        @cache
        def run(seed: int) -> Tried:
            with seeds.reproducible("tests/api/test_openapi.py::test_answers_are_as_documented", seed):
                counts = workflows.run(seed)
                assert max(counts.by_status) < 500
            return counts

        yield run


def test_answers_are_as_documented(tried: Callable[[int], Tried], seed: int) -> None:
    assert tried(seed).by_call


def test_requests_cover_every_call_and_every_status(tried: Callable[[int], Tried]) -> None:
    """A change of the document changes the generated requests. Further seeds are tried if the gate's seeds then miss a call or a status."""
    seen = Tried()
    for seed in dict.fromkeys((*GATE_SEEDS, *SEEDS)):
        is_all_seen = seen.by_call.keys() == documented() and seen.by_status.keys() >= ANSWERS
        if seed in GATE_SEEDS or not is_all_seen:
            seen.add(tried(seed))
    print(f"\nfigures: {seen}")
    assert seen.by_call.keys() == documented()
    assert seen.by_status.keys() >= ANSWERS
