"""Replay one long training on a recorded market, from event to event."""

from dataclasses import dataclass, field
from random import Random

from benchmarks.spot_replay.policies import ON_DEMAND, SPOT, Interval, Policy
from benchmarks.spot_replay.tracks import Market
from tuner.domain.checkpointing import Hazard, InterruptionRisk, SaveTimes
from tuner.domain.money import ZERO, Money
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.tuning.placement import Observation, PlacementMemory, PlacementRequest

FAR = 2**62


@dataclass(frozen=True)
class Training:
    """The training that is replayed."""

    work_ns: int  #: The total time of all steps.
    step_ns: int = 60 * NS
    stall_ns: int = 2 * NS  #: How long a save interrupts the training.
    durable_ns: int = 20 * NS  #: The time from the end of a step until its checkpoint is durable.
    launch_ns: int = 300 * NS  #: The time from the launch of a machine until it trains. It is paid.
    notice_ns: int = 120 * NS  #: The time from a notice to the preemption.
    missed: float = 0.1  #: The share of preemptions without notice.
    spot_prior: Hazard = field(
        default_factory=Hazard.of_spot
    )  #: The hazard that the policy assumes at first.


@dataclass(frozen=True)
class Outcome:
    """The result of a replay."""

    finished_ns: int | None  #: None if the training was not finished at the horizon.
    cost: Money
    lost_ns: int
    preemptions: int
    on_demand_ns: int


@dataclass
class Machine:
    """The machine that trains now."""

    offer: Offer
    began: int
    gone: int  #: The time at which it is preempted.
    done_ns: int  #: The work in memory at `since`.
    since: int  #: When the training continues after a launch or a stall.
    cycle_ns: int  #: The work from `since` until the next save.
    reported_ns: int  #: The time up to which its cost was recorded.
    vacated_at: int | None = None  #: When the save after a notice is durable. None if there is no such save.
    has_notice: bool = False  #: Its preemption will be announced.
    is_unnoticed: bool = True  #: No notice will arrive in time for a save.


