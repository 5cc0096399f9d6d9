"""The assumptions of an estimate, and warnings about its answers."""

from collections.abc import Iterator

from tuner.domain.time import NS
from tuner.planning.estimates.candidates import Candidate, Ranked
from tuner.planning.estimates.described import (
    EFFICIENCY,
    LINK_SHARE,
    UTILISATION,
    UTILISATION_RANGE,
    Assumption,
    Run,
)
from tuner.planning.estimates.memory import CONTEXT, FRAGMENTS, GIB, RECOMPUTED

CAVEATS = {
    "spot_at_on_demand_cap": "its spot price is at the price on demand: there is no slack",
    "spot_equals_on_demand_in_source": "its source lists spot at the price on demand: no discount, or no data",
    "spot_derived_from_advisor": "its spot price is computed from a published saving, not quoted",
    "listed_in_every_region_regardless_of_stock": "it is listed whether or not there is stock",
    "zone_not_verified": "its source may list it where there is none",
}


def of_run(run: Run) -> tuple[Assumption, ...]:
    return (*_speed(run), *_spot(run), *_several(run), *_memory(run))


def warnings(run: Run, ranked: Ranked) -> Iterator[str]:
    """Yield a warning if no machine fits or meets the deadline, and warnings about the recommended machines.

    These are the cheapest, the cheapest that meets the deadline, and the fastest.
    """
    if not ranked.fitting:
        yield "no machine that was looked at fits the run as it is; see what would with changes, and what was left out"
    if run.deadline_ns is not None and ranked.fitting and ranked.cheapest(in_time=True) is None:
        average = next((one for one in ranked.fitting if one.meets_on_average), None)
        likely = (
            "" if average is None else f"; on average {average.listing.instance_type} does, for {average.usd}"
        )
        yield f"no machine that was looked at surely meets the deadline{likely}"
    named = (ranked.cheapest(), ranked.cheapest(in_time=True), ranked.fastest())
    seen: set[str] = set()
    for one in named:
        caveats = "" if one is None else "; ".join(_caveats(one))
        if one is not None and caveats and caveats not in seen:
            seen.add(caveats)
            yield f"{one.listing.instance_type} in {one.listing.region}: {caveats}"


def _caveats(one: Candidate) -> Iterator[str]:
    for flag in one.listing.flags:
        if flag in CAVEATS and ("spot" not in flag or one.market == "spot"):
            yield CAVEATS[flag]


def _speed(run: Run) -> Iterator[Assumption]:
    if run.measurements:
        yield Assumption(
            "speed elsewhere",
            "catalogued: data sheets' ratio of peak or memory bandwidth, the smaller",
            "measured on one accelerator alone; the range is from a quarter less to the larger ratio",
        )
    elif run.utilisation is None:
        least, most = UTILISATION_RANGE
        value = f"{float(UTILISATION)} of the peak, {float(least)} to {float(most)}"
        yield Assumption("utilisation", value, "published large trainings: Chowdhery et al. 2022, table 3")
    if run.model is None and not run.measurements:
        yield Assumption("precision", "bf16, fp16 where there is no bf16", "no model was described")


def _spot(run: Run) -> Iterator[Assumption]:
    if "spot" not in run.where.markets:
        return
    terms = run.spot
    value = (
        f"interrupted every {terms.mean_ns / NS / 3600:g} h, a save {terms.checkpoint_ns / NS:g} s, "
        f"a restart {terms.restore_ns / NS:g} s and {terms.wait_ns / NS:g} s of waiting, which is not paid"
    )
    yield Assumption("interruptions", value, "Daly 2006; no notice is counted on, none on demand")


def _several(run: Run) -> Iterator[Assumption]:
    if run.gpus in (0, 1) or run.efficiency is not None:
        return
    if run.model is None:
        why = "several GPUs against one, where nothing says how much they talk; no source"
        yield Assumption("efficiency", f"{float(EFFICIENCY)}", why)
        return
    why = "ring all-reduce of the gradients after each step, none of it hidden (Patarasu & Yuan 2009)"
    yield Assumption("link", f"{float(LINK_SHARE)} of the data sheet's bandwidth", why)


def _memory(run: Run) -> Iterator[Assumption]:
    if run.model is None:
        return
    value = f"{CONTEXT // GIB} GiB and 1/{FRAGMENTS} of the rest"
    yield Assumption("memory around", value, "CUDA context, libraries, fragmentation; no source: measure it")
    yield Assumption(
        "changes",
        f"gradient checkpointing takes {RECOMPUTED} of the time; accumulation and a narrower format none",
        "one more forward pass; that bf16 may well be faster is not counted on where speed was measured",
    )
