"""Output of trials, over REST and on the command line."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.cli import answers as command
from tuner.cli.main import app
from tuner.client import Client
from tuner.service.logs import readable, whole_end

TRIAL = "trial_00000"


@pytest.fixture(scope="module")
def job(finished: Finished) -> str:
    return finished.troubled


def write(
    service: FakeService,
    job: str,
    attempt: int,
    head: bytes,
    tail: bytes = b"",
    *,
    total: int = 0,
    complete: bool = True,
    node: int = 0,
) -> None:
    logs = TrialLogs(service.settings.storage, "default", job, TRIAL)
    logs.write(attempt, Printed(total or len(head + tail), head, tail, complete), node=node)


def get(client: TestClient, job: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/trials/{TRIAL}/logs", params=query)
    assert answer.status_code == 200, answer.text
    log: dict[str, Any] = answer.json()
    return log


def begun(service: FakeService, client: TestClient) -> str:
    """Return a job with a running trial."""
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=20)
    return job


def test_newest_attempt_is_shown_and_attempts_are_listed(client: TestClient, service: FakeService) -> None:
    job = begun(service, client)
    write(service, job, 1, "größer\nline 2\n".encode())
    log = get(client, job)
    assert log["text"] == "größer\nline 2\n"
    assert (log["job"], log["trial"], log["attempt"], log["attempts"]) == (job, TRIAL, 1, [1])
    assert (log["bytes_total"], log["bytes_left_out"], log["complete"]) == (16, 0, True)
    text = client.get(f"/v1/jobs/{job}/trials/{TRIAL}/logs", headers={"Accept": "text/plain"})
    assert (text.text, text.headers["content-type"]) == (log["text"], "text/plain; charset=utf-8")
    write(service, job, 1, b"of the second node", node=1)
    assert get(client, job, node=1)["text"] == "of the second node"
    assert get(client, job)["text"] == log["text"]
    missing = client.get(f"/v1/jobs/{job}/trials/{TRIAL}/logs", params={"node": 2})
    assert (missing.status_code, "must be less than 1" in missing.json()["detail"]) == (422, True)


def test_omitted_bytes_are_counted(client: TestClient, service: FakeService) -> None:
    job = begun(service, client)
    write(service, job, 1, b"a" * 10, b"b" * 10, total=100)
    log = get(client, job)
    assert log["text"] == "a" * 10 + "\n[... 80 bytes left out ...]\n" + "b" * 10
    assert (log["bytes_total"], log["bytes_left_out"]) == (100, 80)
    log = get(client, job, tail=12)
    assert (log["text"], log["bytes_left_out"]) == ("aa\n[... 80 bytes left out ...]\n" + "b" * 10, 88)
    log = get(client, job, tail=4)
    assert (log["text"], log["bytes_left_out"]) == ("bbbb", 96)


def test_reading_in_parts_returns_the_whole_log(client: TestClient, service: FakeService) -> None:
    job = begun(service, client)
    whole, read, after = "ä" * 40, "", 0
    for length in (1, 2, 7, 40, 79, 80):
        write(service, job, 1, whole.encode()[:length], complete=length == 80)
        part = get(client, job, after=after)
        read, after = read + part["text"], part["bytes_until"]
    assert read == whole


def test_missing_log_is_refused_with_the_reason(finished: Finished, job: str) -> None:
    client = finished.client

    def why(path: str) -> str:
        return str(check_problem(client.get(f"/v1/jobs/{path}"), 404)["detail"])

    assert "no trial" in why(f"{job}/trials/trial_99999/logs")
    assert "has printed nothing" in why(f"{job}/trials/{TRIAL}/logs")
    assert "attempt 77" in why(f"{job}/trials/{TRIAL}/logs?attempt=77")


def test_running_trial_without_output_has_printed_nothing_so_far(
    client: TestClient, service: FakeService
) -> None:
    job = begun(service, client)
    trials = client.get(f"/v1/jobs/{job}/trials").json()["items"]
    running = next(trial["id"] for trial in trials if trial["state"] == "running")
    problem = check_problem(client.get(f"/v1/jobs/{job}/trials/{running}/logs"), 404)
    assert problem["detail"].endswith("so far")


def test_unreadable_log_is_503(client: TestClient, service: FakeService) -> None:
    job = begun(service, client)
    folder = service.settings.home / "storage/default" / job / TRIAL / "logs"
    folder.mkdir(parents=True)
    (folder / "a1.log").write_text("nonsense")
    check_problem(client.get(f"/v1/jobs/{job}/trials/{TRIAL}/logs"), 503)


@pytest.mark.parametrize("cut", [100, 6])
def test_service_key_in_the_log_is_masked_also_between_head_and_tail(
    client: TestClient, service: FakeService, cut: int
) -> None:
    job, printed = begun(service, client), f"key {fakes.KEY}!".encode()
    write(service, job, 1, printed[:cut], printed[cut:])
    assert get(client, job)["text"] == f"key {'*' * len(fakes.KEY)}!"


def test_database_passwords_in_the_log_are_masked(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begun(service, client)
    write(service, job, 1, b"host_password, query_password, key_password")
    url = make_url("postgresql://u:host_password@h/db?password=query_password&sslpassword=key_password")
    monkeypatch.setattr(service.database, "url", url)
    text = get(client, job)["text"]
    assert text == ", ".join("*" * len(name) for name in ("host_password", "query_password", "key_password"))


@given(data=st.binary(max_size=80))
def test_readable_log_has_no_terminal_control_characters(data: bytes) -> None:
    assert not [
        char for char in readable(data) if char not in "\n\t" and (ord(char) < 32 or 127 <= ord(char) < 160)
    ]


def test_colours_are_removed_and_progress_bars_show_their_last_state() -> None:
    assert readable(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\r\n") == "red x\n"
    assert readable(b" 10%|#   |\r 50%|##  |\r100%|####|\ndone\n") == "100%|####|\ndone\n"
    assert readable(b"a\x00b\x7f\xff\t") == "a\u2400b\u2421\ufffd\t"


@given(text=st.text(alphabet="ab\r\n", max_size=12))
def test_overwritten_line_shows_its_last_version(text: str) -> None:
    shown = [line.rstrip("\r").split("\r")[-1] for line in text.split("\n")]
    assert readable(text.encode()) == "\n".join(shown)


@pytest.mark.parametrize("piece", [b"x", b"\r", b"\rx", b"\x1b[", b"\x1b]", b"\x1bP"])
def test_readable_handles_the_longest_line_in_linear_time(piece: bytes) -> None:
    """With an algorithm quadratic in the line's length this would take minutes, during which the service does nothing else."""
    assert "\n" not in readable(piece * (512 * 1024 // len(piece)))


@given(text=st.text(max_size=20), cut=st.integers(0, 80))
def test_cut_text_ends_at_a_whole_character(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    end = whole_end(data)
    assert data[:end].decode() == text[: len(data[:end].decode())]
    assert len(data) - end < 4


def test_logs_command_prints_and_follows(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begun(service, client)
    client.post(f"/v1/jobs/{job}/cancel")
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", fakes.KEY, transport=client._transport)
    )

    def tuner(*words: str) -> Any:
        return CliRunner().invoke(app, ["logs", job, TRIAL, *words])

    assert "has printed nothing" in tuner().stderr
    write(service, job, 1, b"of the second node", node=1)
    assert tuner("--node", "1").stdout == "of the second node\n"
    write(service, job, 1, b"[bold]one[/bold]\n", complete=False)
    assert tuner().stdout == "[bold]one[/bold]\n"
    assert tuner("--tail", "4b").stdout == "ld]\n"
    assert '"attempts": [' in tuner("--json").stdout
    assert tuner("--tail", "much").exit_code == 2
    lines = itertools.count(2)

    def sleep(_s: float) -> None:
        number = next(lines)
        text = "".join(f"{n}\n" for n in range(1, number + 1)).encode()
        write(service, job, 1, text, complete=number == 5)

    monkeypatch.setattr(command.time, "sleep", sleep)
    write(service, job, 1, b"1\n", complete=False)
    assert tuner("--follow", "--attempt", "1").stdout == "1\n2\n3\n4\n5\n"
    lines = itertools.count(2)
    write(service, job, 1, b"1\n", complete=False)
    followed = tuner("--follow", "--attempt", "1", "--tail", "1b")
    assert followed.stdout == "\n2\n3\n4\n5\n", "nothing but the beginning is cut"
