"""The route for the price catalogue."""

from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from tuner.api.deps import Svc
from tuner.domain.time import NS
from tuner.schemas.prices import CatalogueAge, Prices
from tuner.service.catalogue import Catalogue, Market, prices

router = APIRouter(tags=["prices"])


@router.get("/prices")
def list_prices(
    service: Svc,
    *,
    cloud: str | None = None,
    region: str | None = None,
    zone: str | None = None,
    instance_type: str | None = None,
    accelerator: str | None = None,
    market: Market | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Prices:
    """List machines and their prices with dates and sources, cheapest first.

    With `market`, machines without a known price on that market are left out, and the list is sorted by that price.
    """
    today = datetime.fromtimestamp(service.now() // NS, UTC).date()
    words = {
        "cloud": cloud,
        "region": region,
        "zone": zone,
        "instance_type": instance_type,
        "accelerator": accelerator,
    }
    view = prices(service.settings, today, words, market)
    return Prices.model_validate(
        {
            "items": view.listings[:limit],
            "total": len(view.listings),
            "catalogue": catalogue_age(view.catalogue, view.today),
            "warning": view.warning,
            "data_rates": view.rates,
        }
    )


def catalogue_age(catalogue: Catalogue, today: date) -> CatalogueAge:
    return CatalogueAge(
        name=catalogue.name,
        listings=len(catalogue.listings),
        newest=catalogue.newest,
        oldest=catalogue.oldest,
        undated=catalogue.undated,
        age_days=catalogue.age_days(today),
        age=catalogue.age(today),
    )
