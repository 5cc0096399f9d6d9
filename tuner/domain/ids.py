"""Ids and their formats.

Only the id of a job is random. The ids of its trials, holds and ledger entries are built from the job's id and counters, so
that an operation that is repeated uses the same id and changes nothing.
"""

import re

TRIAL_ID = re.compile(r"trial_\d{5,}")
SELF_TEST = "self_test"  # stored as the trial id of ledger entries for the restore self-test
# Stored as the trial id of ledger entries for spend that a restored backup did not contain
RESTORED = "restored"
EXPORT_ID = re.compile(r"export_\d{5}")  # also the trial id of the ledger entries of an export
PACKAGE_ID = re.compile(r"pkg_[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")


def trial_id(number: int) -> str:
    """Return the id of the `number`th trial of a job, counted from 0.

    >>> trial_id(7)
    'trial_00007'
    """
    return f"trial_{number:05d}"


def export_id(number: int) -> str:
    """Return the id of the `number`th export of a job, counted from 1.

    >>> export_id(1)
    'export_00001'
    """
    return f"export_{number:05d}"


def package_id(sha256: str) -> str:
    """Return the id of an uploaded code package whose bytes have this hash. The id does not depend on who uploads them."""
    return f"pkg_{sha256}"


def trial_number(trial: str) -> int:
    return int(trial.removeprefix("trial_"))


def hold_id(job: str, trial: str, attempt: int, slice_number: int) -> str:
    """Return the id of the hold that pays for a lease. `slice_number` counts the leases of the attempt."""
    return f"{job}/{trial}/a{attempt}/s{slice_number}"


def entry_id(hold: str, entry: str, kind: str = "") -> str:
    return f"{hold}/{entry}/{kind}" if kind else f"{hold}/{entry}"
