"""Errors at the start of a service say what to do, before a job is accepted. The table is in docs/how-to/bad-start.md."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from tests import fakes
from tests.fakes import FakeService
from tests.listening import listening
from tests.service.passes import launch_of
from tests.service.ray_head import Head, HeadAnswers
from tuner.cli.main import app
from tuner.client.http import PROBLEM, STARTING
from tuner.cluster.cluster_file import ClusterFile, KeptCluster
from tuner.cluster.dashboard import ClusterStarting
from tuner.cluster.head import Head as LocalRay
from tuner.cluster.head import LocalHead
from tuner.cluster.local_watch import LocalWatch
from tuner.cluster.nodes import Node
from tuner.cluster.versions import RayUnfit
from tuner.database.sqlite import sqlite3
from tuner.domain.errors import Unavailable
from tuner.domain.time import NS
from tuner.service import doctor
from tuner.service.bootstrap import build
from tuner.service.cluster import RayCluster
from tuner.service.controller import Controller
from tuner.service.doctor import examine, fault_of_cluster, of_token, refuse_unfit
from tuner.service.leading import UNFIT_NS
from tuner.service.sole_use import HomeLock
from tuner.settings import Settings
from tuner.store import launches


class _Denies(HeadAnswers):
    """An S3 server that denies all writes.

    S3 clients wait for a response to `Expect: 100-continue` before they send a body, which needs HTTP/1.1.
    """

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET = do_HEAD = do_PUT


@pytest.fixture
def head() -> Iterator[Head]:
    with listening(Head()) as ray_head:
        yield ray_head


@pytest.fixture
def keys_of_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set S3 credentials and clear s3fs's cache of clients.

    The cache is keyed by thread id, and a later thread may have the same id. It would then use the S3 server of another test.
    """
    from s3fs import S3FileSystem  # takes a third of a second

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


def joined(service: FakeService, head: Head) -> Settings:
    return replace(service.settings, ray_address=head.url)


def serve(monkeypatch: pytest.MonkeyPatch, home: Path, **environ: str) -> Result:
    for name, value in {"TUNER_HOME": str(home), "TUNER_PORT": "0", **environ}.items():
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(app, ["serve"])


@pytest.mark.parametrize(("what", "theirs"), [("ray", "2.9.0"), ("python", "3.8.1")])
def test_cluster_of_another_version_refuses_jobs_with_what_to_do(
    service: FakeService, head: Head, what: str, theirs: str
) -> None:
    setattr(head, what, theirs)
    settings = joined(service, head)
    cluster = RayCluster(settings)
    answer = fakes.client_of(replace(service, cluster=cluster)).post("/v1/jobs", json=fakes.body())  # type: ignore[arg-type]
    assert answer.status_code == 503
    assert answer.json()["title"] == RayUnfit.title()
    assert theirs in answer.json()["detail"]
    assert "install the same version in both" in answer.json()["detail"]
    assert fault_of_cluster(cluster) == answer.json()["detail"]
    findings = {finding.part: finding for finding in examine(settings).findings}
    assert not findings["ray"].ok
    assert theirs in findings["ray"].seen
    setattr(head, what, {"ray": version("ray"), "python": python_version()}[what])
    cluster.check_fit()
    assert {finding.part: finding.ok for finding in examine(settings).findings}["ray"]


