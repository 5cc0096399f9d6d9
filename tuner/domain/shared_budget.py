"""Shared budgets: limits for all jobs with certain tags together, per calendar period or in total."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tuner.domain.budget import cost_limit, spent_share
from tuner.domain.calendar import Period, period_of, zone
from tuner.domain.errors import Fault
from tuner.domain.money import ZERO, Cost, Money
from tuner.domain.space import pointer_token
from tuner.domain.text import nearest
from tuner.domain.time import Instant

PPM = 1_000_000
MAX_ALERTS = 20
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Alert:
    """A webhook that is called when a share of the budget is spent."""

    at_ppm: int  #: The share in millionths.
    url: str


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """A shared budget.

    It limits the jobs that have all tags of `match`, and the jobs under its child budgets (those that name it as `parent`). At
    least one of `usd` and `gpu_ms` is set.
    """

    name: str
    usd: Money | None = None
    gpu_ms: int | None = None
    #: The tags of the jobs that the budget limits. Empty if it limits all jobs of the project.
    match: Mapping[str, str] = field(default_factory=dict)
    #: The spend is counted from zero in each period. None if it is counted in total.
    period: Period | None = None
    timezone: str = "UTC"
    parent: str | None = None
    alerts: tuple[Alert, ...] = ()

    @property
    def limit(self) -> Cost:
        return cost_limit(self.usd, self.gpu_ms)

    def span(self, at: Instant) -> tuple[Instant, Instant | None]:
        """Return the start and the exclusive end of the period that contains `at`. The end is None if the budget has no period."""
        return period_of(at, self.period, zone(self.timezone))

    def matches(self, tags: Mapping[str, str]) -> bool:
        return all(tags.get(key) == value for key, value in self.match.items())

    def share_ppm(self, posted: Cost) -> int:
        """Return the spent share of the budget in millionths, rounded down."""
        return int(spent_share(self.usd, self.gpu_ms, posted) * PPM)

    def faults(self) -> list[Fault]:
        faults = []
        if self.usd is None and self.gpu_ms is None:
            faults.append(Fault("", "give at least one of usd and gpu_hours"))
        if self.usd is not None and self.usd <= ZERO:
            faults.append(Fault("/usd", "must be more than 0"))
        if self.gpu_ms is not None and self.gpu_ms <= 0:
            faults.append(Fault("/gpu_hours", "must be more than 0"))
        try:
            zone(self.timezone)
        except ValueError as error:
            faults.append(Fault("/timezone", str(error)))
        if len(self.alerts) > MAX_ALERTS:
            faults.append(Fault("/alerts", f"give at most {MAX_ALERTS} alerts"))
        for number, alert in enumerate(self.alerts):
            faults += _alert_faults(f"/alerts/{number}", alert)
        return faults


def _alert_faults(where: str, alert: Alert) -> list[Fault]:
    faults = []
    if not 0 < alert.at_ppm <= PPM:
        faults.append(Fault(f"{where}/at", "must be a share of the budget, more than 0 and at most 1"))
    try:
        url = urlsplit(alert.url)
        # The lookup encodes the name in the same way. It fails if a part of the name is empty or too long.
        has_host = bool((url.hostname or "").encode("idna"))
        right = url.scheme in ("http", "https") and has_host and url.port != 0 and "@" not in url.netloc
    except ValueError:
        right = False
    plain = alert.url.isascii() and alert.url.isprintable() and " " not in alert.url
    if not right or not plain or len(alert.url) > 2000:
        faults.append(
            Fault(
                f"{where}/url",
                "must be a URL such as https://example.com/hook, without a user name or password",
            )
        )
    return faults


def name_fault(name: str) -> Fault | None:
    allowed = all(c.isalnum() or c in "._-" for c in name) and name.isascii()
    if name and name[0].isalnum() and len(name) <= 100 and allowed:
        return None
    return Fault(
        "name", "use 1 to 100 letters, digits, dots, dashes and underscores, a letter or digit first"
    )


def parent_fault(budget: SharedBudget, known: Mapping[str, SharedBudget]) -> Fault | None:
    """Return a fault if the budget's parent does not exist, or if its parents form a cycle or are nested too deep."""
    if budget.parent is None:
        return None
    if budget.parent not in known and budget.parent != budget.name:
        near = nearest(budget.parent, known) or sorted(known)[:3]
        suggestion = f"; use an existing one, such as {', '.join(near)}" if near else "; create it first"
        return Fault("/parent", f"the budget {budget.parent[:60]!r} does not exist{suggestion}")
    budgets = {**known, budget.name: budget}
    if budget.name in _ancestors(budget, budgets):
        return Fault(
            "/parent", f"{budget.parent!r} is itself nested under {budget.name!r}; choose another parent"
        )
    if len(_ancestors(budget, budgets)) > MAX_DEPTH:
        return Fault("/parent", f"budgets may be nested at most {MAX_DEPTH} deep")
    return None


def applying(budgets: Iterable[SharedBudget], tags: Mapping[str, str]) -> list[SharedBudget]:
    """Return the shared budgets that limit a job with these tags, including the parents of matching budgets, sorted by name."""
    known = {budget.name: budget for budget in budgets}
    names = {budget.name for budget in known.values() if budget.matches(tags)}
    for name in sorted(names):
        names |= set(_ancestors(known[name], known))
    return [known[name] for name in sorted(names)]


def _ancestors(budget: SharedBudget, known: Mapping[str, SharedBudget]) -> Sequence[str]:
    ancestors: list[str] = []
    parent = budget.parent
    while parent is not None and parent in known and parent not in ancestors:
        ancestors.append(parent)
        parent = known[parent].parent
    return ancestors


MAX_TAGS = 50


def tag_faults(tags: Mapping[str, str]) -> list[Fault]:
    """Return the faults of the tags of a job or of a shared budget."""
    if len(tags) > MAX_TAGS:
        return [Fault("/tags", f"give at most {MAX_TAGS} tags")]
    return [
        Fault(
            f"/tags/{pointer_token(key)}",
            "use a key of 1 to 100 printable characters without a colon, and a value of at most 300",
        )
        for key, value in tags.items()
        if not 1 <= len(key) <= 100 or ":" in key or len(value) > 300 or not (key + value).isprintable()
    ]
