"""Test that a cloud's description of a machine reaches the workers of its nodes, and how it changes the
machine's labels.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.metadata_clouds import Aws, Azure, Gcp
from tests.cluster.metadata_server import MetadataServer, says, status
from tuner.cluster import nodes as its
from tuner.cluster.notices.clouds import Sources, facts_of_this_machine
from tuner.cluster.notices.node_board import NodeBoard
from tuner.domain.offer import MARKET_LABEL


def facts(server: MetadataServer[Any], cloud: Any) -> Any:
    url = server.url
    return facts_of_this_machine(
        Sources(cloud=cloud, aws_url=url, gcp_url=url, azure_url=url, answer_s=1.0, backoff_s=0.01)
    )


AWS_SAID = {"instance_type": "g6.xlarge", "region": "us-east-2", "zone": "use2-az1", "market": "spot"}


@pytest.mark.parametrize(
    ("cloud", "name", "answer"),
    [
        (Aws(), "aws", AWS_SAID),
        (
            Gcp(),
            "gcp",
            {
                "instance_type": "g2-standard-4",
                "region": "us-central1",
                "zone": "us-central1-a",
                "market": "on_demand",
            },
        ),
        (Azure(), "azure", {"instance_type": "Standard_NC4as_T4_v3", "region": "eastus", "market": "spot"}),
    ],
)
def test_each_cloud_reports_instance_type_location_and_market(
    cloud: Any, name: str, answer: dict[str, str]
) -> None:
    with MetadataServer(cloud) as server:
        assert facts(server, name) == answer


def test_failed_request_is_retried_and_invalid_answer_gives_no_facts() -> None:
    with MetadataServer(Aws()) as server:
        server.fail("instance-life-cycle", status(500), times=1)
        assert facts(server, "aws") == AWS_SAID
    with MetadataServer(Aws()) as server:
        server.fail("document", says(b'{"instanceType": "a b", "region": "x"}'), times=3)
        assert facts(server, "aws") == {}
    assert facts_of_this_machine(Sources(cloud=None)) == {}


def test_machine_facts_reach_the_workers_of_the_node(tmp_path: Path) -> None:
    board = NodeBoard(tmp_path / "boards")
    assert board.described("a") == {}
    board.describe("a", AWS_SAID)
    assert board.described("a") == AWS_SAID
    assert board.earliest_notice("a") is None
    (tmp_path / "boards_machines" / "a").write_text("[]")
    assert board.described("a") == {}


def test_cloud_facts_override_labels_and_drop_a_mismatched_price() -> None:
    labels = {MARKET_LABEL: "spot", "instance-type": "g6.xlarge", its.PRICE: "0.3"}
    same = its.corrected(labels, AWS_SAID)
    assert (its.market_of(same), its.instance_type_of(same), its.region_of(same), its.zone_of(same)) == (
        "spot",
        "g6.xlarge",
        "us-east-2",
        "use2-az1",
    )
    assert its.usd_per_hour(same) is not None
    other = its.corrected(labels, {**AWS_SAID, "market": "on_demand"})
    assert (its.market_of(other), its.usd_per_hour(other)) == ("on_demand", None)
    dearer = its.corrected(labels, {**AWS_SAID, "instance_type": "p5.48xlarge"})
    assert (its.instance_type_of(dearer), its.usd_per_hour(dearer)) == ("p5.48xlarge", None)
    labelled = {**labels, "region": "us-east-2"}
    assert its.usd_per_hour(its.corrected(labelled, AWS_SAID)) is not None
    elsewhere = its.corrected({**labels, "region": "us-east-1"}, AWS_SAID)
    assert (its.region_of(elsewhere), its.usd_per_hour(elsewhere)) == ("us-east-2", None)
    assert its.corrected(labels, {}) == labels
