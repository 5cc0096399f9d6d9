"""Detect the cloud of this machine and create the feeds of its notices."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import httpx2

from tuner.cluster.notices import aws, azure, gcp
from tuner.cluster.notices.feeds import Feed, metadata_client, wall_clock

Cloud = Literal["aws", "gcp", "azure"]
# The same address in all three clouds. Not a host name, because a DNS answer could lead to another server.
METADATA_URL = "http://169.254.169.254"
PROBE_S = 2.0
PROBE_PAUSE_S = 1.0
log = logging.getLogger("tuner.notices")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look for notices, how often, and how long to wait for an answer. All times are in seconds."""

    cloud: Cloud | Literal["detect"] | None = "detect"  #: None means no cloud.
    aws_url: str = METADATA_URL
    gcp_url: str = METADATA_URL
    azure_url: str = METADATA_URL
    detect_s: float = 10.0  #: How long to try to detect the cloud.
    answer_s: float = 3.0
    aws_poll_s: float = 5.0
    #: Time from a preemption's notice to the end of the machine: 30, or more if it was created with a preemption notice duration.
    gcp_lead_s: float = 30.0
    gcp_hang_s: int = 10  #: How long a request waits for a change of the notices.
    gcp_pause_s: float = 1.0
    azure_machine: str = ""  #: The machine's name in Azure. If empty, the metadata service is asked for it.
    azure_poll_s: float = 1.0
    azure_first_answer_s: float = 150.0
    backoff_s: float = 0.5
    backoff_max_s: float = 10.0


async def detect(http: httpx2.AsyncClient, sources: Sources) -> Cloud | None:
    """Return the cloud of this machine, or None if no cloud is recognized within `detect_s`.

    A cloud is recognized because its metadata service answers in a specific way.
    """
    probes: dict[Cloud, Awaitable[bool]]
    with suppress(TimeoutError):
        async with asyncio.timeout(sources.detect_s):
            while True:
                probes = {
                    "gcp": gcp.is_here(http, sources.gcp_url, PROBE_S),
                    "azure": azure.is_here(http, sources.azure_url, PROBE_S),
                    "aws": aws.is_here(http, sources.aws_url, PROBE_S),
                }
                found = await asyncio.gather(*probes.values(), return_exceptions=True)
                for cloud, here in zip(probes, found, strict=True):
                    if here is True:
                        return cloud
                await asyncio.sleep(PROBE_PAUSE_S)
    return None


async def cloud_of_this_machine(sources: Sources) -> Cloud | None:
    """Return the cloud as `detect` does, with a new HTTP client."""
    async with metadata_client() as http:
        return await detect(http, sources)


async def feeds(http: httpx2.AsyncClient, sources: Sources) -> list[Feed]:
    """Return the feeds of the machine's cloud, or an empty list if it is not in a cloud."""
    cloud = await detect(http, sources) if sources.cloud == "detect" else sources.cloud
    if cloud is None:
        log.info("no cloud gives preemption notices to this machine")
        return []
    found = _OF_CLOUD[cloud](http, sources)
    log.info("watching for notices: %s", ", ".join(feed.name for feed in found))
    return found


def _aws_feeds(http: httpx2.AsyncClient, sources: Sources) -> list[Feed]:
    imds = aws.Imds(http, sources.aws_url, timeout_s=sources.answer_s)
    return [
        aws.AwsFeed(imds, path, read, pause_s=sources.aws_poll_s)
        for path, read in (
            (aws.ACTION_PATH, aws.read_action),
            (aws.REBALANCE_PATH, aws.read_rebalance),
        )
    ]


def _gcp_feeds(http: httpx2.AsyncClient, sources: Sources) -> list[Feed]:
    lead_s = sources.gcp_lead_s
    return [
        gcp.GcpFeed(
            http,
            sources.gcp_url,
            key,
            read,
            pause_s=sources.gcp_pause_s,
            hang_s=sources.gcp_hang_s,
            timeout_s=sources.answer_s,
        )
        for key, read in (
            ("preempted", lambda answer: gcp.read_preempted(answer, wall_clock(), lead_s=lead_s)),
            ("maintenance-event", lambda answer: gcp.read_maintenance(answer, wall_clock())),
        )
    ]


def _azure_feeds(http: httpx2.AsyncClient, sources: Sources) -> list[Feed]:
    return [
        azure.AzureFeed(
            http,
            sources.azure_url,
            machine=sources.azure_machine,
            pause_s=sources.azure_poll_s,
            timeout_s=sources.answer_s,
            first_s=sources.azure_first_answer_s,
        )
    ]


_OF_CLOUD: dict[Cloud, Callable[[httpx2.AsyncClient, Sources], list[Feed]]] = {
    "aws": _aws_feeds,
    "gcp": _gcp_feeds,
    "azure": _azure_feeds,
}
