"""Import most trainables of these tests, so that one fork server serves them all."""

from tests.worker import cases, restoring, tune_cases  # noqa: F401
