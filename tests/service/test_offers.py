"""The nodes and prices on which a job's trials may run, and the error if there are none."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tuner.cluster.nodes import Node
from tuner.domain.errors import Invalid
from tuner.domain.job import Resources
from tuner.service.offers import offers_of, priced_nodes, suitable, with_those_to_come
from tuner.settings import Settings

MARKET = "ray.io/market-type"


def settings(home: Path, prices: str = "") -> Settings:
    return Settings.from_env({"TUNER_HOME": str(home), "TUNER_NODE_PRICES": prices})


def node(name: str, cpus: float = 1, **labels: str) -> Node:
    """Return a node. `market`, `kind` and `price` become its labels."""
    names = {"market": MARKET, "kind": "instance-type", "price": "usd-per-hour"}
    return Node(name, cpus, 0, 1 << 30, {names[key]: value for key, value in labels.items()})


HEAD = Node("head", 0, 0, 1 << 30, is_head=True)
SPOT, DEMAND = node("s", market="spot", price="0.0162"), node("d", market="on-demand", price="0.0504")


def of(
    nodes: list[Node], home: Path, prices: str = "", **wanted: Any
) -> list[tuple[str, int, dict[str, str]]]:
    size = Resources(**wanted)
    offers = offers_of(settings(home, prices), nodes, size)
    return [(offer.market, offer.price.micro_usd_per_hour, dict(offer.labels)) for offer in offers]


ONLY_SPOT, NO_SPOT = {MARKET: "spot"}, {MARKET: "!spot"}
KINDS = [
    node("a", market="spot", kind="m5", price="0.02"),
    node("b", market="spot", kind="m7i", price="0.03"),
    node("c", market="spot", kind="m7i", price="0.03"),
]
PLAIN, LABELLED = node("plain", market="spot", price="0.02"), KINDS[1]
BOTH = [HEAD, SPOT, DEMAND, SPOT]
UNLABELLED = [node("a", 2), node("b", 2, kind="m5")]
TYPED = [node("s", market="spot", kind="m7i.large"), node("d", kind="m7i.large")]
UNKNOWN = [node("s", market="spot", kind="own"), node("d", kind="own")]
# Cluster, market and CPUs of the request, and for each offer its market, price and labels.
OFFERED: dict[str, tuple[list[Node], str, float, list[tuple[str, int, dict[str, str]]]]] = {
    "spot": (BOTH, "spot", 1, [("spot", 16_200, ONLY_SPOT)]),
    "on demand": (BOTH, "on_demand", 1, [("on_demand", 50_400, NO_SPOT)]),
    "both markets": (
        BOTH,
        "spot_with_fallback",
        1,
        [("on_demand", 50_400, NO_SPOT), ("spot", 16_200, ONLY_SPOT)],
    ),
    "kinds of one market": (
        KINDS,
        "spot",
        1,
        [
            ("spot", 30_000, {**ONLY_SPOT, "instance-type": "m7i"}),
            ("spot", 20_000, {**ONLY_SPOT, "instance-type": "m5"}),
        ],
    ),
    # Ray may place a trial of the first offer on a node that also has a label for its kind.
    "bound only to a market": (
        [PLAIN, LABELLED],
        "spot",
        1,
        [("spot", 30_000, ONLY_SPOT), ("spot", 30_000, {**ONLY_SPOT, "instance-type": "m7i"})],
    ),
    "no market labels": (UNLABELLED, "on_demand", 1, [("on_demand", 100_800, {})]),
    "no market labels, with fallback": (UNLABELLED, "spot_with_fallback", 1, [("on_demand", 100_800, {})]),
    "unlabelled nodes next to spot": (
        [node("plain", 2), SPOT],
        "spot_with_fallback",
        1,
        [("on_demand", 100_800, NO_SPOT), ("spot", 16_200, ONLY_SPOT)],
    ),
    # Spot nodes are excluded even if they are too small for the trial.
    "on demand next to spot": ([node("plain", 2), SPOT], "on_demand", 1, [("on_demand", 100_800, NO_SPOT)]),
    "on demand next to small spot": (
        [node("plain", 2), SPOT],
        "on_demand",
        2,
        [("on_demand", 100_800, NO_SPOT)],
    ),
}


@pytest.mark.parametrize("name", OFFERED)
def test_offers_have_the_highest_price_of_the_nodes_that_ray_can_distinguish(
    tmp_path: Path, name: str
) -> None:
    cluster, market, cpus, offers = OFFERED[name]
    assert of(cluster, tmp_path, market=market, cpus=cpus) == offers


def test_price_without_label_comes_from_instance_type_and_market(tmp_path: Path) -> None:
    prices = "m7i.large=0.1,m7i.large/spot=0.03"
    for cluster, given, expected in ((TYPED, prices, [100_000, 30_000]), (UNKNOWN, "", [50_400, 16_200])):
        assert [
            price for _, price, _ in of(cluster, tmp_path, given, market="spot_with_fallback")
        ] == expected


def test_node_returning_at_another_price_still_matches_its_offer(tmp_path: Path) -> None:
    before, other, after = (
        node(price, market="spot", kind="g6", price=price) for price in ("0.31", "0.29", "0.33")
    )
    wanted = Resources(market="spot")
    (offer,) = offers_of(settings(tmp_path), [before, other], wanted)
    assert offer.price.micro_usd_per_hour == 310_000
    assert offer.is_of(other.labels)
    assert offer.is_of(after.labels)


def test_indistinguishable_nodes_get_the_highest_price(tmp_path: Path) -> None:
    """A trial may run on either node, and a hold may be too large but never too small."""
    cluster = [node("a", 4, market="spot", price="0.04"), node("b", 1, market="spot", price="0.04")]
    (offer,) = offers_of(settings(tmp_path), cluster, Resources(cpus=1, market="spot"))
    assert offer.rate(Resources()).price.micro_usd_per_hour == 40_000


@pytest.mark.parametrize("cluster", [[node("plain")], [DEMAND], [node("odd", market="capacity-block")]])
def test_spot_without_spot_nodes_is_refused_and_names_the_label(cluster: list[Node]) -> None:
    with pytest.raises(Invalid) as refused:
        suitable(cluster, Resources(market="spot"))
    (fault,) = refused.value.faults
    assert fault.pointer == "/resources/market"
    assert "ray.io/market-type=spot" in fault.detail
    assert "spot_with_fallback" in fault.detail


def test_on_demand_is_refused_if_all_nodes_are_spot() -> None:
    with pytest.raises(Invalid, match=r"ray\.io/market-type=on-demand"):
        suitable([SPOT], Resources(market="on_demand"))


def test_oversized_request_is_refused_before_the_market_is_checked() -> None:
    with pytest.raises(Invalid, match="/resources/cpus"):
        suitable([SPOT], Resources(cpus=2, market="on_demand"))


@pytest.mark.parametrize("price", ["", "cheap", "nan", "-1", "1e9", "inf"])
def test_invalid_price_label_is_ignored(price: str) -> None:
    assert node("a", price=price).usd_per_hour is None


def test_price_with_more_than_six_decimals_is_rounded_up() -> None:
    assert node("a", price="0.01234561").usd_per_hour == Decimal("0.012346")


HEAD_OF_CSV = "cloud,region,zone,instance_type,vcpus,accelerator,accelerator_count,on_demand_usd_h,spot_usd_h,on_demand_date,spot_date\n"
LISTED = (
    "aws,us-east-1,use1-az1,g6.xlarge,4,L4,1,0.8,0.3,2026-07,2026-07\n"
    "aws,us-east-1,use1-az2,g6.xlarge,4,L4,1,0.8,0.4,2026-07,2026-07\n"
    "aws,eu-west-1,euw1-az1,g6.xlarge,4,L4,1,0.9,,2026-07,\n"
)


def listed(home: Path) -> Settings:
    file = home / "listed.csv"
    file.write_text(HEAD_OF_CSV + LISTED)
    return Settings.from_env({"TUNER_HOME": str(home), "TUNER_PRICES": str(file)})


def placed(name: str, region: str = "", zone: str = "", market: str = "spot") -> Node:
    labels = {MARKET: market, "instance-type": "g6.xlarge", "region": region, "zone": zone}
    return Node(name, 4, 1, 1 << 30, {key: value for key, value in labels.items() if value})


@pytest.mark.parametrize(
    ("region", "zone", "market", "micro"),
    [
        ("us-east-1", "use1-az1", "spot", 300_000),
        ("us-east-1", "us-east-1a", "spot", 400_000),
        ("us-east-1", "", "spot", 400_000),
        ("", "", "spot", 400_000),
        ("", "", "on-demand", 900_000),
        ("us-east-1", "", "on-demand", 800_000),
    ],
)
def test_catalogue_price_is_exact_or_the_highest_that_matches(
    tmp_path: Path, region: str, zone: str, market: str, micro: int
) -> None:
    wanted = Resources(gpus=1, market="spot_with_fallback")
    (offer,) = offers_of(listed(tmp_path), [placed("a", region, zone, market)], wanted)
    assert offer.price.micro_usd_per_hour == micro
    assert "2026-07" in offer.source


def test_unknown_spot_price_is_refused_and_never_zero(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        offers_of(listed(tmp_path), [placed("a", "eu-west-1")], Resources(gpus=1, market="spot"))
    (fault,) = refused.value.faults
    assert fault.pointer == "/resources/market"
    assert "has no price of g6.xlarge on spot in eu-west-1" in fault.detail
    assert "us-east-1" in fault.detail
    assert "TUNER_NODE_PRICES=g6.xlarge/spot=" in fault.detail


def test_unpriced_machine_is_left_out_if_others_have_prices(tmp_path: Path) -> None:
    cluster = [placed("a", "eu-west-1"), placed("b", "eu-west-1", market="on-demand")]
    wanted = Resources(gpus=1, market="spot_with_fallback")
    assert [offer.market for offer in offers_of(listed(tmp_path), cluster, wanted)] == ["on_demand"]
    assert len(priced_nodes(listed(tmp_path), cluster, wanted)) == 1


def test_unknown_region_does_not_use_the_price_of_another_region(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no price of g6\.xlarge on demand in ap-south-1"):
        offers_of(listed(tmp_path), [placed("a", "ap-south-1", market="on-demand")], Resources(gpus=1))


def test_more_gpus_than_the_instance_type_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"/resources/gpus: g6.xlarge has 1 L4 GPUs, not 2"):
        offers_of(listed(tmp_path), [placed("a")], Resources(gpus=2, instance_type="g6.xlarge"))


def test_region_without_nodes_is_refused_with_the_available_regions(tmp_path: Path) -> None:
    with pytest.raises(
        Invalid,
        match=r"/resources/region: no node of this size is in us-est-1; the regions of the nodes are us-east-1",
    ):
        offers_of(listed(tmp_path), [placed("a", "us-east-1")], Resources(gpus=1, region="us-est-1"))
    with pytest.raises(
        Invalid, match=r"/resources/region: .* no node has a region label; leave out the region"
    ):
        offers_of(listed(tmp_path), [placed("a")], Resources(gpus=1, region="us-est-1"))


def test_misspelt_instance_type_is_refused_with_the_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no node has the instance type g6.xlrge; the nodes have g6.xlarge"):
        offers_of(listed(tmp_path), [placed("a")], Resources(gpus=1, instance_type="g6.xlrge"))


TYPES = (
    '{"max_workers": 3, "available_node_types": {'
    '"spot": {"max_workers": 3, "resources": {"CPU": 4}, "labels": {"ray.io/market-type": "spot", "instance-type": '
    '"m7i.xlarge", "usd-per-hour": "0.09"}},'
    '"demand": {"max_workers": 1, "resources": {"CPU": 8}, "labels": {"instance-type": "m7i.2xlarge", "usd-per-hour": "0.4"}}}}'
)


def growing(home: Path) -> Settings:
    return Settings.from_env({"TUNER_HOME": str(home), "TUNER_NODE_TYPES": TYPES})


def test_machines_of_the_autoscaler_are_offered_before_any_runs(tmp_path: Path) -> None:
    cluster = with_those_to_come(growing(tmp_path), [HEAD])
    offers = offers_of(growing(tmp_path), cluster, Resources(market="spot_with_fallback"))
    assert [(offer.market, offer.instance_type, offer.price.usd_per_hour) for offer in offers] == [
        ("on_demand", "m7i.2xlarge", 0.4),
        ("spot", "m7i.xlarge", 0.09),
    ]
    assert len(priced_nodes(growing(tmp_path), cluster, Resources(cpus=4, market="spot"))) == 3


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        (Resources(cpus=9), "/resources/cpus"),
        (Resources(gpus=1), "/resources/gpus"),
        (Resources(cpus=5, market="spot"), "/resources/market"),
        (Resources(instance_type="m7i.xlrge", market="spot"), "/resources/instance_type"),
    ],
)
def test_request_that_no_machine_type_fits_is_refused_with_the_types(
    tmp_path: Path, wanted: Resources, pointer: str
) -> None:
    with pytest.raises(Invalid) as refused:
        suitable(with_those_to_come(growing(tmp_path), [HEAD]), wanted)
    (fault,) = refused.value.faults
    assert fault.pointer == pointer
    assert (
        "demand (m7i.2xlarge, on-demand, 8 CPUs, 0 GPUs), spot (m7i.xlarge, spot, 4 CPUs, 0 GPUs)"
        in fault.detail
    )
