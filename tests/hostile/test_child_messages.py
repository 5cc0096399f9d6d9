"""Valid messages of a child are read, and all others raise InvalidMessage and no other exception."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.worker.child_channel import (
    ChildMessage,
    EndedMessage,
    FailedMessage,
    InvalidMessage,
    PhaseMessage,
    ReportMessage,
    SavedMessage,
    SaveFailedMessage,
    check_saved_step,
    check_step,
    parse,
)

NOW = 10**12
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = (
    "type",
    "t",
    "kind",
    "step",
    "metrics",
    "resumable",
    "last",
    "path",
    "detail",
    "error",
    "message",
    "traceback",
)
TYPES = {
    "phase": PhaseMessage,
    "report": ReportMessage,
    "saved": SavedMessage,
    "save_failed": SaveFailedMessage,
    "ended": EndedMessage,
    "failed": FailedMessage,
}


def encoded(**message: Any) -> bytes:
    return json.dumps({"t": 5, **message}).encode()


def read_or_refused(data: bytes) -> ChildMessage | None:
    """Return the message, or None if it is refused with a text of a few lines."""
    try:
        return parse(data, now_ns=NOW)
    except InvalidMessage as invalid:
        text = str(invalid)
    assert len(text) < 300
    return None


@examples(300)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    read_or_refused(data)


@examples(500, gate=100)
@given(kind=st.sampled_from(sorted(TYPES)), fields=st.dictionaries(st.sampled_from(NAMES[1:]), json_values))
def test_any_fields_are_a_message_or_refused(kind: str, fields: dict[str, Any]) -> None:
    message = read_or_refused(encoded(**{**fields, "type": kind}))
    assert message is None or isinstance(message, TYPES[kind])


def test_a_report_and_a_phase_are_read() -> None:
    report = parse(
        encoded(type="report", step=3, metrics={"acc": 0.5, "note": "x", "none": None}, resumable=True),
        now_ns=NOW,
    )
    assert report == ReportMessage(3, {"acc": 0.5, "note": "x", "none": None}, True, None, 5)
    for last in (True, 1, "yes"):
        message = parse(encoded(type="report", step=3, metrics={}, last=last), now_ns=NOW)
        assert message == ReportMessage(3, {}, False, None, 5, last=last is True)
    assert parse(encoded(type="phase", kind="train"), now_ns=NOW) == PhaseMessage("train", 5)


def test_report_of_too_many_or_too_large_metrics_is_refused() -> None:
    """User code can write to its channel without the functions that refuse such metrics in the child."""
    most: list[dict[str, Any]] = [{f"m{n}": n for n in range(1000)}, {"text": "x" * (64 * 1024 - 12)}]
    for metrics in most:
        message = parse(encoded(type="report", step=1, metrics=metrics, t=5), now_ns=NOW)
        assert isinstance(message, ReportMessage)
        assert message.metrics == metrics
    with pytest.raises(InvalidMessage, match="1001 metrics is too large; report at most 1000 metrics"):
        parse(encoded(type="report", step=1, metrics={**most[0], "m": 1}), now_ns=NOW)
    with pytest.raises(InvalidMessage, match="have 65537 bytes as JSON, which is too large"):
        parse(encoded(type="report", step=1, metrics={"text": most[1]["text"] + "x"}), now_ns=NOW)


def test_timestamp_in_the_future_becomes_now() -> None:
    assert parse(encoded(type="phase", kind="train", t=NOW + 1), now_ns=NOW) == PhaseMessage("train", NOW)


@pytest.mark.parametrize(("step", "valid"), [(4, True), (3, False), (5, False), (0, False), (2**64, False)])
def test_only_the_next_step_may_be_reported(step: int, valid: bool) -> None:
    for max_step in (None, 9):
        if valid:
            check_step(step, last_step=3, max_step=max_step)
        else:
            with pytest.raises(InvalidMessage):
                check_step(step, last_step=3, max_step=max_step)
    with pytest.raises(InvalidMessage, match="its last step is 3"):
        check_step(4, last_step=3, max_step=3)


@pytest.mark.parametrize(("step", "valid"), [(1, True), (3, True), (0, False), (4, False)])
def test_only_a_reported_step_may_be_saved(step: int, valid: bool) -> None:
    if valid:
        check_saved_step(step, last_step=3)
    else:
        with pytest.raises(InvalidMessage):
            check_saved_step(step, last_step=3)