def test_local_ray_of_another_version_launches_no_driver(
    service: FakeService, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If jobs run during an upgrade, the local Ray continues with the version that it was started with."""
    local = LocalRay("session", "127.0.0.1:1", head.url, (os.getpid(),))
    monkeypatch.setattr(LocalHead, "find_or_start", lambda _: local)
    monkeypatch.setattr(LocalHead, "running", lambda _: local)
    monkeypatch.setattr(LocalHead, "alive", lambda _: head.ray == "2.9.0")
    monkeypatch.setattr(LocalWatch, "keep", lambda *_: None)
    head.ray = "2.9.0"
    cluster = RayCluster(service.settings)
    cluster.ensure()
    with pytest.raises(RayUnfit, match=r"has Ray 2\.9\.0, but the service has .*: run `tuner stop`"):
        cluster.submit("job_1-1", job="job_1", epoch=1, about={}, code=None)
    assert not [request for request in head.given if request.startswith("/api/jobs")]
    finding = {finding.part: finding for finding in examine(service.settings).findings}["ray"]
    assert (finding.ok, "run `tuner stop`" in finding.seen) == (False, True)
    head.ray = version("ray")  # `tuner stop` ended the head, and the service starts another one.
    cluster.ensure()
    cluster.check_fit()
    assert {finding.part: finding.ok for finding in examine(service.settings).findings}["ray"]


def test_advice_for_the_ray_of_a_local_cluster_is_to_start_that_cluster_again(
    service: FakeService, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tuner stop` does not end this Ray."""
    local = LocalRay("session", "127.0.0.1:1", head.url, (os.getpid(),))
    monkeypatch.setattr(LocalHead, "find_or_start", lambda _: local)
    monkeypatch.setattr(LocalHead, "running", lambda _: local)
    monkeypatch.setattr(LocalWatch, "keep", lambda *_: None)
    head.ray = "2.9.0"
    cluster = RayCluster(service.settings)
    cluster.ensure()
    file = ClusterFile(service.settings.home)
    with file.kept():
        file.write(KeptCluster("session"))
        with pytest.raises(RayUnfit, match="end `tuner cluster` with Ctrl-C and start it again"):
            cluster.check_fit()
        finding = {finding.part: finding for finding in examine(service.settings).findings}["ray"]
    assert (finding.ok, "end `tuner cluster` with Ctrl-C" in finding.seen) == (False, True)


def test_advice_for_a_local_ray_that_does_not_answer_is_to_restart_the_service(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that runs replaces only a Ray whose processes have ended."""
    local = LocalRay("session", "127.0.0.1:1", "http://127.0.0.1:9", (os.getpid(),))
    monkeypatch.setattr(LocalHead, "running", lambda _: local)
    finding = {finding.part: finding for finding in examine(service.settings).findings}["ray"]
    assert (finding.ok, "restart it if it runs" in finding.fix) == (False, True)


def test_local_ray_is_checked_again_after_it_was_replaced(
    service: FakeService, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalRay("session", "127.0.0.1:1", head.url, (os.getpid(),))
    monkeypatch.setattr(LocalHead, "find_or_start", lambda _: local)
    monkeypatch.setattr(LocalHead, "alive", lambda _: False)
    monkeypatch.setattr(LocalWatch, "keep", lambda *_: None)
    cluster = RayCluster(service.settings)
    cluster.ensure()
    cluster.check_fit()
    head.ray = "2.9.0"
    cluster.check_fit()
    cluster.ensure()
    with pytest.raises(RayUnfit):
        cluster.check_fit()


def test_unreachable_cluster_is_not_reported_as_incompatible(service: FakeService) -> None:
    cluster = RayCluster(replace(service.settings, ray_address="http://127.0.0.1:9"))
    assert fault_of_cluster(cluster) is None


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
def test_job_sent_while_the_local_cluster_starts_is_answered_with_a_code_that_clients_wait_for(
    service: FakeService, path: str
) -> None:
    starting = replace(service, cluster=RayCluster(service.settings))  # type: ignore[arg-type]
    answer = fakes.client_of(starting).post(path, json=fakes.body())
    assert (answer.status_code, answer.json()["type"]) == (503, PROBLEM + STARTING)
    assert answer.headers["Retry-After"]


def test_jobs_wait_for_the_local_cluster_each_time_that_it_starts(
    service: FakeService, client: TestClient, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fakes.submit(client)
    cluster = RayCluster(service.settings)
    starting = fakes.client_of(replace(service, cluster=cluster))  # type: ignore[arg-type]
    details = []

    def detail() -> str:
        return str(starting.get(f"/v1/jobs/{job}").json()["detail"])

    def start(_: LocalHead) -> LocalRay:
        details.append(detail())
        with pytest.raises(ClusterStarting, match="can take 5 minutes"):
            cluster.status("job_1-1")
        return LocalRay("session", "127.0.0.1:1", head.url, (os.getpid(),))

    monkeypatch.setattr(LocalHead, "find_or_start", start)
    monkeypatch.setattr(LocalHead, "alive", lambda _: False)
    monkeypatch.setattr(LocalWatch, "keep", lambda *_: None)
    for _ in range(2):
        cluster.ensure()
        assert detail() == ""
    assert details == 2 * ["waits until the Ray cluster has started"]


def test_jobs_wait_while_the_cluster_has_another_version(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client)
    service.cluster.unfit = "it has Ray 2.9.0"
    controller = Controller(service)
    controller.one_pass()
    assert launch_of(service, job).state == "wanted"
    assert client.post("/v1/jobs", json=fakes.body()).status_code == 503
    service.cluster.unfit = ""
    controller.one_pass()
    assert launch_of(service, job).state == "submitted"


def test_service_leads_on_while_jobs_wait_for_the_end_of_its_older_local_ray(
    service: FakeService, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Running jobs may use the older Ray for days, and another service could not launch the waiting jobs either."""
    fakes.submit(client)
    service.cluster.unfit = "it has Ray 2.9.0"
    controller = Controller(service)
    terms = []
    for _ in range(2 * UNFIT_NS // NS):
        controller.one_pass()
        terms.append(service.leading.term())
        service.now.pass_s(1)
    assert set(terms) == {terms[0]} != {None}
    assert service.health.controller_pass_age_s() is not None
    assert caplog.text.count("it has Ray 2.9.0") == 1


def test_service_gives_way_to_another_one_if_the_shared_cluster_has_another_version(
    service: FakeService, client: TestClient
) -> None:
    fakes.submit(client)
    service.cluster.unfit = "it has Ray 2.9.0"
    settings = replace(service.settings, ray_address="http://head:8265")
    controller = Controller(replace(service, settings=settings))  # type: ignore[arg-type]
    with pytest.raises(RayUnfit):
        controller.one_pass()
    assert service.health.controller_at is None


def test_cluster_without_token_is_refused_unless_authentication_is_disabled(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = replace(service.settings, ray_address="http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unavailable, match="set RAY_AUTH_TOKEN"):
        refuse_unfit(settings)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(Unavailable, match="nowhere, but no token can be read from this file"):
        refuse_unfit(settings)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    refuse_unfit(settings)
    assert ["anyone who can reach the cluster" in finding.seen for finding in of_token(settings)] == [True]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    refuse_unfit(settings)


def test_services_that_share_a_database_need_the_same_given_key(service: FakeService) -> None:
    shared = replace(service.settings, given_api_key=None, host="0.0.0.0", database_url="postgresql://u@h/db")
    with pytest.raises(Unavailable, match=r"set TUNER_API_KEY, .* to the same value for every service"):
        refuse_unfit(shared)
    for fit in (replace(shared, host="127.0.0.1"), replace(shared, given_api_key="tk_" + 20 * "7")):
        refuse_unfit(fit)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "::ffff:10.1.2.3", "tuner.internal"])
def test_host_beyond_loopback_requires_a_strong_key(service: FakeService, host: str) -> None:
    wide = replace(service.settings, given_api_key=None, host=host)
    with pytest.raises(
        Unavailable,
        match=rf"TUNER_API_KEY is empty, and other machines can reach TUNER_HOST={host}; set TUNER_API_KEY",
    ):
        refuse_unfit(wide)
    with pytest.raises(Unavailable, match="TUNER_API_KEY has 8 characters"):
        refuse_unfit(replace(wide, given_api_key="password"))
    wide.api_key()
    refuse_unfit(wide)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.91.7.12", "::1", "localhost"])
def test_loopback_host_needs_no_given_key(service: FakeService, host: str) -> None:
    refuse_unfit(replace(service.settings, given_api_key=None, host=host))
    refuse_unfit(replace(service.settings, given_api_key="short", host=host))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "is empty: write the URL"),
        ("mysql://u:secret@h/db", "has no URL of a supported database"),
        ("u:secret@h", "has no URL of a supported database"),
    ],
)
def test_invalid_database_url_is_reported_without_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, message: str
) -> None:
    (tmp_path / "url").write_text(written)
    result = serve(monkeypatch, tmp_path / "home", TUNER_DATABASE_URL_FILE=str(tmp_path / "url"))
    assert result.exit_code == 1
    assert message in result.stderr
    assert "secret" not in result.output


