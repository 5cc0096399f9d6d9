"""Import modules in advance that a starting service does not need, so that the first request that needs them does not wait."""

from importlib import import_module

LATER = ("scipy.special", "tuner.service.plan_runs")  # forecasts, plans


def preload() -> None:
    for name in LATER:
        import_module(name)
