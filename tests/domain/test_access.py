"""Test the text form of keys, the order of roles, and which names and times are valid."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain import access
from tuner.domain.access import ROLES, Actor, KeyText, Role, key_text, read_key
from tuner.domain.errors import Forbidden
from tuner.domain.time import DAY_NS, NS

IDS = st.from_regex(r"tnr_[a-z0-9]{8}", fullmatch=True)
RANDOM = st.binary(min_size=32, max_size=32).map(lambda b: base64.urlsafe_b64encode(b).decode().rstrip("="))
KEYS = st.builds(key_text, IDS, RANDOM)


@given(KEYS)
def test_key_text_round_trips(key: KeyText) -> None:
    assert read_key(key.text) == key
    assert key.text.startswith(f"{key.id}_")
    assert access.is_like_a_key(key.text)
    assert len(key.sha256) == 64
    assert key.sha256 != key_text(key.id, "A" * 43).sha256 or key.text[13:56] == "A" * 43


@given(KEYS, st.data())
def test_key_with_a_wrong_character_is_refused_without_a_database(key: KeyText, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(key.text) - 1))
    other = data.draw(st.sampled_from("abcXYZ019_-").filter(lambda c: c != key.text[at]))
    assert read_key(key.text[:at] + other + key.text[at + 1 :]) is None


@given(KEYS, st.integers(1, 64))
def test_truncated_or_padded_key_is_refused(key: KeyText, missing: int) -> None:
    assert read_key(key.text[:-missing]) is None
    assert read_key(f"{key.text} ") is None


@given(st.sampled_from(ROLES), st.sampled_from(ROLES))
def test_role_includes_the_permissions_of_lower_roles(has: Role, needs: Role) -> None:
    actor = Actor("ada", "vision", has, "tnr_abcdefgh")
    assert actor.may(needs) == (ROLES.index(has) >= ROLES.index(needs))
    if actor.may(needs):
        actor.need(needs)
        return
    with pytest.raises(Forbidden) as refused:
        actor.need(needs)
    assert (needs if needs != "operator" else "service's own key") in refused.value.detail
    assert f"ada has only the role {has} in the project vision" in refused.value.detail


@pytest.mark.parametrize("name", ["", "-a", "A", "a/b", "..", "a.b", "a b", "a" * 64, "ä", "a\n", "a_b"])
def test_invalid_project_name_is_refused(name: str) -> None:
    assert access.project_fault(name) is not None


@pytest.mark.parametrize("name", ["a", "0", "vision-2", "a" * 63])
def test_plain_project_name_is_accepted(name: str) -> None:
    assert access.project_fault(name) is None


@pytest.mark.parametrize("name", ["", "@a", "A", "a/b", "a b", "a" * 64, "operator", "tuner", "a\n"])
def test_invalid_user_name_is_refused(name: str) -> None:
    assert access.user_fault(name) is not None


def test_email_address_is_a_valid_user_name() -> None:
    assert access.user_fault("ada.l-2@example.com") is None


def test_mistyped_role_suggests_the_nearest_role() -> None:
    fault = access.role_fault("submiter")
    assert fault is not None
    assert "did you mean submitter" in fault.detail
    operator = access.role_fault("operator")
    assert operator is not None
    assert "viewer, submitter, admin" in operator.detail


@pytest.mark.parametrize(
    ("life_ns", "fits"),
    [(60 * NS - 1, False), (60 * NS, True), (366 * DAY_NS, True), (366 * DAY_NS + 1, False)],
)
def test_key_lifetime_is_between_a_minute_and_a_year(life_ns: int, fits: bool) -> None:
    assert (access.life_fault(life_ns) is None) == fits


@pytest.mark.parametrize(
    ("overlap_ns", "fits"), [(-1, False), (0, True), (DAY_NS, True), (DAY_NS + 1, False)]
)
def test_rotated_key_overlaps_its_successor_by_at_most_a_day(overlap_ns: int, fits: bool) -> None:
    assert (access.overlap_fault(overlap_ns) is None) == fits


@pytest.mark.parametrize(
    ("name", "fits"), [("ci", True), (" ", False), ("", False), ("a" * 101, False), ("a\nb", False)]
)
def test_key_name_must_be_a_single_short_line(name: str, fits: bool) -> None:
    assert (access.key_name_fault(name) is None) == fits
