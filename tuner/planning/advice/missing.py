"""Questions that advice cannot answer because a measurement is missing, and how to obtain that measurement."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.planning.advice.early_stopping import LEAST_TRIALS, last_step, predicts
from tuner.planning.advice.evidence import JobEvidence, sums
from tuner.planning.advice.resources import LEAST_SAMPLES, LEAST_WALL_NS
from tuner.planning.scaling import devices, named


@dataclass(frozen=True, slots=True)
class MissingMeasurement:
    what: str
    why: str
    how: str


def not_measured(evidence: JobEvidence) -> list[MissingMeasurement]:
    """Return the measurements that the rules need and the job lacks, in the order of the rules."""
    return [*_of_machine(evidence), *_of_training(evidence), *_of_market(evidence)]


def _of_machine(evidence: JobEvidence) -> Iterator[MissingMeasurement]:
    samples = sums(evidence.attempts).get("gpu_samples")
    if evidence.spec.resources.gpus and samples is None:
        yield MissingMeasurement(
            "GPU utilisation",
            "no worker could ask NVML of its GPU",
            "pip install 'tuner[gpu]' on the machines with GPUs; NVML tells nothing of MIG parts",
        )
    elif evidence.spec.resources.gpus and samples is not None and samples < LEAST_SAMPLES:
        why = f"there are {samples} samples, one a second of training, and {LEAST_SAMPLES} are needed"
        yield MissingMeasurement("GPU utilisation", why, "train for longer")
    wall = sums(evidence.measured("wall_ns", "cpu_ns")).get("wall_ns", 0)
    if wall < LEAST_WALL_NS:
        why = f"{wall / 10**9:.1f} s of training were measured, and 10 s are needed"
        yield MissingMeasurement("processor use", why, "train for longer")
    size = evidence.spec.resources
    if devices(size) > 1 and evidence.size is None:
        yield MissingMeasurement(
            "scaling efficiency",
            f"step times on {named(size)} and on fewer are not both known well enough: at least three trials of each among the newest "
            "jobs, on the same machine and with the same constants, and an error below 10 %",
            "run the job with fewer"
            if evidence.spec.fidelity.proxies
            else "run a pilot of the job with fewer by tuner pilot",
        )
    if evidence.home is None:
        kind, market = evidence.offer.instance_type, evidence.market
        yield MissingMeasurement(
            "cheaper machines",
            f"the catalogue {evidence.catalogue.name} has no price of {kind} on the market {market}",
            "bring prices by `tuner prices --update FILE`, or label nodes with their instance type",
        )


def _of_training(evidence: JobEvidence) -> Iterator[MissingMeasurement]:
    counts = sums(evidence.measured("data_wait_ns", "compute_ns"))
    if counts.get("data_wait_ns", 0) + counts.get("compute_ns", 0) < LEAST_WALL_NS:
        why = "the trainable's loader was not timed for 10 s"
        yield MissingMeasurement(
            "waiting for data", why, "iterate over run.data(loader) of tuner.training.SpotSafe"
        )
    facts = [attempt.usage.facts for attempt in evidence.attempts if attempt.usage is not None]
    if evidence.spec.resources.gpus and not any("precision" in known for known in facts):
        why = "the trainable does not say which it trains in"
        yield MissingMeasurement("precision", why, "use tuner.training.autocast")
    if not evidence.measured("saves"):
        how = "attempts that reported a step tell"
        yield MissingMeasurement("checkpoint interval", "no worker reported its saves", how)
    last, first = last_step(evidence), evidence.spec.fidelity.min
    if last is None or predicts(evidence.curves, first, last) is None:
        why = f"fewer than {LEAST_TRIALS} trials, or none that differ, have a metric both at step {first} and at the last"
        how = "a larger budget brings more trials to the last step"
        yield MissingMeasurement("whether the fidelity minimum predicts", why, how)


def _of_market(evidence: JobEvidence) -> Iterator[MissingMeasurement]:
    if evidence.spec.resources.market == "on_demand" and evidence.spot is None:
        yield MissingMeasurement(
            "spot machines",
            f"no spot price of {evidence.offer.instance_type} is known",
            "bring prices by `tuner prices --update FILE`, or TUNER_NODE_PRICES=type/spot=…",
        )
    places = evidence.places
    if places.compute is None or places.storage is None:
        missing = "where the machines are" if places.compute is None else "where TUNER_STORAGE is"
        yield MissingMeasurement(
            "data between regions",
            f"it is not known {missing}",
            "set TUNER_STORAGE_REGION, and resources.region or the nodes' region labels",
        )
    if places.data is None and sums(evidence.attempts).get("data_bucket_bytes"):
        yield MissingMeasurement(
            "datasets from another region",
            "it is not known where their buckets are",
            "set TUNER_DATA_REGION",
        )
