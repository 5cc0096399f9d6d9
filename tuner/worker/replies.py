"""Decide what to reply to a report or a question of the child, and when.

Call all functions under the supervisor's lock. They do no I/O.
"""

import time

from tuner.domain.preemption_policy import in_time
from tuner.training.channel import Reply
from tuner.worker.attempt import RunningAttempt

MARGIN_NS = 20_000_000
# A child whose lease runs out waits this long for the driver before it saves. The driver usually answers within a fifth of this time.
ANSWERS_WITHIN_NS = 100_000_000
# How many reports may wait to be sent. A child with very short steps then waits for its reply, because the driver records all reports of
# one result in one transaction.
MAX_UNSENT_REPORTS = 100
# How many reports may have artifacts that are not stored yet. A child that reports files faster than they are stored has to wait, but only
# for `ARTIFACTS_WAIT_NS`, because its machine costs money meanwhile.
MAX_UNSTORED = 2
ARTIFACTS_WAIT_NS = 10_000_000_000


def reply_to(attempt: RunningAttempt) -> Reply | None:
    """Return the reply to the child's report, or to its question whether to save in the middle of a step, or None if no reply is due.

    The state of the job's best step is always stored. If saving each step is cheap, that state is
    saved at once. Otherwise the child keeps a copy of it in memory, and writes the copy to a checkpoint
    when a later step is not better.
    """
    if attempt.awaiting_reply is None:
        return None
    flush = attempt.best_steps.kept_step is not None and not attempt.best_steps.improved
    if attempt.asks:
        return _answer_in_step(attempt, flush=flush)
    if attempt.last_command == "stop":
        return Reply(stop=True, save=attempt.best_steps.improved, flush=flush)
    if attempt.last_command != "continue" or attempt.notice is not None:
        # After a notice there may be time for only one save, so save the newest step and not an older best one.
        save = attempt.resumable and attempt.awaiting_reply > attempt.states.durable
        return Reply(stop=True, save=save, flush=flush and attempt.notice is None)
    if _waits_in_vain(attempt, attempt.awaiting_reply):
        attempt.lease_is_over = True
        return Reply(stop=True, save=True, flush=False)
    if (
        waits_for_driver(attempt)
        or len(attempt.reports) >= MAX_UNSENT_REPORTS
        or _waits_for_artifacts(attempt)
    ):
        return None
    if _save_is_due(attempt):
        return Reply(stop=False, save=True, keep=False, flush=False)
    return Reply(
        stop=False, save=False, keep=attempt.best_steps.improved, flush=flush and not attempt.states.is_saving
    )


def _answer_in_step(attempt: RunningAttempt, *, flush: bool) -> Reply | None:
    """Return the reply to the question whether to save in the middle of a step, or None if the child waits for a longer lease.

    `flush` says whether the child has a copy of its best state in memory, which it should write to a checkpoint.

    If the lease ends soon, the child first waits for its renewal. If the lease is not renewed, the child saves and stops while there is
    still time for a save.
    """
    if attempt.last_command == "stop":
        return Reply(stop=True, save=False, flush=flush)
    # Other attempts on the worker may end meanwhile, so this is not reduced to the attempt's share.
    attempt.lease_is_over = (
        attempt.left_ns() < attempt.times.saves.durable_ns + attempt.times.ask_gap_ns + MARGIN_NS
    )
    if attempt.last_command != "continue" or attempt.notice is not None or attempt.lease_is_over:
        return Reply(
            stop=True, save=True, flush=flush and attempt.notice is None and not attempt.lease_is_over
        )
    if need_ns(attempt) > 0:
        return None
    save = not attempt.states.is_saving and attempt.times.saves.due_within(
        attempt.times.in_step_ns(), time.monotonic_ns()
    )
    return Reply(stop=False, save=save, flush=flush and not attempt.states.is_saving and not save)


