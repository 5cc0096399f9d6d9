"""Detect which cloud this machine is in, make the feeds of its notices, and read the cloud's facts about the machine.

The facts are the type, region, zone and market, which determine the price. On AWS they come from the instance identity document and
`instance-life-cycle`. On Google they come from `machine-type`, `zone` and `scheduling/preemptible`, which is TRUE for Spot VMs as well.
On Azure they come from `vmSize`, `location` and `priority` in `instance/compute`.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import httpx2

from tuner.cluster.notices import aws, azure, gcp
from tuner.cluster.notices.feeds import Feed, ask, metadata_client
from tuner.cluster.notices.notice import MalformedNotice, object_of, shown, string, succeeded, text_of
from tuner.domain.time import system_now

Cloud = Literal["aws", "gcp", "azure"]
# The same address in all three clouds. Not a host name, because a DNS answer could lead to another server.
METADATA_URL = "http://169.254.169.254"
PROBE_S = 2.0
PROBE_PAUSE_S = 1.0
AWS_DOCUMENT = "/latest/dynamic/instance-identity/document"
AWS_LIFE_CYCLE = "/latest/meta-data/instance-life-cycle"
AWS_ZONE_ID = "/latest/meta-data/placement/availability-zone-id"
AZURE_COMPUTE = "/metadata/instance/compute"
AZURE_QUERY = {"api-version": "2021-02-01", "format": "json"}
FACTS_TRIES = 3
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
Facts = Mapping[str, str]
"""The values of `instance_type`, `region`, `zone` and `market` that are known."""
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
    azure_poll_s: float = 1.0
    azure_first_answer_s: float = 150.0
    backoff_s: float = 0.5
    backoff_max_s: float = 10.0


def detect(sources: Sources, over: threading.Event | None = None) -> Cloud | None:
    """Return the cloud of this machine, or None if no cloud is recognized within `detect_s` or until `over` is set.

    A cloud is recognized because its metadata service answers in a specific way.
    """
    over = over or threading.Event()
    deadline = time.monotonic() + sources.detect_s
    probes: dict[Cloud, tuple[Callable[[httpx2.Client, str, float], bool], str]] = {
        "gcp": (gcp.is_here, sources.gcp_url),
        "azure": (azure.is_here, sources.azure_url),
        "aws": (aws.is_here, sources.aws_url),
    }
    with metadata_client() as http:
        while not over.is_set():
            for cloud, (is_here, url) in probes.items():
                # If another kind of service answers, the answer is malformed.
                with suppress(MalformedNotice, TimeoutError, httpx2.HTTPError):
                    if is_here(http, url, PROBE_S):
                        return cloud
            if time.monotonic() + PROBE_PAUSE_S > deadline:
                return None
            over.wait(PROBE_PAUSE_S)
    return None


def feeds(http: httpx2.Client, sources: Sources, over: threading.Event | None = None) -> list[Feed]:
    """Return the sources of preemption notices in the machine's cloud, or an empty list if the machine is not in a cloud."""
    cloud = detect(sources, over) if sources.cloud == "detect" else sources.cloud
    match cloud:
        case "aws":
            imds = aws.Imds(http, sources.aws_url, timeout_s=sources.answer_s)
            cloud_feeds: list[Feed] = [aws.AwsFeed(imds, pause_s=sources.aws_poll_s)]
        case "gcp":
            cloud_feeds = _gcp_feeds(http, sources)
        case "azure":
            azure_times = sources.azure_poll_s, sources.answer_s, sources.azure_first_answer_s
            cloud_feeds = [azure.AzureFeed(http, sources.azure_url, *azure_times)]
        case None:
            log.info("no cloud sends preemption notices to this machine")
            return []
    log.info("watching for notices: %s", ", ".join(feed.name for feed in cloud_feeds))
    return cloud_feeds


def _gcp_feeds(http: httpx2.Client, sources: Sources) -> list[Feed]:
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
            ("preempted", lambda answer: gcp.read_preempted(answer, system_now(), lead_s=lead_s)),
            ("maintenance-event", lambda answer: gcp.read_maintenance(answer, system_now())),
        )
    ]


# Facts about the machine


def facts_of_this_machine(sources: Sources) -> Facts:
    """Return the facts about this machine, such as its type and region, as its cloud reports them.

    Return an empty mapping if the cloud does not answer, or if `sources.cloud` does not name a cloud, but is None or `detect`.
    """
    if sources.cloud is None or sources.cloud == "detect":
        return {}
    read = {"aws": _aws_facts, "gcp": _gcp_facts, "azure": _azure_facts}[sources.cloud]
    with metadata_client() as http:
        for _ in range(FACTS_TRIES):
            try:
                return read(http, sources)
            except (MalformedNotice, TimeoutError, httpx2.HTTPError) as error:
                why = error
                time.sleep(sources.backoff_s)
    log.warning("this machine's type is not known, because its cloud did not answer: %s", why)
    return {}


def _aws_facts(http: httpx2.Client, sources: Sources) -> Facts:
    imds = aws.Imds(http, sources.aws_url, timeout_s=sources.answer_s)
    document, life = imds.get(AWS_DOCUMENT), imds.get(AWS_LIFE_CYCLE)
    succeeded(document)
    succeeded(life)
    zone = imds.get(AWS_ZONE_ID)
    values = object_of(document)
    return _facts(
        string(values, "instanceType"),
        string(values, "region"),
        text_of(zone) if zone.status == 200 else "",
        is_spot=text_of(life) == "spot",
    )


def _gcp_facts(http: httpx2.Client, sources: Sources) -> Facts:
    def value(key: str) -> str:
        url = f"{sources.gcp_url}{gcp.BASE}/{key}"
        answer = ask(http, "GET", url, headers=gcp.HEADERS, timeout_s=sources.answer_s)
        succeeded(answer)
        return text_of(answer).rsplit("/", 1)[-1]

    zone = value("zone")
    is_spot = value("scheduling/preemptible") == "TRUE"
    return _facts(value("machine-type"), zone.rpartition("-")[0], zone, is_spot=is_spot)


def _azure_facts(http: httpx2.Client, sources: Sources) -> Facts:
    url = sources.azure_url + AZURE_COMPUTE
    answer = ask(http, "GET", url, headers=azure.HEADERS, params=AZURE_QUERY, timeout_s=sources.answer_s)
    succeeded(answer)
    values = object_of(answer)
    is_spot = values.get("priority") in ("Spot", "Low")
    return _facts(string(values, "vmSize"), string(values, "location"), "", is_spot=is_spot)


def _facts(instance_type: str, region: str, zone: str, *, is_spot: bool) -> Facts:
    facts = {"instance_type": instance_type, "region": region, "zone": zone}
    for name, word in facts.items():
        if word and not _WORD.fullmatch(word):
            raise MalformedNotice(f"{shown(word)} is not a valid {name}")
    market = "spot" if is_spot else "on_demand"
    return {**{name: word for name, word in facts.items() if word}, "market": market}
