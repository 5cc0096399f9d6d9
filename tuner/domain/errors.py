"""Everything that can be refused or go wrong, as one tree.

    TunerError
    ├── Invalid            the request is wrong: a place (JSON pointer) and a mend
    ├── Unauthorized       there is no key, or it is none that counts
    ├── NotFound           there is no such thing
    ├── Forbidden          whoever asks may not do this
    ├── Conflict           the request is fine, the moment is not
    ├── Stale              the thing was changed since it was read
    ├── BudgetRefused      the money is spent or held
    ├── BadFile            a file that was named is not what it should be
    ├── Fenced             somebody else owns this job, or leads, now
    └── Unavailable        a part that the service needs does not answer

A class's docstring is its title; the instance says where and what to do.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request: `pointer` is an RFC 6901 JSON pointer to the field, `detail` says how to mend it."""

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
    """There is no such thing."""


class Unauthorized(TunerError):
    """The key is missing or wrong."""


class Forbidden(TunerError):
    """Your role does not allow this."""


class Conflict(TunerError):
    """This cannot be done in the present state."""


class IdempotencyConflict(Conflict):
    """The same Idempotency-Key was used for another request."""


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
