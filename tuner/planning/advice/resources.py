"""Rules about the resources of a trial: GPU, processors, memory, input data, number format and number of GPUs."""

import math
from fractions import Fraction

from tuner.domain.job import Resources
from tuner.domain.listing import Listing
from tuner.domain.money import ZERO, Money
from tuner.domain.offer import Offer
from tuner.domain.time import HOUR_NS
from tuner.domain.units import GIB
from tuner.planning.accelerators import accelerator, chip_of, relative_speed
from tuner.planning.advice.evidence import (
    AdviceFinding,
    AdvisedChange,
    JobEvidence,
    MeasuredAttempt,
    fact,
    gpu_busy,
    peak,
    portion,
    share,
    spent_on,
    sums,
)
from tuner.planning.measured_scaling import named

LEAST_WALL_NS = 10 * 10**9  # training that must have been measured before a rule about its time applies

# GPU
LEAST_SAMPLES = 30  # one sample per second of training; fewer could miss a load that comes in bursts
GPU_IDLE_BELOW = Fraction(1, 2)
# Two trials fit on one GPU if together they keep it busy for at most this share of the time and use at most this share of its memory.
SHARED_WITHIN = Fraction(9, 10)
GPU_MEMORY_SPARE = Fraction(11, 10)
# A way to use the GPU better: the change, the money it saves, and a text that says how the saving was computed.
GpuOption = tuple[AdvisedChange, Money, str]


def gpu_underused(evidence: JobEvidence) -> AdviceFinding | None:
    """Find GPUs that are idle for most of the training. Trials could then share a GPU, use a smaller one, or train larger batches."""
    attempts = evidence.measured("gpu_samples", "gpu_percent")
    samples, busy = sums(attempts).get("gpu_samples", 0), gpu_busy(attempts)
    if not evidence.spec.resources.gpus or samples < LEAST_SAMPLES or busy is None or busy >= GPU_IDLE_BELOW:
        return None
    used, has = peak(attempts, "gpu_memory_peak_bytes"), fact(attempts, "gpu_memory_bytes")
    memory = share(used, has) if used is not None and isinstance(has, int) else None
    options = [_shared_gpu(evidence, attempts, busy, memory), _smaller_gpu(evidence, attempts, busy, used)]
    savings = sorted(
        (option for option in options if option is not None and option[1].micro_usd > 0),
        key=lambda option: -option[1].micro_usd,
    )
    changes = [change for change, *_ in savings]
    if memory is not None and 2 * memory <= SHARED_WITHIN:
        changes.append(_larger_batch(attempts))
    if not changes:
        return None
    return AdviceFinding(
        kind="gpu_underused",
        title=f"The GPU was busy for {float(busy):.0%} of the training",
        evidence={
            "gpu_utilisation": busy,
            "gpu_samples": samples,
            "gpu": str(fact(attempts, "gpu") or evidence.offer.instance_type),
            "gpu_memory_peak_bytes": used,
            "gpu_memory_bytes": has if isinstance(has, int) else None,
            "train_usd": spent_on(attempts, "train"),
        },
        change=changes[0],
        alternatives=tuple(changes[1:]),
        saves=savings[0][1] if savings else None,
        saves_note=savings[0][2]
        if savings
        else "not known: only a trial run shows how much faster larger batches are",
        verify="run two or three configurations with and without the change, with the same seeds, and compare the metric, the seconds per step "
        "and the cost at the same step; keep the change if the cost falls and the metric stays within its spread between seeds",
        confidence="medium" if savings else "low",
    )