def test_database_upgraded_by_a_newer_version_is_not_served(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    result = serve(monkeypatch, service.settings.home)
    assert result.exit_code == 1
    assert "run that version, or restore the backup made before" in result.stderr


def test_damaged_database_is_reported(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.database.dispose()
    (service.settings.home / "tuner.db").write_bytes(b"nonsense" * 4096)
    findings = {finding.part: finding for finding in examine(service.settings).findings}
    assert "restore a backup" in findings["database"].seen
    assert serve(monkeypatch, service.settings.home).exit_code == 1


def test_bucket_without_write_permission_stops_the_start(
    service: FakeService, keys_of_s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "STORAGE_S", 300.0)
    with listening(ThreadingHTTPServer(("127.0.0.1", 0), _Denies)) as denying:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{denying.server_address[1]}")
        with pytest.raises(Unavailable, match="let this user list, read, write and delete there") as refused:
            refuse_unfit(replace(service.settings, storage="s3://bucket/tuner"))
    assert "Access Denied" in refused.value.detail


def test_unusable_list_of_node_types_stops_the_start(service: FakeService, tmp_path: Path) -> None:
    missing = tmp_path / "cluster.yaml"
    with pytest.raises(Unavailable, match=r"TUNER_NODE_TYPES: .* cannot be read.*; correct this file"):
        refuse_unfit(replace(service.settings, node_types=str(missing)))


def test_storage_without_answer_does_not_stop_the_start(
    service: FakeService,
    keys_of_s3: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(doctor, "STORAGE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        refuse_unfit(replace(service.settings, storage="s3://bucket/tuner"))
    assert "the service starts without it" in caplog.text


@pytest.mark.parametrize(
    ("resources", "label"),
    [
        ({"market": "spot"}, "ray.io/market-type=spot"),
        ({"instance_type": "g6.xlarge"}, "instance-type=g6.xlarge"),
        ({"region": "us-east-1"}, "ray.io/availability-region=us-east-1"),
    ],
)
def test_request_for_missing_labels_is_refused_with_the_label_to_set(
    service: FakeService, client: TestClient, resources: dict[str, str], label: str
) -> None:
    service.cluster.fake_nodes = [Node("n1", cpus=2, gpus=0, memory_bytes=8 << 30)]
    answer = client.post("/v1/jobs", json=fakes.body(resources=resources))
    assert answer.status_code == 422
    assert f"`ray start --labels {label}`" in answer.json()["detail"]


HOLDER = """
import time
from tuner.service.sole_use import HomeLock
from tuner.service.leading import UNFIT_NS
from tuner.settings import Settings
lock = HomeLock(Settings.from_env())
lock.describe("the service at http://127.0.0.1:8123")
print("locked", flush=True)
time.sleep(600)
"""


def test_second_service_of_a_home_names_the_first_until_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "TUNER_HOME": str(tmp_path)}
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        result = serve(monkeypatch, tmp_path)
        assert result.exit_code == 1
        title, detail = result.stderr.strip().splitlines()[-2:]
        assert title == "Another service uses this home"
        assert detail.startswith(f"the service at http://127.0.0.1:8123 with pid {holder.pid}, started at 20")
        assert str(tmp_path) in detail
        HomeLock(replace(Settings.from_env(), database_url="postgresql://nowhere/tuner")).release()
        holder.kill()
        holder.wait()
    HomeLock(Settings.from_env()).release()


def test_address_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = serve(monkeypatch, tmp_path, TUNER_PORT=str(port))
    assert result.exit_code == 1
    title, detail = result.stderr.strip().splitlines()[-2:]
    assert title == "The service cannot listen on this address"
    assert (
        detail == f"cannot listen on 127.0.0.1:{port}: Address already in use; set TUNER_PORT to another port"
    )


def test_start_switches_a_file_to_a_log_unless_a_driver_may_run(service: FakeService) -> None:
    """A driver of an older version cannot open another connection to a file with a log."""

    def mode_after_a_start() -> str:
        started = build(service.settings)
        with started.database.read() as db:
            mode = str(db.exec_driver_sql("PRAGMA journal_mode").scalar())
        started.database.dispose()
        return mode

    job = fakes.submit(fakes.client_of(service))
    Controller(service).one_pass()
    service.database.dispose()
    with closing(sqlite3.connect(str(service.database.url.database))) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    assert mode_after_a_start() == "delete"
    with service.database.write() as db:
        launches.end(db, job, 1)
    service.database.dispose()
    assert mode_after_a_start() == "wal"
