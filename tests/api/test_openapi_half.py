"""The other half of the cases of test_openapi.py."""

from pathlib import Path

import pytest

from tests.api.test_openapi import try_half


def test_every_call_is_answered_as_the_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_half(tmp_path, monkeypatch, first_seed=1000)
