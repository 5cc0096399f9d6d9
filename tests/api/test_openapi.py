"""Whatever the OpenAPI document allows, and much that it does not, is answered as it says, and never with a server error. There are two
halves, so that two workers can share them."""

from pathlib import Path

import pytest

from tests.api.openapi_cases import at_once, documented, try_out

CASES = 5_000
ANSWERS = {200, 201, 202, 204, 401, 404, 409, 422}


def try_half(folder: Path, monkeypatch: pytest.MonkeyPatch, *, first_seed: int) -> None:
    monkeypatch.setattr("anyio.to_thread.run_sync", at_once)
    tried = try_out(folder, CASES, first_seed=first_seed)
    print(f"\nfigures: {tried}")
    assert tried.by_call.keys() == documented()
    assert tried.by_status.keys() >= ANSWERS
    assert max(tried.by_status) < 500


def test_every_call_is_answered_as_the_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_half(tmp_path, monkeypatch, first_seed=0)
