"""The hierarchy of errors. Every error that a user can cause or see is a subclass of TunerError.

    TunerError
    ├── Invalid            a field of the request is wrong: its JSON pointer, and how to fix it
    ├── Unauthorized       the key is missing or not valid
    ├── NotFound           the requested object does not exist
    ├── Forbidden          the caller's role does not allow the request
    ├── Conflict           the current state does not allow the request
    ├── Stale              the object was changed since the caller read it
    ├── BudgetRefused      the budget, less what is spent or held, does not pay for the request
    ├── BadFile            a file cannot be read or has the wrong content
    ├── Fenced             another driver owns the job, or another service leads
    └── Unavailable        a part that the service needs does not answer

The docstring of a class is the title in the API's problem documents. An instance's text says what is wrong and what to do.
"""

from dataclasses import dataclass

MAX_FAULTS = 100  # one answer lists at most this many faults


@dataclass(frozen=True, slots=True)
class Fault:
    """One error of a request: `pointer` is an RFC 6901 JSON pointer to the field, `detail` says how to fix it."""

    pointer: str
    detail: str


class TunerError(Exception):
    """Something went wrong."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.title())
        self.detail = detail or self.title()

    @classmethod
    def title(cls) -> str:
        return (cls.__doc__ or cls.__name__).splitlines()[0].rstrip(".")


class Invalid(TunerError):
    """The request is not valid."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults))
        self.faults = faults

    @classmethod
    def at(cls, pointer: str, detail: str) -> "Invalid":
        return cls(Fault(pointer, detail))


class NotFound(TunerError):
    """Not found."""


class Unauthorized(TunerError):
    """The key is missing or wrong."""


class Forbidden(TunerError):
    """Your role does not allow this."""


class Conflict(TunerError):
    """This cannot be done in the present state."""


class IdempotencyConflict(Conflict):
    """The same Idempotency-Key was used for another request."""


class TooManyWaiting(Conflict):
    """Too many configurations of the job wait."""


class AddressNotFree(Conflict):
    """The service cannot listen on this address."""


class HomeInUse(Conflict):
    """Another service uses this home."""


class Stale(TunerError):
    """It was changed meanwhile."""


class BudgetRefused(TunerError):
    """The budget cannot pay for this."""


class NothingAffordable(NotFound):
    """No configuration was reached within these limits."""


class BadFile(TunerError, ValueError):
    """The file cannot be used."""


class Fenced(TunerError):
    """Another driver works on this job now, or another service leads."""


class Unavailable(TunerError):
    """A part that the service needs does not answer."""
