"""Describe the age of a price catalogue in the form of an answer.

`tuner prices --update` uses this module without a service. This module therefore imports only what it needs for prices.
"""

from datetime import date

from tuner.schemas.prices import CatalogueAge
from tuner.service.catalogue import Catalogue


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
