"""Validation of a described run, the assumptions of its estimate, and warnings about the estimate's results."""

from collections.abc import Collection, Iterator
from fractions import Fraction

from tuner.domain.errors import Fault, Invalid
from tuner.domain.listing import Listing
from tuner.domain.text import nearest, suggested
from tuner.domain.time import NS
from tuner.domain.units import GIB
from tuner.planning.accelerators import ACCELERATORS, accelerator
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates.candidates import Ranked
from tuner.planning.estimates.described import (
    EFFICIENCY,
    LINK_SHARE,
    UTILISATION,
    UTILISATION_RANGE,
    ListingFilter,
    Measurement,
    RunWork,
    ServingQuestion,
    StatedAssumption,
    TrainingRun,
)
from tuner.planning.estimates.memory import CONTEXT, FRAGMENTS, RECOMPUTED

CAVEATS = {
    "spot_at_on_demand_cap": "its spot price is as high as its on-demand price, so spot saves nothing",
    "spot_equals_on_demand_in_source": "its source lists the on-demand price as the spot price: no discount, or no data",
    "spot_derived_from_advisor": "its spot price is computed from a published discount, not quoted",
    "listed_in_every_region_regardless_of_stock": "it is listed even if the cloud has none in stock",
    "zone_not_verified": "its source may list it in zones that do not have it",
}


def assumptions(run: TrainingRun) -> tuple[StatedAssumption, ...]:
    return (*_speed(run), *_spot(run), *_several(run), *_memory(run))


def warnings(run: TrainingRun, ranked: Ranked) -> Iterator[str]:
    """Yield a warning if no machine fits, one if none meets the deadline, and one for each caveat about a recommended machine.

    The recommended machines are the cheapest, the cheapest that meets the deadline, and the fastest.
    """
    if not ranked.fitting:
        yield "no machine fits the run as described; see the machines that fit with changes, and those that were left out"
    if run.deadline_ns is not None and ranked.fitting and ranked.cheapest(in_time=True) is None:
        average = next((candidate for candidate in ranked.fitting if candidate.meets_on_average), None)
        likely = (
            ""
            if average is None
            else f"; on average, {average.listing.instance_type} meets it, for {average.usd}"
        )
        yield f"no machine is certain to meet the deadline{likely}"
    named = (ranked.cheapest(), ranked.cheapest(in_time=True), ranked.fastest())
    seen: set[str] = set()
    for candidate in named:
        if candidate is None:
            continue
        flags = [flag for flag in candidate.listing.flags if "spot" not in flag or candidate.market == "spot"]
        caveats = "; ".join(CAVEATS[flag] for flag in flags if flag in CAVEATS)
        if caveats and caveats not in seen:
            seen.add(caveats)
            yield f"{candidate.listing.instance_type} in {candidate.listing.region}: {caveats}"


def _speed(run: TrainingRun) -> Iterator[StatedAssumption]:
    if run.measurements:
        yield StatedAssumption(
            "speed on other accelerators",
            "catalogued: the smaller of the ratios of peaks and of memory bandwidths in data sheets",
            "not measured there; the range is from a quarter less to the larger ratio",
        )
    elif run.utilisation is None:
        least, most = UTILISATION_RANGE
        value = f"{float(UTILISATION)} of the peak performance, {float(least)} to {float(most)}"
        yield StatedAssumption(
            "utilisation", value, "published large trainings: Chowdhery et al. 2022, table 3"
        )
    if run.model is None and not run.measurements:
        yield StatedAssumption("precision", "bf16, or fp16 on GPUs without bf16", "no model was described")


def _spot(run: TrainingRun) -> Iterator[StatedAssumption]:
    if "spot" not in run.where.markets:
        return
    terms = run.spot
    value = (
        f"one every {terms.mean_ns / NS / 3600:g} h; a save takes {terms.checkpoint_ns / NS:g} s, a restart "
        f"{terms.restore_ns / NS:g} s, and the wait for a machine, which is not paid, {terms.wait_ns / NS:g} s"
    )
    yield StatedAssumption(
        "interruptions",
        value,
        "Daly 2006; notices are not taken into account, and on-demand machines are not interrupted",
    )


def _several(run: TrainingRun) -> Iterator[StatedAssumption]:
    if run.gpus in (0, 1) or run.efficiency is not None:
        return
    if run.scaling is not None:
        jobs = ", ".join(dict.fromkeys(job for size in run.scaling.sizes for job in size.jobs))
        why = f"{jobs}; on other GPUs and over other links, the efficiency is {'assumed' if run.model is None else 'computed'}"
        yield StatedAssumption("efficiency", f"measured on {run.scaling.accelerator}", why)
    if run.model is None:
        why = "several GPUs relative to one, if their communication is not known; without a source"
        yield StatedAssumption("efficiency", f"{float(EFFICIENCY)}", why)
        return
    why = "ring all-reduce of the gradients after each step, not hidden behind computation (Patarasu & Yuan 2009)"
    yield StatedAssumption("link", f"{float(LINK_SHARE)} of the data sheet's bandwidth", why)


