"""Names of things. Only a job's id is drawn (by the service); everything below it is counted, so that a repeat is recognised."""

import re

JOB_ID = re.compile(r"job_[0-9a-f]{16}")
TRIAL_ID = re.compile(r"trial_\d{5,}")
SELF_TEST = "self_test"  # in place of a trial, for what the restore self-test costs
RESTORED = (
    "restored"  # in place of a trial, for what was spent after the backup from which the books were restored
)
PACKAGE_ID = re.compile(r"pkg_[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")


def trial_id(number: int) -> str:
    """The id of the `number`th trial of a job, counted from 0.

    >>> trial_id(7)
    'trial_00007'
    """
    return f"trial_{number:05d}"


def package_id(sha256: str) -> str:
    """The same bytes have the same id, whoever uploads them."""
    return f"pkg_{sha256}"


def trial_number(trial: str) -> int:
    return int(trial.removeprefix("trial_"))


def hold_id(job: str, trial: str, attempt: int, slice_number: int) -> str:
    """The same slice of the same attempt has the same id, whoever asks and however often."""
    return f"{job}/{trial}/a{attempt}/s{slice_number}"


def entry_id(hold: str, entry: str, kind: str = "") -> str:
    return f"{hold}/{entry}/{kind}" if kind else f"{hold}/{entry}"
