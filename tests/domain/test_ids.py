"""Test ids: that of a package comes from its bytes, that of a trial from its number."""

from tuner.domain.ids import export_id, package_id, trial_id, trial_number


def test_package_id_contains_its_hash() -> None:
    assert package_id("9f86") == "pkg_9f86"


def test_ids_of_trials_and_exports_come_from_their_numbers() -> None:
    assert export_id(1) == "export_00001"
    assert [trial_number(trial_id(number)) for number in (0, 7, 123_456)] == [0, 7, 123_456]