def _memory(run: TrainingRun) -> Iterator[StatedAssumption]:
    if run.model is None:
        return
    value = f"{CONTEXT // GIB} GiB and 1/{FRAGMENTS} of the rest"
    yield StatedAssumption(
        "memory overhead", value, "CUDA context, libraries and fragmentation; without a source: measure it"
    )
    yield StatedAssumption(
        "changes",
        f"gradient checkpointing takes {RECOMPUTED} of the time; gradient accumulation and a 16-bit format cost no time",
        "one more forward pass; if the speed was measured, it is not increased for bf16, which may be faster",
    )


FILTERS = (
    ("clouds", "cloud"),
    ("regions", "region"),
    ("accelerators", "accelerator"),
    ("instance_types", "instance_type"),
)


def check_run(run: TrainingRun, catalogue: Catalogue) -> list[Listing]:
    """Validate the description of a run, and return the listings on which to evaluate the run.

    Raises:
        Invalid: The description is not valid, or no listing matches it.
    """
    faults = [*_filter_faults("/run", run.where, catalogue)]
    faults += [*_speed_faults(run, catalogue), *_model_faults(run)]
    if run.deadline_ns is not None and run.deadline_ns <= 0:
        faults.append(Fault("/run/deadline", "has passed: give a future time, or a duration such as 12h"))
    if faults:
        raise Invalid(*faults)
    listings = _listings_in("/run", run.where, catalogue)
    _check_gpus(run, listings)
    return listings


def check_serving(asked: ServingQuestion, catalogue: Catalogue) -> list[Listing]:
    """Validate a request for the cost of predictions, and return the listings on which to price the model.

    Raises:
        Invalid: The request is not valid, or no listing matches it.
    """
    faults = [*_filter_faults("/serving", asked.where, catalogue)]
    speed = asked.model.speed
    if speed.best_per_second < speed.per_second:
        detail = f"must be at least {speed.per_second:g}, the rate of single predictions; give the rate at the fastest batch size"
        faults.append(Fault("/serving/batch_per_second", detail))
    if asked.gpus and not (asked.where.accelerators or asked.where.instance_types):
        detail = "the speed of a model differs between GPUs; name the GPU that it was measured on in accelerators or instance_types"
        faults.append(Fault("/serving/accelerators", detail))
    if faults:
        raise Invalid(*faults)
    return _listings_in("/serving", asked.where, catalogue)


def _filter_faults(pointer: str, where: ListingFilter, catalogue: Catalogue) -> Iterator[Fault]:
    for name, field in FILTERS:
        for index, word in enumerate(getattr(where, name)):
            yield from check_word(f"{pointer}/{name}/{index}", field, word, catalogue)
    if not where.markets:
        yield Fault(f"{pointer}/markets", "is empty: name on_demand, spot or both")


def _listings_in(pointer: str, where: ListingFilter, catalogue: Catalogue) -> list[Listing]:
    listings = listings_in(where, catalogue)
    if not listings:
        words = {name: "/".join(getattr(where, name)) for name, _ in FILTERS if getattr(where, name)}
        wanted = ", ".join(f"{name} {values}" for name, values in words.items())
        raise Invalid.at(pointer, f"no machine of the catalogue {catalogue.name} has all of {wanted}")
    return listings


def listings_in(where: ListingFilter, catalogue: Catalogue) -> list[Listing]:
    wanted = [
        (field, {_name(field, word) for word in words})
        for name, field in FILTERS
        if (words := getattr(where, name))
    ]
    return [
        listing
        for listing in catalogue.listings
        if all(_name(field, str(getattr(listing, field))) in words for field, words in wanted)
    ]


def check_accelerator(pointer: str, name: str) -> Iterator[Fault]:
    """Yield a fault if the accelerator `name` has no data sheet. `pointer` is the name's place in the request."""
    if accelerator(name) is None:
        known = suggested(nearest(name, ACCELERATORS), list(ACCELERATORS))
        yield Fault(pointer, f"no data sheet is known for the accelerator {name!r}; {known}")


def check_word(pointer: str, field: str, word: str, catalogue: Catalogue) -> Iterator[Fault]:
    """Yield a fault if no listing of the catalogue has the value `word` in the field `field`. `pointer` is the word's place in the request."""
    known = catalogue.values_of("accelerator")
    if field == "accelerator" and any(_name(field, word) == _name(field, known_word) for known_word in known):
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
) -> RunWork:
    """Return the amount of work of a run, with its FLOPs if they are known.

    `samples` and `tokens` are those of one epoch. If `flops` is None, the FLOPs are computed: `flops_per_sample` for each sample, or 6 per
    token and parameter (Kaplan et al. 2020).

    Raises:
        Invalid: The work is missing, or is given both in samples and in tokens.
    """
    if samples is not None and tokens is not None:
        raise Invalid.at("/run/tokens", "count the work in samples or in tokens, not in both")
    if samples is None and tokens is None and flops is None:
        raise Invalid.at(
            "/run", "the amount of work is missing; give samples (of one epoch, with epochs), tokens or flops"
        )
    if tokens is not None:
        known = None if parameters is None else 6 * parameters * tokens * epochs
        return RunWork(count=tokens * epochs, unit="tokens", flops=known if flops is None else flops)
    if samples is not None:
        each = None if flops_per_sample is None else flops_per_sample * samples * epochs
        return RunWork(count=samples * epochs, flops=each if flops is None else flops)
    return RunWork(count=None, flops=flops)