def _shared_gpu(
    evidence: JobEvidence, attempts: tuple[MeasuredAttempt, ...], busy: Fraction, memory: Fraction | None
) -> GpuOption | None:
    """Return the option to let two trials share a GPU. Return None if two trials would not fit, or if a trial uses several GPUs.

    A trial that uses several GPUs has them alone. With fewer of them, each would have to do more, so the training would take longer.

    `busy` is the share of the time in which the GPU was busy. `memory` is the largest used share of its memory, or None if not known.
    """
    gpus = evidence.spec.resources.gpus
    if gpus > 1 or 2 * busy > SHARED_WITHIN or memory is None or 2 * memory > SHARED_WITHIN:
        return None
    then = gpus / 2
    new, old = evidence.rate(gpus=then).price, evidence.rate().price
    cheaper = 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour)
    change = AdvisedChange(
        "resources.gpus",
        f"{gpus:g}",
        f"{then:g}",
        "two trials then share the GPU that one trial has now; both fit into its memory",
    )
    note = f"the same training time at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars per hour and trial"
    return change, portion(spent_on(attempts, "train"), cheaper), note


def _smaller_gpu(
    evidence: JobEvidence, attempts: tuple[MeasuredAttempt, ...], busy: Fraction, used: int | None
) -> GpuOption | None:
    """Return the option to use another GPU: the machine on which the same training is cheapest.

    Only cheaper machines are considered. Return None if none of them has enough GPU memory and a known speed. The estimate assumes that
    a slower GPU lengthens only the time in which the GPU is busy. It uses the minimum relative speed by data sheets (`relative_speed`).

    Args:
        evidence: The job.
        attempts: The attempts whose GPU was measured.
        busy: The share of the time in which the GPU was busy.
        used: The largest memory used on a GPU, in bytes. None if it is not known.
    """
    home, size = evidence.home, evidence.spec.resources
    if home is None or used is None or not home.accelerator:
        return None

    def fits(listing: Listing) -> bool:
        memory = listing.gpu_memory_gib
        return (
            bool(listing.accelerator) and memory is not None and int(memory * GIB) >= used * GPU_MEMORY_SPARE
        )

    best: GpuOption | None = None
    for listing in evidence.neighbours(fits):
        price, speed = listing.price(evidence.market), relative_speed(chip_of(home), chip_of(listing))
        if price is None or speed is None or speed[0] <= 0:
            continue
        offer = Offer(listing.instance_type, price, listing.vcpus, listing.accelerators)
        trial_price = offer.rate(size).price
        slower = 1 - busy + busy / min(speed[0], Fraction(1))
        new = sum(
            -(-int(attempt.ns("train") * slower) * trial_price.micro_usd_per_hour // HOUR_NS)
            for attempt in attempts
        )
        saves = Money(spent_on(attempts, "train").micro_usd - new)
        if best is None or saves > best[1]:
            change = AdvisedChange(
                "resources.instance_type",
                evidence.offer.instance_type,
                listing.instance_type,
                f"{listing.accelerator} at {trial_price.usd_per_hour:g} dollars per hour and trial, in {listing.region}; its memory "
                "is at least a tenth larger than the used memory",
            )
            note = f"by data sheets, training takes {float(slower):.2f} times as long; prices from {evidence.catalogue.name}"
            best = change, saves, note
    return best


def _larger_batch(attempts: tuple[MeasuredAttempt, ...]) -> AdvisedChange:
    batch = fact(attempts, "batch_size")
    now = str(batch) if isinstance(batch, int) and not isinstance(batch, bool) else None
    then = str(int(now) * 2) if now is not None else "twice the present value"
    how = "tune the learning rate again, because the best one depends on the batch size; a doubled batch needs at most twice the memory"
    return AdvisedChange("batch_size of the trainable", now, then, how)


CPU_IDLE_BELOW = Fraction(1, 2)
CPU_SPARE = Fraction(5, 4)
LEAST_CPUS = Fraction(1, 2)


def _shares_workers(evidence: JobEvidence) -> bool:
    """Return whether trials share workers. What an attempt then used itself is only a part of what its worker used."""
    return evidence.spec.resources.pack > 1


def cpu_underused(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs whose trials reserve many more processors than they use."""
    attempts, cpus = evidence.measured("wall_ns", "cpu_ns"), Fraction(str(evidence.spec.resources.cpus))
    counts = sums(attempts)
    wall = counts.get("wall_ns", 0)
    cores = share(counts.get("cpu_ns", 0), wall)
    if _shares_workers(evidence) or wall < LEAST_WALL_NS or cores >= CPU_IDLE_BELOW * cpus:
        return None
    then = max(LEAST_CPUS, Fraction(math.ceil(cores * CPU_SPARE * 2), 2))
    new, old = evidence.rate(cpus=float(then)).price, evidence.rate().price
    saves = portion(spent_on(attempts), 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour))
    if then >= cpus or saves.micro_usd <= 0:
        return None  # fewer processors save nothing, for example because the GPU determines the price
    return AdviceFinding(
        kind="cpu_underused",
        title=f"A trial used {float(cores):.1f} of its {float(cpus):g} processors",
        evidence={
            "cores_used": cores,
            "cpus": cpus,
            "wall_seconds": Fraction(wall, 10**9),
            "spent_usd": spent_on(attempts),
        },
        change=AdvisedChange(
            "resources.cpus",
            f"{float(cpus):g}",
            f"{float(then):g}",
            "more trials then fit on a machine, so each has a smaller share of its memory",
        ),
        saves=saves,
        saves_note=f"the same time at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars per hour and trial",
        verify="train one configuration with the same seed at both sizes, and compare the seconds per step and the peak memory; the metric "
        "at the same step must be the same",
        confidence="medium",
    )


MEMORY_UNUSED_BELOW = Fraction(1, 2)
MEMORY_SPARE = Fraction(5, 4)
LEAST_CHEAPER = Fraction(1, 20)


def memory_unused(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs on machines with much more memory than the trials use, if a cheaper machine has enough memory."""
    attempts, home, size = evidence.measured("memory_peak_bytes"), evidence.home, evidence.spec.resources
    used = peak(attempts, "memory_peak_bytes")
    if used is None or home is None or home.memory_gib is None or _shares_workers(evidence):
        return None
    # The machine needs memory for as many trials as fit on it by processors and GPUs.
    fitting = [int(home.vcpus / size.cpus)] if size.cpus else []
    fitting += [int(home.accelerators / size.gpus)] if size.gpus else []
    has, needs = int(home.memory_gib * GIB), int(used * MEMORY_SPARE) * max(1, min(fitting, default=1))
    if needs >= has * MEMORY_UNUSED_BELOW:
        return None

    def fits(other: Listing) -> bool:
        return (
            (other.accelerator, other.accelerators, other.vcpus)
            == (home.accelerator, home.accelerators, home.vcpus)
            and other.memory_gib is not None
            and other.memory_gib * GIB >= needs
        )

    leaner = evidence.neighbours(fits)
    if not leaner:
        return None
    old, new = home.price(evidence.market), leaner[0].price(evidence.market)
    assert old is not None
    assert new is not None
    cheaper = 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour)
    if cheaper < LEAST_CHEAPER:
        return None
    return AdviceFinding(
        kind="memory_unused",
        title=f"A trial used {used / GIB:.1f} GiB of memory, on a machine that has {home.memory_gib:g} GiB",
        evidence={
            "memory_peak_bytes": used,
            "machine_bytes": has,
            "needed_bytes": needs,
            "spent_usd": spent_on(attempts),
        },
        change=AdvisedChange(
            "resources.instance_type",
            home.instance_type,
            leaner[0].instance_type,
            f"{leaner[0].memory_gib:g} GiB and as many processors at {new.usd_per_hour:g} dollars per hour, in {home.region}; "
            "check that its processors are as fast",
        ),
        saves=portion(spent_on(attempts), cheaper),
        saves_note=f"the same time at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars per hour; prices from {evidence.catalogue.name}",
        verify="train one configuration with the same seed there: the peak memory must stay below a trial's share of the memory, and the "
        "seconds per step and the metric must not change",
        confidence="low",
    )


WAITS_ABOVE = Fraction(1, 5)
BUSY_GPU = Fraction(9, 10)


def input_bound(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs whose training often waits for its input data.

    If the GPU is busy most of the time, return nothing: the GPU computes while the program waits, so faster input would not help.
    """
    attempts = evidence.measured("data_wait_ns", "compute_ns")
    counts = sums(attempts)
    wait, compute = counts.get("data_wait_ns", 0), counts.get("compute_ns", 0)
    waits = share(wait, wait + compute)
    if wait + compute < LEAST_WALL_NS or waits <= WAITS_ABOVE or (gpu_busy(attempts) or 0) >= BUSY_GPU:
        return None
    workers = fact(attempts, "loader_workers")
    known_workers = int(workers) if isinstance(workers, int) else None
    change, *others = _faster_input(int(evidence.spec.resources.cpus), known_workers)
    trained = spent_on(attempts, "train")
    return AdviceFinding(
        kind="input_bound",
        title=f"Training waited for data for {float(waits):.0%} of its time",
        evidence={
            "data_wait_share": waits,
            "data_wait_seconds": Fraction(wait, 10**9),
            "compute_seconds": Fraction(compute, 10**9),
            "loader_workers": known_workers,
            "train_usd": trained,
        },
        change=change,
        alternatives=tuple(others),
        # If batches are prepared in parallel with training, a step takes as long as the longer of waiting and computing, so the shorter is saved.
        saves=portion(trained, min(waits, 1 - waits)),
        saves_note="at most this: if batches are prepared while the model computes, a step takes as long as the longer of waiting and computing",
        verify="train one configuration with the same seed (and fixed seeds for the loader's workers), and compare the seconds per step and the "
        "share of waiting; the metric at each step must not change",
        confidence="medium",
    )


def _faster_input(cpus: int, workers: int | None) -> list[AdvisedChange]:
    cached = AdvisedChange(
        "the trainable's data",
        None,
        "preprocessed once, cached",
        "decode and transform once, keep the result on the local disk or in memory",
    )
    prefetch = AdvisedChange(
        "prefetch_factor of the DataLoader", None, "4", "with pin_memory=True if the trial has a GPU"
    )
    more = AdvisedChange(
        "num_workers of the DataLoader",
        None if workers is None else str(workers),
        str(max(2, cpus, 2 * (workers or 0))),
        f"each worker uses a processor, and a trial has {cpus}; efficient_loader chooses the number and keeps the workers between epochs. With "
        "persistent_workers=True, a resumed trial draws other random numbers",
    )
    return [more, prefetch, cached] if workers is None or workers < cpus else [cached, prefetch, more]


# The tensor cores of NVIDIA's GPUs support bf16 since compute capability 8.0 (Ampere).
BF16_SINCE = 8
# How many times as fast the GPU is assumed to work in bf16 as in fp32, because half the bytes are moved and tensor cores compute the
# products. NVIDIA reports speedups of 1.5 to 3.3 for mixed precision compared to fp32 (developer.nvidia.com, "Mixed Precision Training",
# 2017 to 2020).
BF16_FASTER = Fraction(2)


def fp32_where_bf16(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs that train in fp32 on GPUs that support bf16."""
    attempts = tuple(
        attempt
        for attempt in evidence.attempts
        if attempt.usage is not None and attempt.usage.facts.get("precision") == "fp32"
    )
    if not evidence.spec.resources.gpus or not attempts or not _has_bf16(evidence, attempts):
        return None
    trained, busy = spent_on(attempts, "train"), gpu_busy(attempts)
    timed = [attempt for attempt in attempts if attempt.usage is not None and attempt.usage.gpu_samples]
    saves = None if busy is None else portion(spent_on(timed, "train"), busy * (1 - 1 / BF16_FASTER))
    return AdviceFinding(
        kind="fp32_where_bf16",
        title="Training in fp32 on a GPU that supports bf16",
        evidence={
            "precision": "fp32",
            "gpu": str(fact(attempts, "gpu") or (evidence.home.accelerator if evidence.home else "")),
            "gpu_capability": str(fact(attempts, "gpu_capability") or "") or None,
            "gpu_utilisation": busy,
            "train_usd": trained,
            "share_of_spend": share(trained.micro_usd, evidence.spent.micro_usd),
        },
        change=AdvisedChange(
            "precision of the trainable",
            "fp32",
            "bf16",
            "tuner.training.autocast('bf16', 'cuda'); weights and optimizer stay in fp32",
        ),
        saves=saves,
        saves_note="not known: it depends on the share of matrix products in a step; measure a few steps of one configuration"
        if saves is None
        else f"if the GPU is busy for 1/{BF16_FASTER} of the time, which is common; measure a few steps of one configuration",
        verify="train the best configuration with three seeds in both formats and compare the metric at the last step; bf16 has only 8 bits of "
        "precision, so check losses that sum over many values, and small learning rates",
        confidence="low",
    )


def _has_bf16(evidence: JobEvidence, attempts: tuple[MeasuredAttempt, ...]) -> bool:
    capability = fact(attempts, "gpu_capability")
    if isinstance(capability, str) and capability.partition(".")[0].isdecimal():
        return int(capability.partition(".")[0]) >= BF16_SINCE
    home = evidence.home
    known = accelerator(home.accelerator, home.gpu_memory_gib) if home is not None else None
    return known is not None and known.bf16


# Scaling
SCALES_ABOVE = Fraction(4, 5)


def scaling_inefficient(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs whose trials use several GPUs or processes inefficiently: a step with fewer GPUs or processes would have cost less."""
    own = evidence.size
    if own is None or own.efficiency >= SCALES_ABOVE:
        return None
    trained, price = spent_on(evidence.attempts, "train"), evidence.rate().price.micro_usd_per_hour
    savings = [
        (portion(trained, 1 - share(rate.micro_usd_per_hour, price) * size.step_ratio / own.step_ratio), size)
        for size in evidence.sizes
        if size.devices < own.devices
        for rate in [evidence.offer.rate(size.resources).price]
    ]
    saves, best = max(savings, key=lambda saving: saving[0].micro_usd, default=(ZERO, own))
    if saves == ZERO:
        return None
    many, few = named(own.resources), named(best.resources)
    at_once = own.devices // best.devices
    return AdviceFinding(
        kind="scaling_inefficient",
        title=f"{many} run at {float(own.efficiency):.0%} efficiency: the same steps on {few}"
        f"{f', {at_once} trials at once,' if at_once > 1 else ''} would have cost {saves} less",
        evidence={
            "efficiency": own.efficiency,
            "relative_error": Fraction(own.error).limit_denominator(10**6),
            "step_ratio": own.step_ratio / best.step_ratio,
            "trials": own.trials,
            "compared_with": f"{best.trials} trials on {few} of {', '.join(best.jobs)}",
            "train_usd": trained,
        },
        change=_smaller_size(own.resources, best.resources),
        saves=saves,
        saves_note=f"training × (1 − price × step time on {few} ÷ price × step time on {many}), at this job's prices",
        verify="a step must do the same work at both sizes, such as an epoch over the same data; compare the metric at the same step, because "
        "the total batch size of all processes may differ",
        confidence="medium",
    )


def _smaller_size(size: Resources, smaller: Resources) -> AdvisedChange:
    names = ("nodes", "gpus", "processes_per_node", "cpus")
    first, *more = (name for name in names if getattr(size, name) != getattr(smaller, name))
    others = "".join(f"resources.{name}: {_shown(smaller, name)}; " for name in more)
    how = f"{others}more trials then fit on the same machines at once, and each takes longer"
    return AdvisedChange(f"resources.{first}", _shown(size, first), _shown(smaller, first), how)


def _shown(size: Resources, name: str) -> str:
    value = getattr(size, name)
    return "auto" if value is None else f"{value:g}"
