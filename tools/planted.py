"""Mutants: planted mistakes that would lose or double money, work or decisions. Each has the tests that must notice it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant. In `file`, the text `old`, which occurs once, becomes `new`. `why` describes the consequence."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


MONEY = "tests/domain/test_money.py"
HOLDS = "tests/contracts/test_journal_money.py"
SHARED = "tests/store/test_shared_budgets.py"
LAUNCHES = "tests/store/test_launches.py"
LEADERSHIP = "tests/store/test_leadership.py"
LEASES = "tests/store/test_leases.py"
DECISIONS = "tests/tuning/test_decide.py"
GUARD = "tests/tuning/test_guard.py"
JOBS = "tests/store/test_jobs.py"
CLOCKS = "tests/driver/test_clocks.py"
ATTEMPT_LEASES = "tests/driver/test_attempt_leases.py"
QUOTAS = "tests/store/test_quotas.py"
ACCESS = "tests/api/test_access.py"

MUTANTS = (
    # Money
    Mutant(
        "money-float",
        "tuner/domain/money.py",
        "Money(-(-elapsed_ns * self.micro_usd_per_hour // HOUR_NS))",
        "Money(int(-(-elapsed_ns * self.micro_usd_per_hour / HOUR_NS // 1)))",
        "floats lose amounts that are small compared with the sum",
        (f"{MONEY}::test_nanosecond_beyond_ten_thousand_hours_is_charged",),
    ),
    Mutant(
        "price-rounded-down",
        "tuner/domain/money.py",
        "Money(-(-elapsed_ns * self.micro_usd_per_hour // HOUR_NS))",
        "Money(elapsed_ns * self.micro_usd_per_hour // HOUR_NS)",
        "a hold is smaller than what its time costs",
        (f"{MONEY}::test_affordable_time_costs_at_most_the_given_money",),
    ),
    Mutant(
        "time-rounded-up",
        "tuner/domain/money.py",
        "return max(0, money.micro_usd) * HOUR_NS // self.micro_usd_per_hour",
        "return -(-max(0, money.micro_usd) * HOUR_NS // self.micro_usd_per_hour)",
        "a lease is longer than its money lasts",
        (f"{MONEY}::test_affordable_time_costs_at_most_the_given_money",),
    ),
    Mutant(
        "gpu-hours-unbounded",
        "tuner/domain/money.py",
        "return self.usd <= limit.usd and self.gpu_ms <= limit.gpu_ms",
        "return self.usd <= limit.usd",
        "GPU-hours are spent beyond their budget",
        (f"{HOLDS}::test_refused_hold_changes_nothing",),
    ),
    # The ledger
    Mutant(
        "no-budget-check",
        "tuner/ledger/ledger.py",
        "        _A.posted_usd + _A.held_usd + _USD <= _A.limit_usd,\n",
        "",
        "a hold is placed even if the budget has no room; only the CHECK on the row refuses it, and the driver crashes",
        (f"{HOLDS}::test_refused_hold_changes_nothing",),
    ),
    Mutant(
        "read-then-write",
        "tuner/ledger/ledger.py",
        "    amounts = _RESERVE.first(db, {",
        "    read = account(db, job).held\n"
        "    mine = (_A.job == bindparam('of_job'), _USD >= 0, _GPU_MS >= 0)\n"
        "    sums = {'held_usd': read.usd.micro_usd + usd, 'held_gpu_ms': read.gpu_ms + gpu_ms}\n"
        "    amounts = PreparedStatement(update(accounts).where(*mine).values(sums).returning(*_AMOUNTS)).first(db, {",
        "one of two holds that are placed at the same time is forgotten",
        ("tests/store/test_postgresql.py::test_concurrent_holds_are_both_counted",),
    ),
    Mutant(
        "hold-placed-twice",
        "tuner/ledger/ledger.py",
        '    if _PLACED.first(db, {"of_hold": hold.id}):\n        return lock_account(db, project, job)\n',
        "",
        "a driver that places the same hold again is refused, or its hold counts twice",
        (f"{HOLDS}::test_repeated_hold_succeeds_and_changes_nothing_even_if_it_no_longer_fits",),
    ),
    Mutant(
        "hold-not-released",
        "tuner/ledger/ledger.py",
        "held_usd=_A.held_usd - _USD,",
        "held_usd=_A.held_usd - _SPENT_USD,",
        "the unused part of a lease stays held indefinitely",
        (f"{HOLDS}::test_settling_posts_cost_by_kind_and_releases_the_rest",),
    ),
    Mutant(
        "hold-resolved-twice",
        "tuner/ledger/ledger.py",
        'bindparam("of_hold"), _H.state == "open")\n    .values',
        'bindparam("of_hold"))\n    .values',
        "a lease is paid for twice",
        (f"{HOLDS}::test_settling_twice_changes_nothing",),
    ),
    Mutant(
        "more-used-than-held",
        "tuner/ledger/ledger.py",
        "if not spent.fits(hold.cost):",
        "if False:",
        "more money is posted than was held",
        (f"{HOLDS}::test_settling_more_than_was_held_is_refused",),
    ),
    Mutant(
        "correction-out-of-nothing",
        "tuner/ledger/ledger.py",
        "    if not total(costs).nothing:\n        raise",
        "    if costs is None:\n        raise",
        "a correction creates or removes money",
        (f"{HOLDS}::test_correction_that_does_not_sum_to_zero_is_refused",),
    ),
    Mutant(
        "kept-by-the-shared-budget",
        "tuner/ledger/ledger.py",
        "        shared_budgets.unreserve(db, project, hold, taken)\n        return None\n",
        "        return None\n",
        "a hold that the job's own budget refuses stays counted in the shared budget indefinitely",
        (f"{SHARED}::test_hold_refused_by_the_jobs_own_budget_counts_in_no_shared_budget",),
    ),
    Mutant(
        "shared-budget-ignored",
        "tuner/ledger/shared_budgets.py",
        "        mine &= a.posted_usd + a.held_usd + held.usd.micro_usd <= a.limit_usd\n",
        "",
        "a shared budget refuses a hold only through the CHECK on its row",
        (f"{SHARED}::test_hold_refused_by_one_shared_budget_counts_in_none",),
    ),
    Mutant(
        "reading-beyond-the-lease",
        "tuner/driver/holds.py",
        "self.meter, self.last_message_ns = self._within(meter, self.lease_ns), last_message_ns",
        "self.meter, self.last_message_ns = meter, last_message_ns",
        "a worker that runs past its lease is billed for more than was held",
        (f"{ATTEMPT_LEASES}::test_bill_does_not_exceed_the_hold",),
    ),
    # Leases and fences
    Mutant(
        "no-fence",
        "tuner/store/launches.py",
        'if newest != epoch or state == "ended":',
        'if state == "ended":',
        "a driver that was considered dead writes at the same time as its successor",
        (f"{LAUNCHES}::test_journal_of_an_earlier_epoch_raises_fenced_and_writes_nothing",),
    ),
    Mutant(
        "no-fence-at-the-end",
        "tuner/store/launches.py",
        'if newest != epoch or state == "ended":',
        "if newest != epoch:",
        "a driver continues to write to a cancelled job",
        (f"{LAUNCHES}::test_journal_of_an_ended_launch_raises_fenced_and_writes_nothing",),
    ),
    Mutant(
        "epoch-not-raised",
        "tuner/store/launches.py",
        '"wanted", "epoch": launch.epoch + 1, "wanted_at": at}',
        '"wanted", "epoch": launch.epoch, "wanted_at": at}',
        "the driver that was considered dead is not fenced",
        (f"{LAUNCHES}::test_only_one_observer_of_a_dead_driver_relaunches_it",),
    ),
    Mutant(
        "launched-by-each-that-finds-it-dead",
        "tuner/store/launches.py",
        'mine = (launches.c.job == launch.job) & (launches.c.epoch == launch.epoch) & (launches.c.state != "ended")',
        'mine = (launches.c.job == launch.job) & (launches.c.state != "ended")',
        "two services that find a driver dead launch two drivers with the same epoch",
        (f"{LAUNCHES}::test_only_one_observer_of_a_dead_driver_relaunches_it",),
    ),
    Mutant(
        "term-taken-early",
        "tuner/store/leadership.py",
        "(row.token == before.token) & ended",
        "(row.token == before.token)",
        "two services lead at the same time for a moment",
        (f"{LEADERSHIP}::test_next_service_leads_only_after_the_term_has_expired",),
    ),
    Mutant(
        "token-not-raised",
        "tuner/store/leadership.py",
        "    token = before.token + 1\n",
        "    token = before.token\n",
        "a leader that was suspended continues to act after the next one took over",
        (f"{LEADERSHIP}::test_next_service_leads_only_after_the_term_has_expired",),
    ),
    Mutant(
        "leader-not-fenced",
        "tuner/store/leadership.py",
        "if row is None or row.token != term.token:",
        "if row is None:",
        "a leader that was suspended continues to act after the next one took over",
        (f"{LEADERSHIP}::test_next_service_leads_only_after_the_term_has_expired",),
    ),
    Mutant(
        "lease-stolen",
        "tuner/store/leadership.py",
        "free = (lease.name == name) & ((lease.holder == holder) | over)",
        "free = lease.name == name",
        "two services do the same work at the same time",
        (f"{LEASES}::test_lease_is_exclusive_until_it_expires",),
    ),
    Mutant(
        "lease-given-back-by-another",
        "tuner/store/leadership.py",
        "(leases.c.name == name) & (leases.c.holder == holder)",
        "(leases.c.name == name)",
        "a service whose lease has expired ends the lease of the present holder",
        (f"{LEASES}::test_lease_is_given_back_only_by_its_holder",),
    ),
    Mutant(
        "lost-time-by-the-wall-clock",
        "tuner/driver/loop.py",
        "silent = (self._clock.elapsed_ns() - lease.last_message_ns) // sharers if not lease.waits else 0",
        "silent = (self._clock.now() - lease.last_message_ns) // sharers if not lease.waits else 0",
        "a change of the clock bills time that was not used",
        (f"{CLOCKS}::test_clock_adjustment_does_not_change_the_bill",),
    ),
    Mutant(
        "shared-time-billed-to-each",
        "tuner/worker/metering.py",
        "sharers = max(1, self._running[period])",
        "sharers = 1",
        "each of several trials on a worker is billed the whole worker",
        ("tests/worker/test_slots.py::test_shares_add_up_to_the_time_of_the_worker",),
    ),
    Mutant(
        "lost-time-billed-to-each",
        "tuner/driver/loop.py",
        "silent = (self._clock.elapsed_ns() - lease.last_message_ns) // sharers if not lease.waits else 0",
        "silent = self._clock.elapsed_ns() - lease.last_message_ns if not lease.waits else 0",
        "each of several trials on a dead worker is billed all of its last time",
        ("tests/driver/test_turns.py::test_trials_of_a_dead_worker_share_its_last_time",),
    ),
    Mutant(
        "deadline-by-the-wall-clock",
        "tuner/driver/deadlines.py",
        "self._ends_ns - self._clock.elapsed_ns()",
        "self._ends_ns - self._clock.now()",
        "a change of the clock ends a job too early or too late",
        (f"{CLOCKS}::test_clock_adjustment_does_not_end_the_job",),
    ),
    Mutant(
        "key-ignored",
        "tuner/store/jobs.py",
        '    row = db.execute(_OF_KEY, {"project": project, "key": key}).first()\n',
        "    row = None\n",
        "a repeated submission creates a second job with its own budget",
        ("tests/api/test_idempotency.py::test_same_key_and_body_return_the_same_job",),
    ),
    Mutant(
        "body-ignored",
        "tuner/store/jobs.py",
        "if row.body_sha256 != body_sha256:",
        "if row is body_sha256:",
        "a different request with a used idempotency key returns an older job",
        ("tests/api/test_idempotency.py::test_same_key_with_another_body_is_a_conflict",),
    ),
    # Projects
    Mutant(
        "quota-off-by-one",
        "tuner/domain/budget.py",
        "len(at_work) >= self.concurrent_jobs",
        "len(at_work) > self.concurrent_jobs",
        "a project runs one job more than its quota allows",
        ("tests/domain/test_quota.py::test_exhausted_limit_is_named",),
    ),
    Mutant(
        "no-quota-check",
        "tuner/service/cluster_room.py",
        "    return bool(quota.reached(took, row.concurrency))\n",
        "    return False\n",
        "a project runs any number of jobs",
        (f"{QUOTAS}::test_jobs_of_another_project_do_not_use_the_quota",),
    ),
    Mutant(
        "quota-of-all-projects",
        "tuner/service/cluster_room.py",
        " for other in under_way if other.project == row.project]",
        " for other in under_way]",
        "jobs of one project use up the quota of another",
        (f"{QUOTAS}::test_jobs_of_another_project_do_not_use_the_quota",),
    ),
    Mutant(
        "no-project-filter",
        "tuner/store/jobs.py",
        "if row is None or (project is not None and row.project != project):",
        "if row is None:",
        "anyone who knows the id of another project's job can read, cancel and top it up",
        (f"{JOBS}::test_missing_job_or_job_of_another_project_is_not_found",),
    ),
    # Keys
    Mutant(
        "revoked-key-accepted",
        "tuner/service/access.py",
        "    if key.revoked_at is not None:\n",
        "    if key.revoked_at == 0:\n",
        "a stolen key works after it was revoked",
        (f"{ACCESS}::test_revoked_key_is_refused_at_the_next_request",),
    ),
    Mutant(
        "expired-key-accepted",
        "tuner/service/access.py",
        "    if key.expires_at <= now:\n",
        "    if key.expires_at <= 0:\n",
        "a key works after it has expired",
        (f"{ACCESS}::test_expired_key_is_refused_with_its_expiry_time",),
    ),
    Mutant(
        "key-by-its-id-alone",
        "tuner/service/access.py",
        "if bearer is None or not hmac.compare_digest(bearer.key.sha256, parsed_key.sha256):",
        "if bearer is None:",
        "the part of a key that listings show is enough to authenticate",
        (f"{ACCESS}::test_key_with_a_known_id_and_wrong_secret_is_refused",),
    ),
    Mutant(
        "role-off-by-one",
        "tuner/domain/access.py",
        "return ROLES.index(self.role) >= ROLES.index(role)",
        "return ROLES.index(self.role) + 1 >= ROLES.index(role)",
        "each role has the permissions of the next one: viewers can submit, admins are operators",
        ("tests/domain/test_access.py::test_role_includes_the_permissions_of_lower_roles",),
    ),
    # Decisions
    Mutant(
        "promotion-off-by-one",
        "tuner/tuning/rungs.py",
        "count = len(self.ranked) // reduction_factor",
        "count = -(-len(self.ranked) // reduction_factor)",
        "one trial too many is promoted at each rung, which wastes money",
        (f"{DECISIONS}::test_a_trial_below_the_cut_pauses_and_a_new_one_begins",),
    ),
    Mutant(
        "rung-of-the-wrong-mode",
        "tuner/tuning/steps.py",
        "rung.record(trial.number, state.spec.objective.score(trial.value), trial.violation)",
        "rung.record(trial.number, trial.value, trial.violation)",
        "the worst trials of a minimised metric are promoted",
        (f"{DECISIONS}::test_minimised_objective_promotes_lowest_value",),
    ),
    Mutant(
        "best-is-nan",
        "tuner/tuning/stopping.py",
        "return value is not None and math.isfinite(value)",
        "return value is not None",
        "a diverged trial stays the best",
        (f"{DECISIONS}::test_non_finite_value_fails_the_trial_but_not_the_job",),
    ),
    Mutant(
        "one-trial-too-many",
        "tuner/tuning/decide.py",
        "len(state.active) < state.concurrency\n",
        "len(state.active) <= state.concurrency\n",
        "more trials hold money than there are workers",
        (f"{DECISIONS}::test_job_starts_as_many_trials_as_its_concurrency",),
    ),
    Mutant(
        "lease-of-less-than-is-needed",
        "tuner/tuning/guard.py",
        "    if affordable < need_ns:\n        return 0\n",
        "",
        "a lease is paid for that is too short for a single step",
        (f"{GUARD}::test_lease_is_long_enough_and_affordable_or_zero",),
    ),
    Mutant(
        "lease-beyond-the-deadline",
        "tuner/tuning/guard.py",
        "    return left_ns if left_ns >= need_ns else 0\n",
        "    return wanted_ns if left_ns >= need_ns else 0\n",
        "a worker is paid for longer than the job may last",
        (f"{GUARD}::test_lease_does_not_exceed_the_remaining_time",),
    ),
)
