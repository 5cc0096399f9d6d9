"""Default environment variables for MLflow's client. Set them before MLflow is imported, because it reads them at import."""

import os

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # otherwise MLflow reports its use to its makers
    # Otherwise the client repeats a failed request for minutes. The follower retries by itself.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def set_defaults() -> None:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
