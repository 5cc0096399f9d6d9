"""Questions that advice cannot answer because a measurement is missing, and how to obtain it."""

from dataclasses import dataclass

from tuner.planning.advice.evidence import Evidence, sums
from tuner.planning.advice.rules import cpu, data_wait, gpu
from tuner.planning.advice.rules.ranks import LEAST_TRIALS, last_step, predicts


@dataclass(frozen=True, slots=True)
class Missing:
    what: str
    why: str
    how: str


def not_measured(evidence: Evidence) -> list[Missing]:
    """Return the missing measurements, in the order of the rules."""
    found = [
        _gpu(evidence),
        _cpu(evidence),
        _machine(evidence),
        _data_wait(evidence),
        _precision(evidence),
        _saves(evidence),
        _ranks(evidence),
        _spot(evidence),
        _regions(evidence),
    ]
    return [one for one in found if one is not None]


def _gpu(evidence: Evidence) -> Missing | None:
    if not evidence.spec.resources.gpus:
        return None
    samples = sums(evidence.pieces).get("gpu_samples")
    if samples is None:
        why = "no worker could ask NVML of its GPU"
        return Missing(
            "GPU utilisation",
            why,
            "pip install 'tuner[gpu]' on the machines with GPUs; NVML tells nothing of MIG parts",
        )
    if samples < gpu.LEAST_SAMPLES:
        why = f"there are {samples} samples, one a second of training, and {gpu.LEAST_SAMPLES} are needed"
        return Missing("GPU utilisation", why, "train for longer")
    return None


def _cpu(evidence: Evidence) -> Missing | None:
    wall = sums(evidence.measured("wall_ns", "cpu_ns")).get("wall_ns", 0)
    if wall >= cpu.LEAST_WALL_NS:
        return None
    return Missing(
        "processor use",
        f"{wall / 10**9:.1f} s of training were measured, and 10 s are needed",
        "train for longer",
    )


def _machine(evidence: Evidence) -> Missing | None:
    if evidence.home is not None:
        return None
    kind = evidence.offer.instance_type
    why = f"the catalogue {evidence.catalogue.name} has no price of {kind} on the market {evidence.market}"
    return Missing(
        "cheaper machines",
        why,
        "bring prices by `tuner prices --update FILE`, or label nodes with their instance type",
    )


def _data_wait(evidence: Evidence) -> Missing | None:
    counts = sums(evidence.measured("data_wait_ns", "compute_ns"))
    if counts.get("data_wait_ns", 0) + counts.get("compute_ns", 0) >= data_wait.LEAST_WALL_NS:
        return None
    why = "the trainable's loader was not timed for 10 s"
    return Missing("waiting for data", why, "iterate over run.data(loader) of tuner.training.SpotSafe")


def _precision(evidence: Evidence) -> Missing | None:
    if not evidence.spec.resources.gpus or evidence.with_fact("precision", lambda _: True):
        return None
    return Missing(
        "precision", "the trainable does not say which it trains in", "use tuner.training.autocast"
    )


def _saves(evidence: Evidence) -> Missing | None:
    if evidence.measured("saves"):
        return None
    return Missing(
        "checkpoint interval",
        "no worker told of its saves",
        "attempts that reported a step tell",
    )


def _ranks(evidence: Evidence) -> Missing | None:
    last, fidelity = last_step(evidence), evidence.spec.fidelity
    if last is not None and predicts(evidence.curves, fidelity.min, last) is not None:
        return None
    why = f"fewer than {LEAST_TRIALS} trials, or none that differ, have a metric both at step {fidelity.min} and at the last"
    return Missing(
        "whether the fidelity minimum predicts", why, "a larger budget brings more trials to the last step"
    )


def _spot(evidence: Evidence) -> Missing | None:
    if evidence.spec.resources.market != "on_demand" or evidence.spot is not None:
        return None
    why = f"no spot price of {evidence.offer.instance_type} is known"
    return Missing(
        "spot machines", why, "bring prices by `tuner prices --update FILE`, or TUNER_NODE_PRICES=type/spot=…"
    )


def _regions(evidence: Evidence) -> Missing | None:
    places = evidence.places
    if places.compute is not None and places.storage is not None:
        return None
    missing = "where the machines are" if places.compute is None else "where TUNER_STORAGE is"
    return Missing(
        "data between regions",
        f"it is not known {missing}",
        "set TUNER_STORAGE_REGION, and resources.region or the nodes' region labels",
    )
