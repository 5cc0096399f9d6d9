"""Property tests of the stopwatch of an attempt: a value that was shown never decreases."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.worker.metering import Stopwatch

KINDS = st.sampled_from(["setup", "train", "checkpoint", "idle"])
INSTANTS = st.integers(0, 1000)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("switch"), KINDS, INSTANTS),
            st.tuples(st.just("read"), st.integers(0, 50), INSTANTS),
        )
    )
)
def test_shown_times_never_decrease_or_exceed_the_lease(readings: list[tuple[str, object, int]]) -> None:
    """Messages may arrive after a reading of a later instant. Leases only grow."""
    watch, lease, before = Stopwatch("setup", 0), 100, dict[str, int]()
    for what, value, at in readings:
        if what == "switch":
            watch.switch(str(value), at)
            continue
        lease += int(str(value))
        shown = watch.reading(lease, at)
        assert sum(shown.values()) <= lease
        assert all(shown.get(kind, 0) >= ns for kind, ns in before.items())
        before = shown
