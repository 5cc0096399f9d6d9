"""The three Ray clusters that the tests of a run share.

Each is started by the first test that uses it. `GROUPS` in tests/conftest.py sends all files that use one of them to the same
pytest worker, which runs them one after the other and then stops the cluster: one without work takes a tenth of a core.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fsspec
import pytest

from tests.system.serving import Served
from tests.system.spot_cluster import OnSpot, SpotCluster, left_of
from tests.worker.object_storage import Proxy, moto_server
from tuner.cluster.dashboard import Dashboard
from tuner.cluster.head import LocalHead

GPUS = 3
#: Stops the shared cluster of this worker. tests/conftest.py closes it after the last test of a group.
RUNNING = ExitStack()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A service and its Ray cluster with logical GPUs. Tests must leave both running and undamaged."""
    service = Served(tmp_path_factory.mktemp("home"), gpus=GPUS)
    RUNNING.callback(service.stop)
    return service.start()


@pytest.fixture(scope="session")
def local_head(served: Served) -> LocalHead:
    """The Ray head of `served`."""
    return LocalHead(served.home)


@pytest.fixture(scope="session")
def dashboard(local_head: LocalHead) -> Iterator[Dashboard]:
    ray_dashboard = Dashboard(local_head.find_or_start().dashboard_url, local_head.token, timeout_s=60)
    yield ray_dashboard
    ray_dashboard.close()


@pytest.fixture(scope="session")
def broken_before(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The service of `breakable`, in the state in which the last test left it."""
    return RUNNING.enter_context(_breakable_in(tmp_path_factory.mktemp("breakable")))


@contextmanager
def _breakable_in(home: Path) -> Iterator[Served]:
    with moto_server() as port:
        proxy = Proxy(port)
        service = Served(
            home,
            prices="local=0.20",
            gpus=4,
            TUNER_LOCAL_CPUS="4",
            TUNER_STORAGE="s3://checkpoints/of/jobs",
            AWS_ENDPOINT_URL=proxy.url,
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="us-east-1",
        )
        try:
            storage_of(service).mkdir("checkpoints")
            yield service.start()
        finally:
            service.stop()
            proxy.close()
        assert any(call.startswith("PUT /checkpoints/of/jobs/default/job_") for call in proxy.asked)


@pytest.fixture
def breakable(broken_before: Served) -> Served:
    """A service whose processes tests may kill. It runs four trials at once, at $0.05 an hour each and with a logical GPU each if they
    want it, and stores checkpoints in S3 over HTTP.
    """
    if broken_before.process.poll() is not None:
        broken_before.start()
    return broken_before


def storage_of(service: Served) -> fsspec.AbstractFileSystem:
    """Return the storage of `breakable` through a separate client that caches nothing."""
    environment = service.environment
    return fsspec.filesystem(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        key=environment["AWS_ACCESS_KEY_ID"],
        secret=environment["AWS_SECRET_ACCESS_KEY"],
        skip_instance_cache=True,
        use_listings_cache=False,
    )


@pytest.fixture(scope="session")
def on_spot(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> OnSpot:
    """A service on one on-demand node and spot nodes, which tests may preempt: one trains, one is being replaced, and
    with --all one is free.
    """
    spot = 3 if request.config.option.all else 2
    return RUNNING.enter_context(_on_spot_in(tmp_path_factory.mktemp("spot"), spot))


@pytest.fixture
def on_spot_with_gpus(tmp_path: Path) -> Iterator[OnSpot]:
    """A service on one on-demand node and three spot nodes, each of which has a logical GPU."""
    with _on_spot_in(tmp_path / "spot", 3, gpus=1) as service:
        yield service


@contextmanager
def _on_spot_in(home: Path, spot: int, gpus: int = 0) -> Iterator[OnSpot]:
    cluster = SpotCluster(home, spot=spot, gpus=gpus, replace_after="1s")
    service = OnSpot(cluster, TUNER_SPOT_WAIT="8")
    try:
        cluster.wait()
        yield service.start()
    finally:
        service.stop()
        cluster.stop()
    assert left_of(cluster.home) == []
