"""Questions that advice cannot answer because a measurement is missing, and how to obtain that measurement."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.planning.advice.early_stopping import LEAST_TRIALS, last_step, predicts
from tuner.planning.advice.evidence import JobEvidence, sums
from tuner.planning.advice.resources import LEAST_SAMPLES, LEAST_WALL_NS
from tuner.planning.measured_scaling import devices, named
from tuner.tuning.rungs import rungs_of


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
            "no worker could query NVML for its GPU",
            "pip install 'tuner[gpu]' on the machines with GPUs; NVML does not report the utilisation of MIG instances",
        )
    elif evidence.spec.resources.gpus and samples is not None and samples < LEAST_SAMPLES:
        why = f"only {samples} samples were taken, one per second of training; {LEAST_SAMPLES} are needed"
        yield MissingMeasurement("GPU utilisation", why, "train for longer")
    wall = sums(evidence.measured("wall_ns", "cpu_ns")).get("wall_ns", 0)
    if wall < LEAST_WALL_NS:
        why = f"{wall / 10**9:.1f} s of training were measured; 10 s are needed"
        yield MissingMeasurement("processor use", why, "train for longer")
    size = evidence.spec.resources
    if devices(size) > 1 and evidence.size is None:
        yield MissingMeasurement(
            "scaling efficiency",
            f"step times are not known well enough both on {named(size)} and on fewer: among the newest jobs, at least three trials of each "
            "size are needed, on the same machine type and with the same constants, and with an error below 10 %",
            "run the job with fewer GPUs or processes"
            if evidence.spec.fidelity.proxies
            else "run a pilot of the job with fewer GPUs or processes, with `tuner pilot`",
        )
    if evidence.home is None:
        kind, market = evidence.offer.instance_type, evidence.market
        yield MissingMeasurement(
            "cheaper machines",
            f"the catalogue {evidence.catalogue.name} has no price for {kind} on the market {market}",
            "install prices with `tuner prices --update FILE`, or label nodes with their instance type",
        )


def _of_training(evidence: JobEvidence) -> Iterator[MissingMeasurement]:
    counts = sums(evidence.measured("data_wait_ns", "compute_ns"))
    if counts.get("data_wait_ns", 0) + counts.get("compute_ns", 0) < LEAST_WALL_NS:
        why = "less than 10 s of training were timed with run.data"
        yield MissingMeasurement(
            "waiting for data", why, "iterate over run.data(loader) of tuner.training.SpotSafe"
        )
    facts = [attempt.usage.facts for attempt in evidence.attempts if attempt.usage is not None]
    if evidence.spec.resources.gpus and not any("precision" in known for known in facts):
        why = "the trainable does not report the precision of its training"
        yield MissingMeasurement("precision", why, "use tuner.training.autocast")
    if not evidence.measured("saves"):
        how = "train until an attempt has reported a step"
        yield MissingMeasurement("checkpoint interval", "no worker reported its saves", how)
    if evidence.spec.fidelity.proxies:
        return  # their metrics at different steps are not comparable, so no rule uses the ranking
    last, first = last_step(evidence), next(iter(rungs_of(evidence.spec)), evidence.spec.fidelity.min)
    if last is None or predicts(evidence.curves, first, last) is None:
        why = f"fewer than {LEAST_TRIALS} trials have a metric both at step {first} and at the last step, or all of them are equal"
        how = "set a larger budget, which trains more trials to the last step"
        yield MissingMeasurement("whether fidelity.min predicts the final ranking", why, how)


def _of_market(evidence: JobEvidence) -> Iterator[MissingMeasurement]:
    if evidence.spec.resources.market == "on_demand" and evidence.spot is None:
        yield MissingMeasurement(
            "spot machines",
            f"no spot price of {evidence.offer.instance_type} is known",
            "install prices with `tuner prices --update FILE`, or set TUNER_NODE_PRICES=type/spot=…",
        )
    places = evidence.places
    if places.compute is None or places.storage is None:
        missing = "the machines" if places.compute is None else "TUNER_STORAGE"
        yield MissingMeasurement(
            "data between regions",
            f"the region of {missing} is not known",
            "set TUNER_STORAGE_REGION, and resources.region or the nodes' region labels",
        )
    if places.data is None and sums(evidence.attempts).get("data_bucket_bytes"):
        yield MissingMeasurement(
            "datasets from another region",
            "the region of the buckets is not known",
            "set TUNER_DATA_REGION",
        )
