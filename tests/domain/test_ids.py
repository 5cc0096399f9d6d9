"""Test ids: that of a package comes from its bytes, that of a trial from its number."""

from tuner.domain.ids import package_id, trial_id, trial_number


def test_a_package_is_named_by_its_bytes() -> None:
    assert package_id("9f86") == "pkg_9f86"


def test_a_trial_has_its_number_in_its_name() -> None:
    assert [trial_number(trial_id(number)) for number in (0, 7, 123_456)] == [0, 7, 123_456]
