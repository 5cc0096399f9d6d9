"""Import most trainables of these tests, so that one fork server serves them all."""

from tests.frameworks import with_optuna, with_ray_tune, with_sklearn  # noqa: F401
from tests.worker import cases, restoring, tune_cases  # noqa: F401
