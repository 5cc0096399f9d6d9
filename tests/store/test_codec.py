"""Test that a value written to a row is read back with the same value and type."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Column, ColumnElement, MetaData, Table, Text, create_engine, insert, select

from tests.store import builders
from tests.strategies import examples, spaces
from tuner.database.codec import VERSION, contains_field, contains_type, decode, encode, spent_of, stored_name
from tuner.domain import events
from tuner.domain.budget import Budget
from tuner.domain.calendar import Window
from tuner.domain.commands import EndJob
from tuner.domain.events import Reported, Suggested
from tuner.domain.job import Algorithm, CheckpointPolicy, Confirm, JobSpec, Plateau, Resources, Teacher
from tuner.domain.money import Money, Price
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.offer import Offer
from tuner.domain.time import Instant

big = st.integers(-(2**63), 2**63)
numbers = st.floats()  # including NaN, both infinities and both zeros
keys = st.text(max_size=4) | st.sampled_from(["$", "$map", "$list", "$float", "v", "value"])
leaves = st.none() | st.booleans() | big | numbers | st.text(max_size=8)
constants = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
moneys = st.builds(Money, big)
limits = st.builds(
    Budget,
    usd=st.none() | moneys,
    gpu_ms=st.none() | big,
    wall_clock_ns=st.none() | big,
    trials=st.none() | big,
    on_exhausted=st.sampled_from(["finish", "pause"]),
)
objectives = st.builds(Objective, st.text(), st.sampled_from(["max", "min"]), st.none() | numbers)
resources = st.builds(
    Resources, numbers, numbers, instance_type=st.none() | st.text(), max_concurrent_trials=st.none() | big
)
texts = st.dictionaries(keys, st.text(max_size=5), max_size=3)
specs = st.builds(
    JobSpec,
    name=st.text(),
    trainable=st.text(),
    objective=objectives,
    space=spaces(),
    budget=limits,
    constants=st.dictionaries(keys, constants, max_size=3),
    fidelity=st.builds(Fidelity, st.text(), big, st.none() | big, big),
    resources=resources,
    algorithm=st.builds(Algorithm, seed=big),
    plateau=st.none() | st.builds(Plateau, big, numbers),
    checkpoint=st.builds(CheckpointPolicy, st.none() | big, big),
    warm_start_jobs=st.lists(st.text(), max_size=3).map(tuple),
    window=st.none() | st.builds(Window, st.text(), st.text(), st.text()),
    tags=texts,
    teacher=st.none() | st.builds(Teacher, st.text(), st.text(), st.none() | big, st.none() | big),
    confirm=st.none() | st.builds(Confirm, big, big, st.booleans()),
    worth_micro_usd=st.none() | big,
)
offers = st.builds(Offer, st.text(), st.builds(Price, big), numbers, numbers, region=st.none() | st.text())
instants = st.builds(Instant, big)
configs = st.none() | st.dictionaries(keys, leaves, max_size=4)
happenings = st.one_of(
    st.builds(Suggested, instants, st.text(), configs, st.none() | st.from_type(events.Inherited)),
    st.builds(Reported, instants, st.text(), big, st.none() | numbers, moneys, st.booleans()),
    st.builds(events.BudgetChanged, instants, limits),
    st.builds(events.Launched, instants, st.dictionaries(keys, big, max_size=3)),
    *(
        st.from_type(kind)
        for kind in get_args(events.Event)
        if kind not in (Suggested, Reported, events.BudgetChanged, events.Launched)
    ),
)


def same(value: object, other: object) -> bool:
    """Return whether two values are equal, with equal types at every level. NaN equals NaN, and 0.0 does not
    equal -0.0.
    """
    if isinstance(value, float) and isinstance(other, float):
        return repr(value) == repr(other)
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if type(value) is not type(other):
        return False
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if dataclasses.is_dataclass(value):
        return all(same(getattr(value, f.name), getattr(other, f.name)) for f in dataclasses.fields(value))
    return value == other


@given(specs | limits | happenings | offers)
@example(Reported(Instant(0), "trial_00000", 1, math.nan, Money(0)))
@example(Reported(Instant(0), "trial_00000", 1, -math.inf, Money(0)))
@examples(300)
def test_encoded_value_decodes_to_the_same_value(value: object) -> None:
    assert same(decode(encode(value)), value)


@given(constants)
def test_any_constant_of_a_job_decodes_to_the_same_value(value: object) -> None:
    assert same(decode(encode(value)), value)


@given(constants)
def test_row_is_strict_ascii_json(value: object) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = encode(value)
    assert text.isascii()
    assert json.loads(text, parse_constant=refuse)["v"] == VERSION


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_row_of_an_unknown_version_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match=f"reads format {VERSION}; use the version that wrote the row"):
        decode(json.dumps({"v": version, "value": 1}))


def test_value_without_json_form_is_refused_by_encode() -> None:
    with pytest.raises(TypeError):
        encode({"x": object()})


@pytest.mark.parametrize("event", get_args(events.Event))
def test_every_event_has_a_stored_name(event: type) -> None:
    assert stored_name(event)


def test_type_without_a_stored_name_is_refused_by_encode() -> None:
    with pytest.raises(ValueError, match="EndJob has no stored name"):
        encode(EndJob("cancelled", "cancelled"))


def test_row_written_by_earlier_releases_stays_readable() -> None:
    row = (
        '{"v":1,"value":{"$":"Reported","at":5,"trial":"trial_00002","step":3,'
        '"value":{"$float":"NaN"},"spent":{"$":"Money","micro_usd":7},"resumable":false}}'
    )
    value = decode(row)
    assert same(value, Reported(Instant(5), "trial_00002", 3, math.nan, Money(7), resumable=False))
    assert encode(value) == row.replace("false}", 'false,"train_ns":0,"price":null}')
    without = row.replace(',"resumable":false', "")
    assert decode(without).resumable


def test_job_without_a_package_is_readable_by_older_releases() -> None:
    spec = builders.new_job().spec
    assert "package" not in encode(spec)
    assert decode(encode(spec)) == spec
    other = dataclasses.replace(spec, package=f"pkg_{'a' * 64}")
    assert decode(encode(other)) == other


@given(constants)
def test_arbitrary_json_is_decoded_or_refused_with_value_error(value: Any) -> None:
    """Only ValueError may be raised, because callers handle no other exception."""
    for wrapped in (value, {"v": VERSION, "value": value}, {"v": VERSION, "value": {"$": value}}):
        try:
            decode(json.dumps(wrapped))
        except ValueError:
            pass
        except TypeError as error:
            pytest.fail(f"{wrapped!r}: {error!r}")


@pytest.mark.parametrize(
    "value", [{"$": "NoSuchType"}, {"$": "Budget", "unknown": 1}, {"$float": "huge"}, {"$map": 3}, {"$": []}]
)
def test_unknown_types_and_fields_are_named(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode(json.dumps({"v": VERSION, "value": value}))


def test_new_fields_that_are_not_used_are_left_out_for_older_releases() -> None:
    plain = json.loads(encode(builders.spec(builders.budget())))["value"]
    assert not {"start", "trial_limits", "package", "retention"} & plain.keys()
    assert not {"nodes", "processes_per_node", "pack"} & plain["resources"].keys()
    spec = builders.spec(builders.budget())
    used = decode(encode(dataclasses.replace(spec, resources=Resources(1, 2, processes_per_node=1, pack=4))))
    assert (used.resources.processes_per_node, used.resources.pack) == (1, 4)
    assert "distinct" not in encode(dataclasses.replace(spec, confirm=Confirm(3, 3)))


COLUMN = Column("body", Text)
HOLDER = Table("holder", MetaData(), COLUMN)


def matches(condition: ColumnElement[bool], value: object) -> bool:
    """Return whether a row with the encoded value meets the condition."""
    engine = create_engine("sqlite://")
    with engine.begin() as db:
        HOLDER.create(db)
        db.execute(insert(HOLDER).values(body=encode(value)))
        return db.execute(select(HOLDER).where(condition)).first() is not None


def test_condition_on_a_type_is_met_only_by_values_that_contain_it() -> None:
    has_window = contains_type(COLUMN, Window)
    plain = builders.spec(builders.budget())
    assert matches(has_window, dataclasses.replace(plain, window=Window("22:00", "06:00")))
    assert not matches(has_window, plain)
    text = '"$":"Window"'
    likely = dataclasses.replace(
        plain, name=text, tags={text: text}, constants={"a": {"$": "Window"}, "$": text}
    )
    assert not matches(has_window, likely)


def test_condition_on_a_field_is_met_if_the_field_does_not_have_its_default() -> None:
    several_nodes = contains_field(COLUMN, Resources, "nodes")
    plain = builders.spec(builders.budget())
    assert matches(several_nodes, dataclasses.replace(plain, resources=Resources(1, 0, nodes=2)))
    assert not matches(several_nodes, dataclasses.replace(plain, resources=Resources(1, 0, nodes=1)))
    with pytest.raises(AssertionError, match="the field gpus is always stored"):
        contains_field(COLUMN, Resources, "gpus")


@given(st.integers(0, 2**63))
@examples(20)
def test_spend_is_read_from_the_text_of_an_event(spent: int) -> None:
    event = Reported(Instant(0), "trial_00000", 1, math.nan, Money(spent), price=Price(spent + 1))
    assert spent_of(encode(event)) == spent
    assert spent_of(encode(Suggested(Instant(0), "trial_00000", {"spent": spent}))) is None