def timed_run(
    hours: Fraction, *, where: ListingFilter, gpus: int | None, others: Collection[str]
) -> tuple[RunWork, Measurement]:
    """Describe a run by the hours that it takes on one accelerator or instance type.

    Return the work, counted in hours, and a measured speed of one hour of work per hour on that machine.

    Args:
        hours: The duration of the whole run with `gpus` GPUs.
        where: The machine. It must name exactly one accelerator or one instance type.
        gpus: The number of GPUs that the run uses. It must not be None, because machines differ in their number of GPUs.
        others: The names of fields in the request that also describe work or speed. It must be empty.

    Raises:
        Invalid: `where`, `gpus` or `others` does not meet its condition.
    """
    if others:
        raise Invalid.at("/run/hours", f"give hours, or {', '.join(sorted(others))}, not both")
    names = (*where.accelerators, *where.instance_types)
    if len(names) != 1:
        fix = "name one machine in accelerators or in instance_types"
        raise Invalid.at("/run/hours", f"hours are the run's duration on one machine type; {fix}")
    if gpus is None:
        raise Invalid.at(
            "/run/gpus",
            "the number of GPUs is missing: give the number on which the run took the hours in /run/hours",
        )
    measured = Measurement(
        per_second=Fraction(1, 3600),
        accelerator=names[0] if where.accelerators else None,
        instance_type=names[0] if where.instance_types else None,
        gpus=gpus,
    )
    return RunWork(count=hours, unit="hours"), measured


def _name(field: str, word: str) -> str:
    kind = accelerator(word) if field == "accelerator" else None
    return (word if kind is None else kind.name).casefold()


def _speed_faults(run: TrainingRun, catalogue: Catalogue) -> Iterator[Fault]:
    if run.measurements and run.work.count is None:
        yield Fault("/run/throughput", "is in samples or tokens a second: give the work in samples or tokens")
    if not run.measurements and run.work.flops is None:
        fix = "the speed of the run is missing; give throughput, or flops (or tokens and model.parameters)"
        yield Fault("/run/throughput", fix)
    for index, measurement in enumerate(run.measurements):
        yield from _measurement_faults(f"/run/throughput/{index}", measurement, run, catalogue)


def _measurement_faults(
    pointer: str, measurement: Measurement, run: TrainingRun, catalogue: Catalogue
) -> Iterator[Fault]:
    if (measurement.accelerator is None) == (measurement.instance_type is None):
        yield Fault(
            pointer, "name either the accelerator or the instance_type on which the throughput was measured"
        )
    if measurement.accelerator is not None:
        yield from check_accelerator(f"{pointer}/accelerator", measurement.accelerator)
    if measurement.instance_type is not None:
        yield from check_word(
            f"{pointer}/instance_type", "instance_type", measurement.instance_type, catalogue
        )
        most = max(
            (x.accelerators for x in catalogue.find(instance_type=measurement.instance_type)), default=0
        )
        if measurement.gpus > max(most, 1):
            yield Fault(f"{pointer}/gpus", f"{measurement.instance_type} has at most {most:g} GPUs")


def _model_faults(run: TrainingRun) -> Iterator[Fault]:
    model = run.model
    if model is None:
        return
    shape = (model.layers, model.hidden, model.heads, model.sequence)
    if model.activation_bytes is None and None in shape:
        fix = "give activation_mib_per_sample, or layers, hidden, heads and sequence of a transformer"
        yield Fault("/run/model", f"the memory of activations is missing; {fix}")


def _check_gpus(run: TrainingRun, listings: list[Listing]) -> None:
    if not run.gpus:
        return
    named = {word.casefold() for word in run.where.instance_types}
    few = {
        listing.instance_type: listing.accelerators for listing in listings if listing.accelerators < run.gpus
    }
    short = {name: has for name, has in few.items() if name.casefold() in named}
    if short:
        listed = ", ".join(f"{name} has {has:g}" for name, has in sorted(short.items()))
        raise Invalid.at("/run/gpus", f"a requested machine has fewer than {run.gpus} GPUs: {listed}")
    if all(listing.accelerators < run.gpus for listing in listings):
        counts = sorted({f"{listing.accelerators:g}" for listing in listings}, key=float)
        raise Invalid.at(
            "/run/gpus", f"none of the requested machines has {run.gpus} GPUs; they have {', '.join(counts)}"
        )