class Replay:
    """One training under one policy. `seed` determines which notices are missed, so that they are the same for each policy."""

    def __init__(
        self, training: Training, market: Market, policy: Policy, deadline_ns: int | None, seed: str
    ) -> None:
        self._training, self._market, self._policy, self._seed = training, market, policy, seed
        saving = SaveTimes(training.stall_ns, training.durable_ns)
        notice = training.notice_ns if policy.notices else None
        self._interval = Interval(
            policy.every_ns,
            training.step_ns,
            saving,
            InterruptionRisk(preemption=training.spot_prior, notice_ns=notice),
        )
        deadline = None if deadline_ns is None else Instant(deadline_ns)
        self._request = PlacementRequest(
            market=policy.market,
            offers=(ON_DEMAND, SPOT),
            begun=Instant(0),
            work_ns=self._left_ns(0),
            deadline=deadline,
        )
        self._memory = PlacementMemory(Instant(0), self._left_ns(0))
        self._now, self._durable, self._pending = 0, 0, (FAR, 0)
        self._machine: Machine | None = None
        self._no_spot_until = (
            0  # a machine that was vacated after a notice is not available again before it was preempted
        )
        self._cost, self._lost, self._preemptions, self._demand_ns = ZERO, 0, 0, 0

    def run(self, horizon_ns: int) -> Outcome:
        while self._durable < self._training.work_ns:
            if self._now > horizon_ns:
                self._release(self._now)
                return self._outcome(None)
            self._advance()
        self._release(self._now)
        return self._outcome(self._now)

    def _outcome(self, finished: int | None) -> Outcome:
        return Outcome(finished, self._cost, self._lost, self._preemptions, self._demand_ns)

    # What the policy observes

    def _left_ns(self, done_ns: int) -> int:
        """Return the remaining time on demand after this much work, including saves."""
        t, every = self._training, self._interval.steps(ON_DEMAND)
        left = t.work_ns - done_ns
        return left + (left // (every * t.step_ns)) * t.stall_ns + t.durable_ns if left > 0 else 0

    def _changeover_ns(self) -> int:
        t, steps = self._training, self._interval.steps(SPOT)
        lost_ns = min(steps * t.step_ns, t.work_ns) + t.durable_ns
        return t.launch_ns + lost_ns + t.step_ns + t.durable_ns

    def _advance(self) -> None:
        machine = self._machine
        available = (
            (SPOT,)
            if self._now >= self._no_spot_until and self._market.up_until(self._now) is not None
            else ()
        )
        left = self._left_ns(self._durable)
        observation = Observation(
            now=Instant(self._now),
            left_ns=left,
            changeover_ns=self._changeover_ns(),
            there=available,
            unsaved_ns=left - self._left_ns(self._whole_steps(self._now)),
            at=machine.offer if machine else None,
        )
        self._memory, choice = self._policy.place(self._request, self._memory, observation)
        until = FAR if choice.until is None else max(choice.until, self._now + 1)
        if machine is None and choice.offer is not None:
            self._launch(choice.offer)
        elif machine is None:
            self._now = min(until, self._market.next_change(self._now))
        elif choice.offer is not machine.offer and machine.vacated_at is None:
            self._leave(machine)
        else:
            self._work(machine, until)

    # Events

    def _launch(self, offer: Offer) -> None:
        gone = FAR if offer is ON_DEMAND else self._market.up_until(self._now)
        assert gone is not None
        ready = self._now + self._training.launch_ns
        self._machine = Machine(
            offer, self._now, gone, self._durable, ready, self._cycle_ns(offer, self._durable), self._now
        )
        self._draw_notice(self._machine)

    def _cycle_ns(self, offer: Offer, done_ns: int) -> int:
        return min(self._interval.steps(offer) * self._training.step_ns, self._training.work_ns - done_ns)

    def _draw_notice(self, machine: Machine) -> None:
        """Determine whether the preemption of the machine will be announced."""
        t = self._training
        machine.has_notice = (
            self._policy.notices and Random(f"{self._seed}/{machine.gone}").random() >= t.missed
        )
        machine.is_unnoticed = not machine.has_notice

    def _whole_steps(self, at: int) -> int:
        """Return the work of all whole steps in memory, which could be saved now."""
        machine = self._machine
        if machine is None or at < machine.since:
            return self._durable if machine is None else machine.done_ns
        step = self._training.step_ns
        return machine.done_ns + min(machine.cycle_ns, (at - machine.since) // step * step)

    def _work(self, machine: Machine, until: int) -> None:
        """Advance to the next event."""
        t = self._training
        cut = machine.since + machine.cycle_ns
        notice = FAR if machine.is_unnoticed or machine.vacated_at is not None else machine.gone - t.notice_ns
        change = self._market.next_change(self._now) if machine.offer is ON_DEMAND else FAR
        going = FAR if machine.vacated_at is None else machine.vacated_at
        if machine.vacated_at is not None:
            cut = FAR
        at = min(cut, self._pending[0], notice, machine.gone, going, change, until)
        self._now = max(at, self._now)
        if at == machine.gone:
            self._preempted(machine)
        elif at == self._pending[0]:
            self._saved(machine, self._pending[1])
            if at == going:
                self._vacated(machine)
        elif at == notice:
            self._noticed(machine)
        elif at == cut:
            self._cut(machine)

    def _cut(self, machine: Machine) -> None:
        """Begin a save that is due, or the last one."""
        t = self._training
        done = machine.done_ns + machine.cycle_ns
        self._pending = (self._now + t.durable_ns, done)
        machine.done_ns, machine.since = done, self._now + t.stall_ns
        machine.cycle_ns = self._cycle_ns(machine.offer, done)
        if done >= t.work_ns:
            machine.since, machine.cycle_ns = FAR, 0

    def _saved(self, machine: Machine, done_ns: int) -> None:
        gained, self._durable, self._pending = done_ns - self._durable, done_ns, (FAR, 0)
        self._record_machine_time(machine, gained)

    def _record_machine_time(self, machine: Machine, gained_ns: int, *, preempted: bool = False) -> None:
        paid, machine.reported_ns = self._now - machine.reported_ns, self._now
        self._memory = self._memory.after(
            machine.offer, now=Instant(self._now), paid_ns=paid, gained_ns=gained_ns
        )
        self._interval.observe(machine.offer, paid, preempted=preempted, missed=not machine.has_notice)

    def _noticed(self, machine: Machine) -> None:
        """Finish and save the step in progress. A machine that is still starting is given up."""
        t = self._training
        if machine.since == FAR:
            machine.is_unnoticed = True  # the last save is under way
            return
        if self._now <= machine.since and machine.done_ns == self._durable:
            machine.vacated_at, self._pending = self._now, (self._now, self._durable)  # it is still starting
            return
        begun = max(0, self._now - machine.since)
        end = max(self._now, machine.since) + -begun % t.step_ns
        if end + t.durable_ns > machine.gone:
            machine.is_unnoticed = True
            return
        machine.vacated_at = end + t.durable_ns
        self._pending = (machine.vacated_at, machine.done_ns + min(machine.cycle_ns, end - machine.since))

    def _vacated(self, machine: Machine) -> None:
        self._preemptions, self._no_spot_until = self._preemptions + 1, machine.gone
        self._interval.observe(machine.offer, 0, preempted=True)
        self._release(self._now)

    def _preempted(self, machine: Machine) -> None:
        self._preemptions += 1
        self._lost += self._whole_steps(self._now) - self._durable
        self._pending = (FAR, 0)
        self._record_machine_time(machine, 0, preempted=True)
        self._release(self._now)

    def _leave(self, machine: Machine) -> None:
        """Leave the machine by the policy's decision, after finishing and saving the step."""
        t = self._training
        if self._now < machine.since and self._whole_steps(self._now) == self._durable:
            self._record_machine_time(machine, 0)
            self._release(self._now)
            return
        done = self._whole_steps(self._now)
        within = max(0, self._now - machine.since) % t.step_ns if machine.since <= self._now else 0
        if within and machine.done_ns + machine.cycle_ns > done:
            done, self._now = done + t.step_ns, self._now + t.step_ns - within
        self._now += t.durable_ns
        if self._now >= machine.gone:
            self._now = machine.gone
            self._preempted(machine)
            return
        self._saved(machine, done)
        self._release(self._now)

    def _release(self, at: int) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._cost += machine.offer.price.of(at - machine.began)
        if machine.offer is ON_DEMAND:
            self._demand_ns += at - machine.began


def uninterrupted(training: Training) -> Money:
    """Return the cost of the training on a spot machine that is not preempted, without saves."""
    return SPOT.price.of(training.launch_ns + training.work_ns)
