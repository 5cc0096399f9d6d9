"""A service over a cluster of no substance."""

from tests import fakes

service, client = fakes.fixtures("function")
