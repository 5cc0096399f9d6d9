"""Rule: checkpoints are stored in another region, and the cloud bills each GB that leaves a region."""

from fractions import Fraction

from tuner.domain.money import Money
from tuner.planning.advice.evidence import Evidence, sums
from tuner.planning.advice.finding import Change, Finding

GB = 10**9


def finding(evidence: Evidence) -> Finding | None:
    places = evidence.places
    if (
        places.compute is None
        or places.storage is None
        or places.compute.casefold() == places.storage.casefold()
    ):
        return None
    sent = sums(evidence.pieces).get("saved_bytes")
    if not sent:
        return None
    price = places.egress_usd_per_gb
    usd = None if price is None else Money(price.micro_usd * sent // GB)
    return Finding(
        kind="regions_apart",
        title=f"Trials ran in {places.compute}, their checkpoints went to {places.storage}",
        evidence={
            "compute_region": places.compute,
            "storage_region": places.storage,
            "sent_gb": Fraction(sent, GB),
            "egress_usd_per_gb": price,
            "egress_source": places.source or None,
            "egress_usd": usd,
        },
        change=Change(
            "TUNER_STORAGE",
            places.storage,
            f"a bucket in {places.compute}",
            "or resources.region, where machines cost no more there",
        ),
        saves=usd,
        saves_note="checkpoints that were sent, by the price of a GB that leaves the region; billed by the cloud, so not in this job's bill"
        if usd is not None
        else "what a GB costs that leaves this region is not known",
        verify="nothing about the training changes; the cloud's bill shows data transfer between the regions",
        confidence="medium",
    )
