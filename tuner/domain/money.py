"""Money in whole micro-dollars, prices in micro-dollars per hour, and all arithmetic on them."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from tuner.domain.time import HOUR_NS, MS_NS

MICRO = 1_000_000
MS_PER_HOUR = 3_600_000
MAX_MICRO_USD = (
    10**15
)  # a billion dollars, which is more than any budget and fits easily into a 64-bit column


@dataclass(frozen=True, slots=True, order=True)
class Money:
    """An amount of US dollars, in whole micro-dollars. It may be negative in a correction."""

    micro_usd: int

    @classmethod
    def from_usd(cls, usd: "Decimal | int | float | str") -> "Money":
        """Convert an amount in dollars exactly.

        Raises:
            ValueError: `usd` is not a finite amount, has more than six decimals, or is larger than a billion dollars.
        """
        try:
            exact = Decimal(str(usd))
        except InvalidOperation as error:
            raise ValueError(f"{usd!r} is not an amount of dollars") from error
        if not exact.is_finite():
            raise ValueError("must be a finite amount of dollars")
        if abs(exact) * MICRO > MAX_MICRO_USD:
            raise ValueError("is larger than a billion dollars")
        micro = exact * MICRO
        if micro != micro.to_integral_value():
            raise ValueError("has more than six decimals")
        return cls(int(micro))

    @classmethod
    def at_most_usd(cls, usd: float) -> "Money":
        """Return the largest amount that is at most `usd`. The rounding error of a float is ignored.

        >>> Money.at_most_usd(0.29), Money.at_most_usd(0.0000019)
        (Money(micro_usd=290000), Money(micro_usd=1))
        """
        return cls(int(usd * MICRO + 1e-6))

    @property
    def usd(self) -> float:
        """Return the amount in dollars for display and JSON. Rounding it to six decimals gives the exact amount."""
        return self.micro_usd / MICRO

    def __add__(self, other: "Money") -> "Money":
        return Money(self.micro_usd + other.micro_usd)

    def __sub__(self, other: "Money") -> "Money":
        return Money(self.micro_usd - other.micro_usd)

    def __neg__(self) -> "Money":
        return Money(-self.micro_usd)

    def __str__(self) -> str:
        return dollars(self.usd)


ZERO = Money(0)


def gpu_ms_at_most(gpu_hours: float) -> int:
    """Return the whole milliseconds of GPU time that are at most `gpu_hours`, with the rule of `Money.at_most_usd`.

    >>> gpu_ms_at_most(0.5)
    1800000
    """
    return int(gpu_hours * MS_PER_HOUR + 1e-6)


def dollars(amount: float) -> str:
    """Format an amount in dollars with two to six decimals, as many as it needs.

    >>> dollars(0.5), dollars(0.001234), dollars(-2)
    ('$0.50', '$0.001234', '-$2.00')
    """
    sign = "-" if amount < 0 else ""
    whole, _, decimals = f"{abs(amount):.6f}".rstrip("0").partition(".")
    return f"{sign}${whole}.{decimals.ljust(2, '0')}"


def plain(amount: float) -> str:
    """Format hours, dollars or a count without an exponent, and with at most nine decimals.

    >>> plain(5e-05), plain(1234567.0), plain(3)
    ('0.00005', '1234567', '3')
    """
    return str(amount) if isinstance(amount, int) else f"{amount:.9f}".rstrip("0").rstrip(".")


def amounts(usd: float | None, gpu_hours: float | None) -> str:
    """Format an amount of dollars and of GPU-hours. If one of them is None, only the other is shown, and "nothing" if both are.

    >>> amounts(0.5, 1.5), amounts(None, 1.5), amounts(0.5, None), amounts(0, None), amounts(None, None)
    ('$0.50 and 1.5 GPU-hours', '1.5 GPU-hours', '$0.50', '$0.00', 'nothing')
    """
    shown = [] if usd is None else [dollars(usd)]
    return (
        " and ".join(shown if gpu_hours is None else [*shown, f"{plain(gpu_hours)} GPU-hours"]) or "nothing"
    )


@dataclass(frozen=True, slots=True, order=True)
class Price:
    """A price in micro-dollars per hour."""

    micro_usd_per_hour: int

    @classmethod
    def from_usd_per_hour(cls, usd: "Decimal | int | float | str") -> "Price":
        return cls(Money.from_usd(usd).micro_usd)

    @property
    def usd_per_hour(self) -> float:
        return self.micro_usd_per_hour / MICRO

    def of(self, elapsed_ns: int) -> Money:
        """Return the cost of `elapsed_ns`, rounded up because a hold may be too large but never too small."""
        return Money(-(-elapsed_ns * self.micro_usd_per_hour // HOUR_NS))

    def affords_ns(self, money: Money) -> int:
        """Return the longest time, in nanoseconds, that costs at most `money`."""
        if self.micro_usd_per_hour == 0:
            return 2**62
        return max(0, money.micro_usd) * HOUR_NS // self.micro_usd_per_hour


@dataclass(frozen=True, slots=True)
class Rate:
    """What one trial uses per unit of time: its share of the node's price, and its GPUs.

    The share of the price is the larger of the trial's shares of the node's CPUs and of its GPUs. The trial must pay for the unused part
    of the other resource, because no similar trial can use it.
    """

    price: Price
    milli_gpus: int = 0  # thousandths of a GPU

    def cost(self, elapsed_ns: int) -> "Cost":
        """Return the cost of `elapsed_ns`. Dollars and GPU time are rounded up."""
        gpu_ms = -(-elapsed_ns * self.milli_gpus // (1000 * MS_NS))
        return Cost(self.price.of(elapsed_ns), gpu_ms)

    def affords_ns(self, left: "Cost") -> int:
        """Return the longest time, in nanoseconds, whose cost fits into `left` in dollars and in GPU time.

        Return 0 if an amount of `left` is negative, because then no cost fits, not even a cost of zero.
        """
        if left.usd.micro_usd < 0 or left.gpu_ms < 0:
            return 0
        by_money = self.price.affords_ns(left.usd)
        if self.milli_gpus == 0:
            return by_money
        return min(by_money, max(0, left.gpu_ms) * 1000 * MS_NS // self.milli_gpus)


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount that was spent or held: dollars, and GPU time in milliseconds of one whole GPU."""

    usd: Money = ZERO
    gpu_ms: int = 0

    @property
    def gpu_hours(self) -> float:
        return self.gpu_ms / MS_PER_HOUR

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.usd + other.usd, self.gpu_ms + other.gpu_ms)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.usd - other.usd, self.gpu_ms - other.gpu_ms)

    def __neg__(self) -> "Cost":
        return Cost(-self.usd, -self.gpu_ms)

    def at_most(self, limit: "Cost") -> "Cost":
        """Return the cost with dollars and GPU time each reduced to at most the limit."""
        return Cost(min(self.usd, limit.usd), min(self.gpu_ms, limit.gpu_ms))

    def fits(self, limit: "Cost") -> bool:
        return self.usd <= limit.usd and self.gpu_ms <= limit.gpu_ms

    @property
    def nothing(self) -> bool:
        return self.usd == ZERO and self.gpu_ms == 0


FREE = Cost()


def trial_rate(
    *, node_price: Price, node_cpus: float, node_gpus: float, cpus: float, gpus: float, nodes: int = 1
) -> Rate:
    """Return the rate of a trial on `nodes` equal nodes. The trial uses `cpus` and `gpus` of each node. Each node costs `node_price`.

    >>> trial_rate(node_price=Price(100_000), node_cpus=2, node_gpus=0, cpus=1, gpus=0)
    Rate(price=Price(micro_usd_per_hour=50000), milli_gpus=0)
    >>> trial_rate(node_price=Price(100_000), node_cpus=2, node_gpus=1, cpus=1, gpus=1, nodes=3)
    Rate(price=Price(micro_usd_per_hour=300000), milli_gpus=3000)
    """
    shares = [Decimal(str(cpus)) / Decimal(str(node_cpus)) if node_cpus else Decimal(0)]
    if gpus:
        shares.append(Decimal(str(gpus)) / Decimal(str(node_gpus)))
    micro = Decimal(node_price.micro_usd_per_hour) * min(Decimal(1), max(shares)) * nodes
    return Rate(Price(int(micro.to_integral_value(rounding="ROUND_CEILING"))), round(gpus * nodes * 1000))
