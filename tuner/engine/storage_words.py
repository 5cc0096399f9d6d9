"""Advice to users about errors of the storage, as part of the reason why a trial waited or failed."""

import errno

FULL = "it is full: make room there, set checkpoint.keep lower, or let TUNER_STORAGE name another place"
REFUSED = "it refuses access: the workers must be allowed to list, read, write and delete there; check their credentials"
NOWHERE = "there is no such place: create the bucket or folder that TUNER_STORAGE names, and mount it on every worker"
SILENT = (
    "it does not answer: check that the workers reach it over the network, and the address they have of it"
)
BUSY = "it has trouble of its own: when that is over, resume the job, or let TUNER_STORAGE name another place"

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS = ("quota", "insufficientstorage", "insufficientcapacity", "storagefull", "no space left")
_SILENT_WORDS = ("timeout", "timed out", "connect", "cannot resolve", "endpoint url")


def explained(error: BaseException) -> str:
    """Return the error as text, with advice on what to do about it if there is any."""
    text = f"{type(error).__name__}: {error}"
    advice = _advice(error)
    return f"{text} ({advice})" if advice else text


def _advice(error: BaseException) -> str:
    """Return advice for an error.

    The error's cause is searched too, because a cloud's client wraps the service's error code.
    """
    text = f"{error!r} {error.__cause__!r}".lower()
    if getattr(error, "errno", None) in _FULL_ERRNOS or any(word in text for word in _FULL_WORDS):
        return FULL
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NOWHERE
    if isinstance(error, TimeoutError | ConnectionError) or any(word in text for word in _SILENT_WORDS):
        return SILENT
    return BUSY if isinstance(error, OSError) else ""
