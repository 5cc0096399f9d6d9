"""What MLflow's client reads from the environment as it is imported, where nobody has set it."""

import os

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would report its use to its makers
    # It would repeat a request for minutes, while the follower may wait itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def set_defaults() -> None:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
