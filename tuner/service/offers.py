"""On which of a cluster's nodes a job's trials may run, and what those cost."""

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

from tuner.domain.errors import Fault, Invalid, Unavailable
from tuner.domain.job import Resources
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.engine.ray_cluster import Node, labels
from tuner.settings import Settings


def suitable(nodes: Iterable[Node], wanted: Resources) -> list[Node]:
    """The living nodes that could ever hold such a trial. Raises Invalid where there is none, naming what is missing."""
    there = list(nodes)
    found = [node for node in there if node.cpus >= wanted.cpus and node.gpus >= wanted.gpus]
    found = [node for node in found if wanted.instance_type in (None, node.instance_type)]
    found = [node for node in found if wanted.region in (None, node.region)]
    if not found:
        raise Invalid(_no_node(there, wanted))
    of_market = [node for node in found if wanted.market in ("spot_with_fallback", node.market)]
    if not of_market:
        raise Invalid(_no_market(wanted))
    return of_market


def offers_of(settings: Settings, nodes: Iterable[Node], wanted: Resources) -> list[Offer]:
    """One for each kind of machine that a placement can be bound to, the dearest for such a trial first; `nodes` are all of the
    cluster. Where none of them says anything of its market nothing is bound: there the dearest stands for all. Raises Invalid
    where none will do."""
    there = list(nodes)
    # By the unsuitable ones, too: Ray would place on spot what is bound to nothing.
    bound = any(labels.MARKET in node.labels for node in there)
    priced = [
        (node, _offer(settings, node, wanted, _binding(node) if bound else ()))
        for node in suitable(there, wanted)
    ]
    found: dict[tuple[tuple[str, str], ...], Offer] = {}
    for _, offer in priced:
        # A trial may land on any node with these labels, also on one that has more of them.
        like = [other for node, other in priced if offer.is_of(node.labels)]
        found[offer.labels] = replace(max(like, key=lambda one: _micro_usd(one, wanted)), labels=offer.labels)
    return sorted(found.values(), key=lambda offer: -_micro_usd(offer, wanted))


def _micro_usd(offer: Offer, wanted: Resources) -> int:
    return offer.rate(cpus=wanted.cpus, gpus=wanted.gpus).price.micro_usd_per_hour


def _binding(node: Node) -> tuple[tuple[str, str], ...]:
    """The labels by which Ray tells this node from those of other markets and kinds. Not its price: the machine that comes in its
    stead may have another one."""
    market = labels.MARKETS["spot"] if node.market == "spot" else f"!{labels.MARKETS['spot']}"
    kind = labels.first(node.labels, labels.INSTANCE_TYPE)
    return ((labels.MARKET, market), *([kind] if kind else []))


def _offer(settings: Settings, node: Node, wanted: Resources, binding: tuple[tuple[str, str], ...]) -> Offer:
    usd: Decimal | float | None = node.usd_per_hour
    source = f"the node's label {labels.PRICE}"
    if usd is None:
        kind, market = node.instance_type, node.market
        usd, source = settings.price_of(kind, cpus=node.cpus, gpus=node.gpus, market=market)
    price = Price.from_usd_per_hour(usd)
    return Offer(node.instance_type, price, node.cpus, node.gpus, node.market, wanted.region, source, binding)


def _no_market(wanted: Resources) -> Fault:
    word = labels.MARKETS["spot" if wanted.market == "spot" else "on_demand"]
    other = "on_demand" if wanted.market == "spot" else "spot"
    detail = (
        f"no node of this size that is alive has the label {labels.MARKET}={word}: start nodes with "
        f"`ray start --labels {labels.MARKET}={word}`, or ask for {other} or spot_with_fallback"
    )
    return Fault("/resources/market", detail)


def _no_node(nodes: list[Node], wanted: Resources) -> Fault:
    if not nodes:
        raise Unavailable("the Ray cluster has no living node")
    cpus, gpus = max(node.cpus for node in nodes), max(node.gpus for node in nodes)
    if wanted.cpus > cpus:
        return Fault("/resources/cpus", f"no node has {wanted.cpus:g} CPUs; the largest has {cpus:g}")
    if wanted.gpus > gpus:
        return Fault("/resources/gpus", f"no node has {wanted.gpus:g} GPUs; the largest has {gpus:g}")
    if wanted.instance_type is not None:
        kinds = ", ".join(sorted({node.instance_type for node in nodes}))
        return Fault("/resources/instance_type", f"no node is a {wanted.instance_type}; there is {kinds}")
    if wanted.region is not None:
        known = ", ".join(sorted({node.region for node in nodes if node.region})) or "none that is known"
        return Fault(
            "/resources/region", f"no such node is in {wanted.region}; of the nodes' regions there is {known}"
        )
    return Fault("/resources", f"no node has {wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs together")
