"""Small experiments on how Ray Tune 2.60 behaves. Their results are in docs/ray-experiments.md.

Ray reads its environment when it is imported, so that is set here, before any experiment is.
"""

import os
import secrets

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
