"""Fixtures: a service over a fake cluster."""

from tests import fakes

service, client = fakes.fixtures("function")
