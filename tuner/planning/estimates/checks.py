"""Validation of a described run. Each fault names its place and the nearest valid choices."""

import difflib
from collections.abc import Collection, Iterator
from fractions import Fraction

from tuner.domain.errors import Fault, Invalid
from tuner.domain.listing import Listing
from tuner.planning.accelerators import ACCELERATORS, accelerator
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates.described import Measurement, Run, Where, Work

FILTERS = (
    ("clouds", "cloud"),
    ("regions", "region"),
    ("accelerators", "accelerator"),
    ("instance_types", "instance_type"),
)


def check_run(run: Run, catalogue: Catalogue) -> list[Listing]:
    """Return the listings on which to evaluate the run. Raise Invalid with all faults if the description of the run is not valid."""
    faults = [*_unknown(run.where, catalogue), *_speed_faults(run, catalogue), *_model_faults(run)]
    if run.deadline_ns is not None and run.deadline_ns <= 0:
        faults.append(Fault("/run/deadline", "has passed: give a time to come, or a duration such as 12h"))
    if not run.where.markets:
        faults.append(Fault("/run/markets", "is empty: name on_demand, spot or both"))
    if faults:
        raise Invalid(*faults)
    found = listings_in(run.where, catalogue)
    if not found:
        raise Invalid.at(
            "/run", f"no machine of the catalogue {catalogue.name} has all of {_told(run.where)}"
        )
    _check_gpus(run, found)
    return found


def listings_in(where: Where, catalogue: Catalogue) -> list[Listing]:
    wanted = [
        (field, {_name(field, word) for word in words})
        for name, field in FILTERS
        if (words := getattr(where, name))
    ]
    return [
        one
        for one in catalogue.listings
        if all(_name(field, str(getattr(one, field))) in words for field, words in wanted)
    ]


def check_accelerator(pointer: str, name: str) -> Iterator[Fault]:
    """Yield a fault at `pointer` if there is no data sheet for the accelerator."""
    if accelerator(name) is None:
        known = {one.casefold(): one for one in ACCELERATORS}
        near = [known[one] for one in difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.3)]
        nearest = ", ".join(near or ACCELERATORS)
        yield Fault(pointer, f"{name!r} is no accelerator with a data sheet here; the nearest: {nearest}")


def check_word(pointer: str, field: str, word: str, catalogue: Catalogue) -> Iterator[Fault]:
    """Yield a fault at `pointer` if no listing of the catalogue has the value `word` in the field."""
    known = catalogue.words("accelerator")
    if field == "accelerator" and any(_name(field, word) == _name(field, one) for one in known):
        return
    wrong = catalogue.unknown(field, word)
    if wrong is not None:
        yield Fault(pointer, wrong)


def work_of(
    *,
    samples: Fraction | None,
    epochs: Fraction,
    tokens: Fraction | None,
    flops: Fraction | None,
    flops_per_sample: Fraction | None,
    parameters: int | None,
) -> Work:
    """Return the work of a run, with its FLOPs if they are known. A token takes 6 FLOPs per parameter (Kaplan et al. 2020).

    Raises:
        Invalid: The work is missing, or is given both in samples and in tokens.
    """
    if samples is not None and tokens is not None:
        raise Invalid.at("/run/tokens", "count the work in samples or in tokens, not in both")
    if samples is None and tokens is None and flops is None:
        raise Invalid.at(
            "/run", "how much work is it? give samples (of an epoch, with epochs), tokens or flops"
        )
    if tokens is not None:
        known = None if parameters is None else 6 * parameters * tokens * epochs
        return Work(count=tokens * epochs, unit="tokens", flops=known if flops is None else flops)
    if samples is not None:
        each = None if flops_per_sample is None else flops_per_sample * samples * epochs
        return Work(count=samples * epochs, flops=each if flops is None else flops)
    return Work(count=None, flops=flops)


