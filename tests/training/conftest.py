"""Measurements that start from nothing, and checkpoints that cannot be written."""

from collections.abc import Callable, Iterator

import pytest

from tuner.training import checkpoint, measured


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Clear what the helpers measured, which is kept in globals."""
    measured.forget()
    yield
    measured.forget()


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Return a function that lets each write of a checkpoint fail with an error."""

    def fail_with(error: Exception) -> None:
        def write(*_: object) -> None:
            raise error

        monkeypatch.setattr(checkpoint, "write", write)

    return fail_with
