"""Modules that a start does without, and for which the first request that needs them should not wait."""

from importlib import import_module

LATER = ("scipy.special", "tuner.service.plan_runs")  # forecasts, plans


def preload() -> None:
    for name in LATER:
        import_module(name)
