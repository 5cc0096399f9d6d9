"""The nodes that a job's trials may run on, and their prices.

Nodes that the cluster's autoscaler may start are included.
"""

from collections.abc import Iterable
from dataclasses import replace

from tuner.cluster.node_types import node_types_of
from tuner.cluster.nodes import INSTANCE_TYPE, RAY_MARKETS, Node, first
from tuner.domain.errors import Fault, Invalid, Unavailable
from tuner.domain.job import Resources, markets_of
from tuner.domain.money import Price
from tuner.domain.offer import MARKET_LABEL, Offer, market_selector
from tuner.domain.text import nearest
from tuner.service.catalogue import catalogue
from tuner.service.node_prices import priced, unpriced
from tuner.settings import Settings


def with_those_to_come(settings: Settings, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that are alive, followed by the nodes that the autoscaler may start according to TUNER_NODE_TYPES.

    Raises:
        BadFile: The file that TUNER_NODE_TYPES names cannot be used.
    """
    there = list(nodes)
    return [*there, *node_types_of(settings.node_types).nodes_to_come(there)]


def suitable(nodes: Iterable[Node], wanted: Resources) -> list[Node]:
    """Return the nodes that are large enough for a trial, and have the instance type, region and market that `wanted` requests.

    Raises:
        Invalid: No node is suitable; the error says what is missing.
        Unavailable: The cluster has no node at all.
    """
    there = list(nodes)
    if suitable_nodes := [node for node in there if is_suitable(node, wanted)]:
        return suitable_nodes
    on_any_market = replace(wanted, market="spot_with_fallback")
    if any(is_suitable(node, on_any_market) for node in there):
        raise Invalid(_no_market(there, wanted))
    raise Invalid(_no_node(there, wanted))


def is_suitable(node: Node, wanted: Resources) -> bool:
    """Return whether a trial may run on a node: it is large enough, and has the requested instance type, region and market."""
    return (
        node.cpus >= wanted.cpus
        and node.gpus >= wanted.gpus
        and wanted.instance_type in (None, node.instance_type)
        and wanted.region in (None, node.region)
        and node.market in markets_of(wanted.market)
    )


def offers_of(settings: Settings, nodes: Iterable[Node], wanted: Resources) -> list[Offer]:
    """Return one offer for each instance type and market on which Ray can place a trial, most expensive first.

    Ray distinguishes machines by labels. If no node has a market label, return only one offer, with the price of the most
    expensive suitable node.

    Args:
        nodes: All nodes of the cluster.

    Raises:
        Invalid: No node is suitable, or no suitable node has a known price.
    """
    there = list(nodes)
    # Labels of unsuitable nodes count too: without a label requirement, Ray could place a trial on a spot machine among them.
    bound = any(MARKET_LABEL in node.labels for node in there)
    offered = [
        (node, _offer(node, price, source, wanted, labels=_binding(node) if bound else ()))
        for node, price, source in priced_nodes(settings, there, wanted)
    ]

    def cost(offer: Offer) -> int:
        return offer.rate(wanted).price.micro_usd_per_hour

    by_labels: dict[tuple[tuple[str, str], ...], Offer] = {}
    for _, offer in offered:
        if offer.labels not in by_labels:
            # A trial may be placed on any node with these labels, even on one with more labels, so the highest price counts.
            like = [other for node, other in offered if offer.is_of(node.labels)]
            by_labels[offer.labels] = replace(max(like, key=cost), labels=offer.labels)
    return sorted(by_labels.values(), key=cost, reverse=True)


def _offer(
    node: Node, price: Price, source: str, wanted: Resources, *, labels: tuple[tuple[str, str], ...]
) -> Offer:
    kind, region = node.instance_type, node.region or wanted.region
    return Offer(kind, price, node.cpus, node.gpus, node.market, region, source, labels)


def priced_nodes(
    settings: Settings, nodes: Iterable[Node], wanted: Resources
) -> list[tuple[Node, Price, str]]:
    """Return the suitable nodes, each with its price and the source of the price.

    Nodes whose price is not known are left out.

    Raises:
        Invalid: No node is suitable, or no suitable node has a known price.
    """
    check_size(settings, wanted)
    nodes_with_prices, unknown = [], []
    for node in suitable(nodes, wanted):
        priced_node = priced(settings, node.labels, cpus=node.cpus, gpus=node.gpus)
        if priced_node.price is None:
            unknown.append(priced_node.source)
        else:
            nodes_with_prices.append((node, priced_node.price, priced_node.source))
    if not nodes_with_prices:
        pointer = "/resources/market" if wanted.market == "spot" else "/resources"
        raise Invalid.at(pointer, unpriced(unknown))
    return nodes_with_prices


def check_size(settings: Settings, wanted: Resources) -> None:
    """Raise Invalid if a trial needs more GPUs than a machine of the named instance type has."""
    kind = wanted.instance_type
    listings = [] if kind is None else catalogue(settings).find(instance_type=kind)
    if listings and wanted.gpus > listings[0].accelerators:
        has = (
            f"{listings[0].accelerators:g} {listings[0].accelerator}".strip()
            if listings[0].accelerators
            else "no"
        )
        raise Invalid.at(
            "/resources/gpus", f"{kind} has {has} GPUs, not {wanted.gpus:g}: request at most {has}"
        )


def _binding(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the labels by which Ray distinguishes this node from nodes of other markets and instance types.

    The price label is not among them, because a machine that replaces this one may have another price.
    """
    kind = first(node.labels, INSTANCE_TYPE)
    return (market_selector(node.market), *([kind] if kind else []))


def _no_market(nodes: list[Node], wanted: Resources) -> Fault:
    word = RAY_MARKETS["spot" if wanted.market == "spot" else "on_demand"]
    other = "on_demand" if wanted.market == "spot" else "spot"
    what = f"has the label {MARKET_LABEL}={word}"
    types = _types(nodes)
    if types:
        detail = (
            f"no node of this size that is alive, or that the autoscaler may start, {what}; the autoscaler has {types}: "
            f"add a node type with this label to the autoscaler, or request {other} or spot_with_fallback"
        )
    else:
        detail = (
            f"no node of this size {what}: start nodes with "
            f"`ray start --labels {MARKET_LABEL}={word}`, or request {other} or spot_with_fallback"
        )
    return Fault("/resources/market", detail)


def _no_node(nodes: list[Node], wanted: Resources) -> Fault:
    if not nodes:
        raise Unavailable("no node of the Ray cluster is alive: start one, or try again later")
    fault, types = _missing(nodes, wanted), _types(nodes)
    return replace(fault, detail=f"{fault.detail}; the autoscaler has {types}") if types else fault


def _missing(nodes: list[Node], wanted: Resources) -> Fault:
    cpus, gpus = max(node.cpus for node in nodes), max(node.gpus for node in nodes)
    if wanted.cpus > cpus:
        return Fault(
            "/resources/cpus",
            f"no node has {wanted.cpus:g} CPUs; request at most {cpus:g}, or start a larger node",
        )
    if wanted.gpus > gpus:
        return Fault(
            "/resources/gpus",
            f"no node has {wanted.gpus:g} GPUs; request at most {gpus:g}, or start a larger node",
        )
    if wanted.instance_type is not None:
        kinds = sorted({node.instance_type for node in nodes})
        near = nearest(wanted.instance_type, kinds) or kinds
        return Fault(
            "/resources/instance_type",
            f"no node has the instance type {wanted.instance_type}; the nodes have {', '.join(near)}: name one of these, or start nodes with "
            f"`ray start --labels instance-type={wanted.instance_type}`",
        )
    if wanted.region is not None:
        known = sorted({node.region for node in nodes if node.region})
        near = nearest(wanted.region, known) or known
        fix = (
            f"the regions of the nodes are {', '.join(near)}"
            if near
            else "no node has a region label; leave out the region, or start nodes with "
            f"`ray start --labels ray.io/availability-region={wanted.region}`"
        )
        return Fault("/resources/region", f"no node of this size is in {wanted.region}; {fix}")
    return Fault(
        "/resources",
        f"no node has both {wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs; request fewer, or start a larger node",
    )


def _types(nodes: Iterable[Node]) -> str:
    """Return the types of the nodes that the autoscaler may start, as one line of text. The text is empty if there are none."""
    kinds = {
        f"{node.name} ({node.instance_type}, {RAY_MARKETS[node.market]}, {node.cpus:g} CPUs, {node.gpus:g} GPUs)"
        for node in nodes
        if not node.alive
    }
    return ", ".join(sorted(kinds))
