"""Import most trainables of these tests, so that one fork server serves them all."""

from tests.worker import cases, forgetful, forgetful_tune, optimising, tune_cases, tune_class  # noqa: F401