def timed_run(
    hours: Fraction, *, where: Where, gpus: int | None, others: Collection[str]
) -> tuple[Work, Measurement]:
    """Convert the hours that a run takes on one kind of machine to work, and the speed measured on that machine.

    Args:
        hours: The duration of the whole run with `gpus` GPUs.
        where: It must name exactly one accelerator or one instance type.
        gpus: The number of GPUs that the run uses. None is not valid here, because machines differ in their number of GPUs.
        others: The names of fields in the request that also describe work or speed. It must be empty.

    Raises:
        Invalid: One of these conditions is not met.
    """
    if others:
        raise Invalid.at("/run/hours", f"give hours, or {', '.join(sorted(others))}, not both")
    names = (*where.accelerators, *where.instance_types)
    if len(names) != 1:
        fix = "name one machine in accelerators or in instance_types"
        raise Invalid.at("/run/hours", f"hours are those of one machine; {fix}")
    if gpus is None:
        raise Invalid.at("/run/gpus", "give the number of GPUs with which the run takes these hours")
    measured = Measurement(
        per_second=Fraction(1, 3600),
        accelerator=names[0] if where.accelerators else None,
        instance_type=names[0] if where.instance_types else None,
        gpus=gpus,
    )
    return Work(count=hours, unit="hours"), measured


def _name(field: str, word: str) -> str:
    kind = accelerator(word) if field == "accelerator" else None
    return (word if kind is None else kind.name).casefold()


def _unknown(where: Where, catalogue: Catalogue) -> Iterator[Fault]:
    for name, field in FILTERS:
        for index, word in enumerate(getattr(where, name)):
            yield from check_word(f"/run/{name}/{index}", field, word, catalogue)


def _speed_faults(run: Run, catalogue: Catalogue) -> Iterator[Fault]:
    if run.measurements and run.work.count is None:
        yield Fault("/run/throughput", "is in samples or tokens a second: give the work in samples or tokens")
    if not run.measurements and run.work.flops is None:
        fix = "how fast is it? give throughput, or flops (or tokens and model.parameters)"
        yield Fault("/run/throughput", fix)
    for index, one in enumerate(run.measurements):
        yield from _measurement_faults(f"/run/throughput/{index}", one, run, catalogue)


def _measurement_faults(pointer: str, one: Measurement, run: Run, catalogue: Catalogue) -> Iterator[Fault]:
    if (one.accelerator is None) == (one.instance_type is None):
        yield Fault(pointer, "name the accelerator or the instance_type that it was measured on")
    if one.accelerator is not None:
        yield from check_accelerator(f"{pointer}/accelerator", one.accelerator)
    if one.instance_type is not None:
        yield from check_word(f"{pointer}/instance_type", "instance_type", one.instance_type, catalogue)
        most = max((x.accelerators for x in catalogue.find(instance_type=one.instance_type)), default=0)
        if one.gpus > max(most, 1):
            yield Fault(f"{pointer}/gpus", f"{one.instance_type} has {most:g}")


def _model_faults(run: Run) -> Iterator[Fault]:
    model = run.model
    if model is None:
        return
    shape = (model.layers, model.hidden, model.heads, model.sequence)
    if model.activation_bytes is None and None in shape:
        fix = "give activation_mib_per_sample, or layers, hidden, heads and sequence of a transformer"
        yield Fault("/run/model", f"what do activations take? {fix}")


def _check_gpus(run: Run, listings: list[Listing]) -> None:
    if not run.gpus:
        return
    named = {word.casefold() for word in run.where.instance_types}
    few = {one.instance_type: one.accelerators for one in listings if one.accelerators < run.gpus}
    short = {name: has for name, has in few.items() if name.casefold() in named}
    if short:
        listed = ", ".join(f"{name} has {has:g}" for name, has in sorted(short.items()))
        raise Invalid.at("/run/gpus", f"{run.gpus} are more than there are: {listed}")
    if all(one.accelerators < run.gpus for one in listings):
        counts = sorted({f"{one.accelerators:g}" for one in listings}, key=float)
        raise Invalid.at(
            "/run/gpus", f"no machine asked for has {run.gpus}; there are machines with {', '.join(counts)}"
        )


def _told(where: Where) -> str:
    return ", ".join(f"{name} {'/'.join(words)}" for name, _ in FILTERS if (words := getattr(where, name)))
