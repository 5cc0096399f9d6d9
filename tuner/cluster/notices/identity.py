"""Facts about this machine from its cloud: type, region, zone and market. They determine the price.

Sources: on AWS the instance identity document and `instance-life-cycle`. On Google `machine-type`, `zone` and
`scheduling/preemptible`, which is TRUE for Spot VMs as well. On Azure `instance/compute` with `vmSize`, `location` and `priority`.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

import httpx2

from tuner.cluster.notices import aws, azure, gcp
from tuner.cluster.notices.clouds import Cloud, Sources
from tuner.cluster.notices.feeds import ask, metadata_client
from tuner.cluster.notices.notice import MalformedNotice, object_of, shown, string, succeeded, text_of

AWS_DOCUMENT = "/latest/dynamic/instance-identity/document"
AWS_LIFE_CYCLE = "/latest/meta-data/instance-life-cycle"
AWS_ZONE_ID = "/latest/meta-data/placement/availability-zone-id"
AZURE_COMPUTE = "/metadata/instance/compute"
AZURE_QUERY = {"api-version": "2021-02-01", "format": "json"}
TRIES = 3
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
Facts = Mapping[str, str]
"""The values of `instance_type`, `region`, `zone` and `market` that are known."""
log = logging.getLogger("tuner.notices")


def facts_of_this_machine(sources: Sources) -> Facts:
    """Return the facts about this machine. Return an empty mapping if `sources` names no cloud or the cloud does not answer."""
    return {} if sources.cloud in (None, "detect") else asyncio.run(_tried(sources))


async def _tried(sources: Sources) -> Facts:
    assert sources.cloud is not None
    assert sources.cloud != "detect"
    for _ in range(TRIES):
        try:
            async with metadata_client() as http:
                return await _OF_CLOUD[sources.cloud](http, sources)
        except (MalformedNotice, TimeoutError, httpx2.HTTPError) as error:
            why = error
            await asyncio.sleep(sources.backoff_s)
    log.warning("this machine's type is not known, because its cloud did not answer: %s", why)
    return {}


async def _aws(http: httpx2.AsyncClient, sources: Sources) -> Facts:
    imds = aws.Imds(http, sources.aws_url, timeout_s=sources.answer_s)
    document = await imds.get(AWS_DOCUMENT)
    succeeded(document)
    found = object_of(document)
    life = await imds.get(AWS_LIFE_CYCLE)
    succeeded(life)
    zone = await imds.get(AWS_ZONE_ID)
    return _facts(
        string(found, "instanceType"),
        string(found, "region"),
        text_of(zone) if zone.status == 200 else "",
        is_spot=text_of(life) == "spot",
    )


async def _gcp(http: httpx2.AsyncClient, sources: Sources) -> Facts:
    async def value(key: str) -> str:
        url = f"{sources.gcp_url}{gcp.BASE}/{key}"
        answer = await ask(http, "GET", url, headers=gcp.HEADERS, timeout_s=sources.answer_s)
        succeeded(answer)
        return text_of(answer).rsplit("/", 1)[-1]

    zone = await value("zone")
    preemptible = await value("scheduling/preemptible")
    return _facts(await value("machine-type"), zone.rpartition("-")[0], zone, is_spot=preemptible == "TRUE")


async def _azure(http: httpx2.AsyncClient, sources: Sources) -> Facts:
    url = sources.azure_url + AZURE_COMPUTE
    asked = ask(http, "GET", url, headers=azure.HEADERS, params=AZURE_QUERY, timeout_s=sources.answer_s)
    answer = await asked
    succeeded(answer)
    found = object_of(answer)
    is_spot = found.get("priority") in ("Spot", "Low")
    return _facts(string(found, "vmSize"), string(found, "location"), "", is_spot=is_spot)


def _facts(instance_type: str, region: str, zone: str, *, is_spot: bool) -> Facts:
    found = {"instance_type": instance_type, "region": region, "zone": zone}
    for name, word in found.items():
        if word and not _WORD.fullmatch(word):
            raise MalformedNotice(f"{shown(word)} is no {name}")
    market = "spot" if is_spot else "on_demand"
    return {**{name: word for name, word in found.items() if word}, "market": market}


_OF_CLOUD: dict[Cloud, Callable[[httpx2.AsyncClient, Sources], Awaitable[Facts]]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
}