def waits_for_driver(attempt: RunningAttempt) -> bool:
    """Return True if the child may not continue before the driver raises its target step or renews its lease.

    A child whose user code has returned trains no further step, so it does not wait.
    """
    ends = attempt.last_command != "continue" or attempt.notice is not None or attempt.has_returned
    return attempt.awaiting_reply is not None and not ends and (at_stop(attempt) or need_ns(attempt) > 0)


def _waits_for_artifacts(attempt: RunningAttempt) -> bool:
    """Return whether the child waits until artifacts are stored. After `ARTIFACTS_WAIT_NS`, let it continue and drop its next artifacts."""
    if attempt.unstored <= MAX_UNSTORED or attempt.drops_artifacts:
        return False
    attempt.drops_artifacts = time.monotonic_ns() - attempt.reported_at > ARTIFACTS_WAIT_NS
    return not attempt.drops_artifacts


def _waits_in_vain(attempt: RunningAttempt, step: int) -> bool:
    """Return whether the child waits at a report, and its lease, which the driver does not renew, lasts just long enough to save it."""
    if not waits_for_driver(attempt) or not attempt.resumable or step <= attempt.states.durable:
        return False
    waited_ns = time.monotonic_ns() - attempt.reported_at
    return waited_ns > ANSWERS_WITHIN_NS and attempt.left_ns() < attempt.times.saves.durable_ns + MARGIN_NS


def _save_is_due(attempt: RunningAttempt) -> bool:
    ready = attempt.resumable and not attempt.states.is_saving and bool(attempt.times.step_ns)
    if not ready:
        return False
    longest = max(attempt.times.step_ns)
    return attempt.times.saves.due(longest, time.monotonic_ns()) or (
        attempt.best_steps.improved and attempt.times.saves.is_cheap(longest)
    )


def waits_for_best(attempt: RunningAttempt) -> bool:
    """Return whether the child gets no reply, because the attempt is being stopped and ends once the job's best state is stored.

    The child was ordered to save that state before.
    """
    best = attempt.best_steps
    is_saving = best.saving_step is not None and best.kept_step is None and not best.improved
    return attempt.last_command == "stop" and attempt.awaiting_reply is not None and is_saving


def need_ns(attempt: RunningAttempt) -> int:
    """Return by how many nanoseconds the lease is too short, or 0 if it is long enough.

    If the child has asked in the middle of a step whether to save, the lease must last until the child has asked again and has saved.
    Otherwise the lease must last for the next step and a save. In this case, return 0 if no step has been measured yet.
    """
    if attempt.asks:
        needed = 2 * attempt.times.ask_gap_ns + 2 * attempt.times.saves.durable_ns + MARGIN_NS
    elif attempt.times.step_ns:
        needed = max(attempt.times.step_ns) * 11 // 10 + attempt.times.saves.durable_ns + MARGIN_NS
    else:
        return 0
    return max(0, attempt.watch.at_most(needed) - attempt.left_ns())


def at_stop(attempt: RunningAttempt) -> bool:
    """Return whether the child waits for the reply to a report at or beyond the last step that the attempt may currently
    train to.
    """
    stops = [
        stop for stop in (attempt.target_step, attempt.max_step) if stop is not None and not attempt.asks
    ]
    return attempt.awaiting_reply is not None and any(attempt.awaiting_reply >= stop for stop in stops)


def cannot_gain(attempt: RunningAttempt) -> bool:
    """Return True if the machine has a preemption notice and will be gone before the attempt can save anything more.

    Return False while a save is in progress and the deadline has not passed. Also return False while the child waits for a
    reply, because that reply will order the child to stop, and after the child was ordered to stop.
    """
    if attempt.notice is None or attempt.awaiting_reply is not None or attempt.states.closing:
        return False
    left_ns = attempt.notice.deadline - time.time_ns()
    if attempt.states.is_saving and left_ns > 0:
        return False
    cannot_save = attempt.step > attempt.restored and not attempt.resumable and not attempt.times.ask_gap_ns
    if attempt.times.is_starting or cannot_save:
        return True
    saving = attempt.times.saves.saving
    return not in_time(
        left_ns, step_ns=attempt.times.until_save_ns(), save_ns=saving.durable_ns if saving else None
    )
