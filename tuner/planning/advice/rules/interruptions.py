"""Rule: preemptions cost more than the spot market saved."""

from tuner.domain.money import Money, Price
from tuner.planning.advice.evidence import LOST, Evidence, Piece, share, total
from tuner.planning.advice.finding import Change, Finding


def finding(evidence: Evidence) -> Finding | None:
    """Compare the cost of the spot attempts with the on-demand price of the same useful time.

    Useful time excludes lost steps, and the setup and restore after each lost attempt.
    """
    pieces, demand = [piece for piece in evidence.pieces if piece.row.market == "spot"], evidence.demand
    paid = total(piece.spent for piece in pieces)
    losses = sum(piece.row.end in LOST for piece in pieces)
    if demand is None or not losses or not paid.micro_usd:
        return None
    again = _after_a_loss(evidence)
    useful = [(piece, piece.spent - _interrupted(piece, again)) for piece in pieces]
    on_demand = Money(sum(_at(one, piece.row.price, demand) for piece, one in useful))
    saves = paid - on_demand
    if saves.micro_usd <= 0:
        return None
    interrupted = total(_interrupted(piece, again) for piece in pieces)
    return Finding(
        kind="interruptions_dear",
        title=f"{losses} losses of spot machines cost more than the spot market saved",
        evidence={
            "spot_usd": paid,
            "interruptions_usd": interrupted,
            "interruptions_share": share(interrupted.micro_usd, paid.micro_usd),
            "losses": losses,
            "on_demand_usd": on_demand,
        },
        change=Change(
            "resources.market",
            evidence.spec.resources.market,
            "on_demand",
            "or another region or type, which is taken away less often",
        ),
        saves=saves,
        saves_note="the useful time of its spot attempts at the price on demand, against what they cost",
        verify="the same configurations give the same metrics on either market; compare the bills, and the time to the same best",
        confidence="high",
    )


def _after_a_loss(evidence: Evidence) -> set[tuple[str, int]]:
    """Return the (trial, attempt) pairs whose previous attempt was lost."""
    return {(piece.row.trial, piece.row.attempt + 1) for piece in evidence.pieces if piece.row.end in LOST}


def _interrupted(piece: Piece, again: set[tuple[str, int]]) -> Money:
    set_up = piece.of("setup", "restore") if (piece.row.trial, piece.row.attempt) in again else Money(0)
    return piece.of("lost") + set_up


def _at(usd: Money, price: Price, demand: Price) -> int:
    """Return the micro-dollars that the time paid by `usd` at `price` costs at the on-demand price `demand`, rounded up.

    If `price` is zero, the time is not known, so return the amount unchanged.
    """
    if not price.micro_usd_per_hour:
        return usd.micro_usd
    return -(-usd.micro_usd * demand.micro_usd_per_hour // price.micro_usd_per_hour)
