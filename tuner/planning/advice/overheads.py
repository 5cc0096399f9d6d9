"""Rules about money that does not buy training: checkpoints, setup, idle machines, the market and traffic between regions."""

from collections.abc import Sequence
from fractions import Fraction

from tuner.domain.checkpointing import LEAST_STALL_NS, Hazard, InterruptionRisk, daly_ns
from tuner.domain.money import ZERO, Money, plain
from tuner.domain.time import NS, duration_text
from tuner.domain.units import GB
from tuner.planning.advice.evidence import (
    AdviceFinding,
    AdvisedChange,
    JobEvidence,
    portion,
    share,
    spent_on,
    sums,
    total,
)
from tuner.tuning.rungs import ladder

# Checkpoint intervals from half to twice the best interval cause no finding, because the cost hardly changes in this range.
FAR_OFF = 2
SAVES_EXPENSIVE_ABOVE = Fraction(1, 20)
LOST_ABOVE = Fraction(1, 50)


def checkpoint_interval(evidence: JobEvidence) -> AdviceFinding | None:
    """Find checkpoints that are saved much more often or more rarely than is optimal, at a noticeable cost.

    Let τ be the training time between saves, δ the stall of each save, and M the mean time between losses of the machine. Saves then take
    a share of δ/τ of the training time, and lost training takes τ/2M (Young 1974). The optimal τ, by Daly, minimizes the sum of both.
    """
    attempts = evidence.measured("saves")
    trained = sum(attempt.ns("train", "lost") for attempt in attempts)
    if not trained:
        return None
    saves, risk = sums(attempts)["saves"], evidence.risks.get(evidence.market) or InterruptionRisk()
    stall = max(LEAST_STALL_NS, sum(attempt.ns("checkpoint") for attempt in attempts) // max(1, saves))
    between, mean = trained // max(1, saves), risk.mean_ns
    best = max(1, daly_ns(stall, mean))
    saved_usd, lost_usd, spent = (
        spent_on(attempts, "checkpoint"),
        spent_on(attempts, "lost"),
        spent_on(attempts),
    )
    too_expensive = (
        between * FAR_OFF < best and share(saved_usd.micro_usd, spent.micro_usd) > SAVES_EXPENSIVE_ABOVE
    )
    too_rare = between > best * FAR_OFF and share(lost_usd.micro_usd, spent.micro_usd) > LOST_ABOVE
    change = _other_interval(evidence, between, best, saves=saves, too_expensive=too_expensive)
    if change is None or not (too_expensive or too_rare):
        return None
    now, then = (Fraction(stall, each) + Fraction(each, 2 * mean) for each in (between, best))
    return AdviceFinding(
        kind="checkpoints_expensive" if too_expensive else "checkpoints_too_rare",
        title=f"A checkpoint every {duration_text(between / NS)} of training, but {duration_text(best / NS)} would be best",
        evidence={
            "interval_seconds": Fraction(between, NS),
            "best_interval_seconds": Fraction(best, NS),
            "stall_seconds": Fraction(stall, NS),
            "mean_seconds_between_losses": Fraction(mean, NS),
            "saves": saves,
            "checkpoint_usd": saved_usd,
            "lost_usd": lost_usd,
        },
        change=change,
        saves=min(
            saved_usd if too_expensive else lost_usd, portion(spent_on(attempts, "train", "lost"), now - then)
        ),
        saves_note="the cost of training, times the difference in overhead (δ/τ + τ/2M) between this interval and the best one; at most the "
        f"amount that was {'spent on saves' if too_expensive else 'lost'}",
        verify="compare `checkpoint` and `lost` in the bills of two jobs with the same amount of training; the metric cannot change, "
        "because a restored trial continues exactly where it stopped, which the restore self-test checks",
        confidence="medium",
    )


def _other_interval(
    evidence: JobEvidence, between_ns: int, best_ns: int, *, saves: int, too_expensive: bool
) -> AdvisedChange | None:
    """Return the change that leads to better times between saves, or None if no setting does.

    Another `checkpoint.interval` is advised only if the present one is the cause. It is not if saves are much more frequent, or much rarer,
    than the interval. The interval `auto` already is the best one.
    """
    if not saves:
        how = "no checkpoint became durable: let the trainable save, with SpotSafe or tune.report(..., checkpoint=...)"
        return AdvisedChange("checkpoints of the trainable", "none", "every few minutes of training", how)
    fixed, best_s = evidence.spec.checkpoint.interval_ns, max(1, best_ns // NS)
    if too_expensive and (fixed is None or fixed > FAR_OFF * between_ns or fixed >= best_s * NS):
        # The excess saves must come from pauses at rungs. Advise a higher first rung.
        how = "each pause at a rung saves a checkpoint; with fewer rungs, trials pause less often"
        return _higher_first_rung(evidence, how)
    if fixed is None:
        return None
    if not too_expensive and (fixed * FAR_OFF < between_ns or fixed <= best_s * NS):
        return None  # the trainable saves more rarely than it may, for example because of long steps
    how = "or auto, which measures the saves and chooses the best interval"
    return AdvisedChange("checkpoint.interval", f"{fixed / NS:g}s", f"{best_s}s", how)


def _higher_first_rung(evidence: JobEvidence, how: str) -> AdvisedChange | None:
    """Return the change to a higher `fidelity.min`, at most the last step. Return None if the job has no rungs below its last step.

    Return None also if the job has proxies. Each proxy has one value for each rung, so fewer rungs would need other values. The scheduler
    `auto` chooses its own first rung, so the change is relative to that rung. A lower `fidelity.min` would have no effect.
    """
    rungs = ladder(evidence.spec)
    is_whole = evidence.spec.algorithm.scheduler == "none"
    if is_whole or rungs.proxies or rungs.max is None or rungs.min >= rungs.max:
        return None
    then = min(rungs.min * rungs.reduction_factor, rungs.max)
    return AdvisedChange("fidelity.min", str(evidence.spec.fidelity.min), str(then), how)


SETUP_EXPENSIVE_ABOVE = Fraction(3, 20)
LEAST_ATTEMPTS = 5
MOSTLY = Fraction(1, 2)
ENOUGH = 10  # a budget should be this many times the cost of one setup of each worker, so that most of it can buy training


def setup_expensive(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs that spent too large a share of their money on the setup of attempts.

    There are two cases. Either many setups took a large share, and cheaper setups would help. Or a few unavoidable setups took most of the
    spent money, and a larger budget would help. The second case requires that most of the budget was spent. Otherwise the job ended early
    for another reason, and a larger budget would not help.
    """
    setups = [attempt.of("setup") for attempt in evidence.attempts]
    spent, limit = total(setups), evidence.spec.budget.usd
    part = share(spent.micro_usd, evidence.spent.micro_usd)
    is_used_up = limit is None or evidence.spent.micro_usd > MOSTLY * limit.micro_usd
    if part > MOSTLY and len(setups) < LEAST_ATTEMPTS and is_used_up:
        return _too_small_for_setup(evidence, setups, part)
    if len(setups) < LEAST_ATTEMPTS or part <= SETUP_EXPENSIVE_ABOVE:
        return None
    higher_rung = _higher_first_rung(
        evidence, "a trial then trains more steps per setup, and fewer pauses cause fewer setups"
    )
    return AdviceFinding(
        kind="setup_expensive",
        title=f"{float(part):.0%} of the money was spent on setting up trials",
        evidence=_setup_figures(evidence, setups, part),
        change=AdvisedChange(
            "the function that loads the data",
            None,
            "is decorated with `prepare` of tuner.training",
            "a worker then calls it once, and each attempt starts as a copy of that process; import libraries at the module's top level",
        ),
        alternatives=() if higher_rung is None else (higher_rung,),
        # Each worker needs one setup in any case, so one setup per worker is not counted as savings.
        saves=max(ZERO, Money(spent.micro_usd - evidence.workers * max(setups).micro_usd)),
        saves_note=f"at most this: all setups, less the most expensive setup once for each of {evidence.workers} workers",
        verify="train one configuration with the same seed: the metric at each step must not change; compare `setup` in the bills",
        confidence="medium",
    )


def _too_small_for_setup(
    evidence: JobEvidence, setups: Sequence[Money], part: Fraction
) -> AdviceFinding | None:
    """Return the finding that a few unavoidable setups took most of the spent money. Return None if the budget is large enough.

    Only a larger budget or fewer workers would help. `part` is the share of the money that was spent on setup.
    """
    limit = evidence.spec.budget.usd
    enough = Money(ENOUGH * max(1, evidence.workers) * max(1, max(setups).micro_usd))
    if limit is not None and enough <= limit:
        return None
    fewer_workers = AdvisedChange(
        "resources.max_concurrent_trials",
        str(evidence.concurrency),
        str(evidence.spec.resources.pack),
        "each worker imports the trainable's module, so fewer workers need fewer setups",
    )
    return AdviceFinding(
        kind="setup_expensive",
        title=f"{float(part):.0%} of the money was spent on setting up trials, which left little for training",
        evidence=_setup_figures(evidence, setups, part),
        change=AdvisedChange(
            "budget.usd",
            None if limit is None else plain(limit.usd),
            plain(enough.usd),
            f"pays for {ENOUGH} setups on each of {evidence.workers} workers",
        ),
        alternatives=(fewer_workers,) if evidence.workers > 1 else (),
        saves=None,
        saves_note="the setup must be paid in any case, but it is a smaller share of a larger budget",
        verify="compare `setup` and `train` in the bills",
        confidence="high",
    )


def _setup_figures(
    evidence: JobEvidence, setups: Sequence[Money], part: Fraction
) -> dict[str, Money | Fraction | int]:
    return {
        "setup_usd": total(setups),
        "setup_share": part,
        "attempts": len(setups),
        "highest_setup_usd": max(setups),
        "workers": evidence.workers,
    }


IDLE_EXPENSIVE_ABOVE = Fraction(1, 10)
FAST_SAMPLERS = ("random", "grid", "qmc")  # they do not learn from results


def idle_expensive(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs that spent too large a share of their money on idle machines, if later rungs or faster suggestions may help."""
    idle = spent_on(evidence.attempts, "idle")
    part = share(idle.micro_usd, evidence.spent.micro_usd)
    if part <= IDLE_EXPENSIVE_ABOVE:
        return None
    higher_rung = _higher_first_rung(
        evidence,
        "a worker is idle between attempts and while it waits for decisions at rungs; with later rungs, both happen less often",
    )
    changes = [] if higher_rung is None else [higher_rung]
    if (sampler := evidence.spec.algorithm.sampler) not in FAST_SAMPLERS:
        how = "random suggestions take no time"
        changes.append(AdvisedChange("algorithm.sampler", sampler, "random", how))
    if not changes:
        return None
    change, *alternatives = changes
    return AdviceFinding(
        kind="idle_expensive",
        title=f"{float(part):.0%} of the money was spent on idle machines",
        evidence={"idle_usd": idle, "idle_share": part, "attempts": len(evidence.attempts)},
        change=change,
        alternatives=tuple(alternatives),
        saves=idle,
        saves_note="at most this: the cost of all idle time",
        verify="compare `idle` in the bills, and the best metric for the same budget",
        confidence="low",
    )


def spot_unused(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs on on-demand machines that would have been cheaper on spot machines, even with interruptions.

    The cost of interruptions consists of saves and lost steps, for the optimal checkpoint interval, and of a new setup after each
    interruption.
    """
    attempts = [attempt for attempt in evidence.attempts if attempt.row.market == "on_demand"]
    paid, spot, demand = spent_on(attempts), evidence.spot, evidence.demand
    if evidence.spec.resources.market != "on_demand" or spot is None or demand is None or not paid.micro_usd:
        return None
    nodes = evidence.spec.resources.nodes
    unseen = InterruptionRisk(preemption=Hazard.of_spot(nodes), crash=Hazard.of_crashes(nodes))
    risk = evidence.risks.get("spot") or unseen
    saving = [attempt for attempt in attempts if attempt.usage is not None and attempt.usage.saves]
    saves = max(1, sums(saving).get("saves", 0))
    stall = max(LEAST_STALL_NS, sum(attempt.ns("checkpoint") for attempt in saving) // saves)
    again = sum(attempt.ns("setup", "restore") for attempt in attempts) // max(1, len(attempts))
    mean = risk.mean_ns
    best = max(1, daly_ns(stall, mean))
    overhead = Fraction(stall, best) + Fraction(best, 2 * mean) + Fraction(again, mean)
    cheaper = share(spot.micro_usd_per_hour, demand.micro_usd_per_hour)
    saved = paid - Money(-int(-paid.micro_usd * cheaper * (1 + overhead) // 1))
    if saved.micro_usd <= 0:
        return None
    tested = evidence.self_test
    how = "trials wait for a spot machine for some time, then fall back to on-demand machines"
    if tested is None:
        how += "; the first such job runs the restore self-test of the trainable, which costs a few steps"
    elif not tested.passed:
        how = f"first fix the trainable, which failed the restore self-test: {tested.reason}"
    return AdviceFinding(
        kind="spot_unused",
        title="Spot machines would have been cheaper",
        evidence={
            "on_demand_usd": paid,
            "on_demand_usd_per_hour": Money(demand.micro_usd_per_hour),
            "spot_usd_per_hour": Money(spot.micro_usd_per_hour),
            "spot_source": evidence.spot_source,
            "interruption_overhead": overhead,
            "mean_seconds_between_losses": Fraction(mean, NS),
            "self_test": "unknown" if tested is None else "passed" if tested.passed else "failed",
        },
        change=AdvisedChange("resources.market", "on_demand", "spot_with_fallback", how),
        saves=saved,
        saves_note="the same time at the spot price, plus the time that interruptions cost: saves, lost training and new setups",
        verify="the restore self-test compares a restored trial with one that was never stopped; then compare the best metric and "
        "the bill of a small job on both markets",
        confidence="medium" if tested is not None and tested.passed else "low",
    )


def interruptions_expensive(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs whose lost spot machines cost more than the spot market saved.

    The cost of the attempts on spot machines is compared with the cost of their useful time at the on-demand price. The useful time
    excludes lost steps, and the setup and restore of each attempt that follows a lost one.
    """
    attempts, demand = (
        [attempt for attempt in evidence.attempts if attempt.row.market == "spot"],
        evidence.demand,
    )
    paid, asked = spent_on(attempts), evidence.spec.resources.market
    lost = {
        (attempt.row.trial, attempt.row.attempt)
        for attempt in evidence.attempts
        if attempt.row.end in ("preempted", "lost")
    }
    losses = sum(attempt.row.end in ("preempted", "lost") for attempt in attempts)
    if asked == "on_demand" or demand is None or not losses or not paid.micro_usd:
        return None
    interrupted, on_demand = 0, 0
    for attempt in attempts:
        is_again = (attempt.row.trial, attempt.row.attempt - 1) in lost
        wasted = attempt.of("lost", "setup", "restore") if is_again else attempt.of("lost")
        useful, price = (attempt.spent - wasted).micro_usd, attempt.row.price.micro_usd_per_hour
        interrupted += wasted.micro_usd
        # If the attempt's price is zero, its time cannot be computed from its cost. The cost itself is counted then.
        on_demand += -(-useful * demand.micro_usd_per_hour // price) if price else useful
    saves = paid - Money(on_demand)
    if saves.micro_usd <= 0:
        return None
    return AdviceFinding(
        kind="interruptions_expensive",
        title=f"{losses} losses of spot machines cost more than the spot market saved",
        evidence={
            "spot_usd": paid,
            "interruptions_usd": Money(interrupted),
            "interruptions_share": share(interrupted, paid.micro_usd),
            "losses": losses,
            "on_demand_usd": Money(on_demand),
        },
        change=AdvisedChange(
            "resources.market",
            asked,
            "on_demand",
            "or another region or machine type with fewer preemptions",
        ),
        saves=saves,
        saves_note="the cost of the attempts on spot machines, less the cost of their useful time at the on-demand price",
        verify="the same configurations give the same metrics on either market; compare the bills, and the time until the same best metric",
        confidence="high",
    )


def regions_apart(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs whose checkpoints are stored in another region than their machines. The cloud bills each GB that leaves a region."""
    places, sent = evidence.places, sums(evidence.attempts).get("saved_bytes")
    if places.compute is None or places.storage is None or not sent:
        return None
    if places.compute.casefold() == places.storage.casefold():
        return None
    price = places.egress_usd_per_gb
    usd = None if price is None else Money(price.micro_usd * sent // GB)
    return AdviceFinding(
        kind="regions_apart",
        title=f"Trials ran in {places.compute}, but their checkpoints are stored in {places.storage}",
        evidence={
            "compute_region": places.compute,
            "storage_region": places.storage,
            "sent_gb": Fraction(sent, GB),
            "egress_usd_per_gb": price,
            "egress_source": places.source or None,
            "egress_usd": usd,
        },
        change=AdvisedChange(
            "TUNER_STORAGE",
            places.storage,
            f"a bucket in {places.compute}",
            "or change resources.region, if machines in the other region cost no more",
        ),
        saves=usd,
        saves_note="the size of the checkpoints, times the price of a GB that leaves the region; the cloud bills it, so it is not in this job's bill"
        if usd is not None
        else "the price of a GB that leaves this region is not known",
        verify="the training does not change; the cloud's bill shows data transfer between the regions",
        confidence="medium",
    )


def data_apart(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs that read datasets from another region than their machines'. The cloud bills each GB that leaves a region."""
    places, read = evidence.places, sums(evidence.attempts).get("data_bucket_bytes")
    if places.compute is None or places.data is None or not read:
        return None
    if places.compute.casefold() == places.data.casefold():
        return None
    price = places.data_usd_per_gb
    usd = None if price is None else Money(price.micro_usd * read // GB)
    return AdviceFinding(
        kind="data_apart",
        title=f"Trials ran in {places.compute}, but read their data from {places.data}",
        evidence={
            "compute_region": places.compute,
            "data_region": places.data,
            "read_gb": Fraction(read, GB),
            "egress_usd_per_gb": price,
            "egress_usd": usd,
        },
        change=AdvisedChange(
            "resources.region",
            places.compute,
            places.data,
            f"or copy the data to {places.compute}, which costs one transfer and the storage",
        ),
        saves=usd,
        saves_note="the size of the data that was read from buckets, times the price of a GB that leaves their region; the cloud bills it, so "
        "it is not in this job's bill"
        if usd is not None
        else "the price of a GB that leaves the region of the data is not known",
        verify="the training does not change; compare the prices of the machines in both regions",
        confidence="medium",
    )
