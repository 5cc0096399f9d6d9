"""Import slow modules after the service has started, so that the first request that needs them does not wait."""

from importlib import import_module

LATER = ("scipy.special", "tuner.service.plan_runs")  # for forecasts and for plans


def preload() -> None:
    for name in LATER:
        import_module(name)
