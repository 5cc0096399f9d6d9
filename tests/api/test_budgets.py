"""Budgets above jobs: made over REST, respected at the door and by every slice, and told of by webhooks."""

import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.calendar import DAY_NS
from tuner.domain.time import NS, rfc3339
from tuner.service import outgoing
from tuner.service.keeper import GIVE_UP_NS, Keeper
from tuner.store import above_changes, deliveries, ledger

service, client = fakes.fixtures("function")
ASHA = {"scheduler": "asha", "sampler": "random", "seed": 1}


def put(client: TestClient, name: str = "vision", **budget: Any) -> Any:
    answer = client.put(f"/v1/budgets/{name}", json={"usd": 1, **budget})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def get(client: TestClient, name: str = "vision") -> Any:
    return client.get(f"/v1/budgets/{name}").json()


def check_books(service: FakeService) -> None:
    with service.database.write() as db:
        assert ledger.violations(db) == []
        assert above_changes.violations(db, service.project, service.now()) == []


def test_a_budget_is_made_shown_changed_and_removed(client: TestClient) -> None:
    asked = {"match": {"project": "a"}, "period": "month", "timezone": "Europe/Berlin", "gpu_hours": 2.5}
    assert client.put("/v1/budgets/vision", json={"usd": 100, **asked}).status_code == 201
    found = get(client)
    assert found | asked == found
    assert (found["usd"], found["spend"]["left_usd"], found["spend"]["left_gpu_hours"]) == (100, 100, 2.5)
    assert found["period_start"] < found["created_at"] < found["period_end"]
    assert found["webhook_secret"] is None
    assert client.put("/v1/budgets/vision", json={"usd": 50}).status_code == 200
    changed = get(client)
    assert (changed["usd"], changed["gpu_hours"], changed["period"], changed["match"]) == (50, None, None, {})
    assert changed["spend"]["left_gpu_hours"] is None
    assert client.get("/v1/budgets").json() == {"items": [changed]}
    assert client.delete("/v1/budgets/vision").status_code == 204
    check_problem(client.get("/v1/budgets/vision"), 404)
    check_problem(client.delete("/v1/budgets/vision"), 404)


def test_the_secret_is_shown_when_it_is_new_and_never_again(client: TestClient) -> None:
    first = put(client)["webhook_secret"]
    assert first.startswith("whsec_")
    assert put(client)["webhook_secret"] is None
    assert put(client, new_secret=True)["webhook_secret"] not in (None, first)


@pytest.mark.parametrize(
    ("body", "pointer", "said"),
    [
        ({}, "", "usd and gpu_hours"),
        ({"usd": 0}, "/usd", "more than 0"),
        ({"usd": 1.0000001}, "/usd", "six decimals"),
        ({"usd": 1, "period": "year"}, "/period", "month"),
        ({"usd": 1, "timezone": "Europe/Berln"}, "/timezone", "Europe/Berlin"),
        ({"usd": 1, "parent": "teem"}, "/parent", "there are team"),
        ({"usd": 1, "parent": "b"}, "/parent", "above itself"),
        ({"usd": 1, "match": {"": "x"}}, "/match/", "1 to 100"),
        ({"usd": 1, "alerts": [{"at": 1.5, "url": "https://a.example"}]}, "/alerts/0/at", "at most 1"),
        ({"usd": 1, "alerts": [{"at": 0.12345678, "url": "https://a.example"}]}, "/alerts/0/at", "six"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "http://a.example"}]}, "/alerts/0/url", "https://"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "https://169.254.169.254/"}]}, "/alerts/0/url", "private"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "https://[::ffff:10.0.0.1]/"}]}, "/alerts/0/url", "private"),
        ({"usd": 1, "mach": {}}, "/mach", "misspelling"),
    ],
)
def test_what_is_wrong_is_named_with_its_mend(
    client: TestClient, body: dict[str, Any], pointer: str, said: str
) -> None:
    put(client, "team")
    problem = check_problem(client.put("/v1/budgets/b", json=body), 422)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert said in problem["errors"][0]["detail"]


def test_a_job_under_a_used_up_budget_pauses_and_goes_on_in_the_next_period(
    service: FakeService, client: TestClient
) -> None:
    put(client, "all", usd=0.5)
    put(client, usd=0.001, match={"project": "a"}, period="day", parent="all")
    job = fakes.submit(client, tags={"project": "a"}, algorithm=ASHA)
    fakes.simulate(service, job)
    found, budget = client.get(f"/v1/jobs/{job}").json(), get(client)
    assert (found["state"], found["stop_reason"]) == ("paused", "budget_usd")
    assert "'vision'" in found["detail"]
    assert found["spend"]["usd"] == budget["spend"]["usd"] == get(client, "all")["spend"]["usd"]
    assert 0.0008 < budget["spend"]["usd"] <= 0.001
    assert budget["waiting_jobs"] == [job]
    check_books(service)

    refused = check_problem(client.post(f"/v1/jobs/{job}/resume"), 409)
    assert "'vision'" in refused["detail"]
    refused = check_problem(client.post("/v1/jobs", json=fakes.body(tags={"project": "a"})), 409)
    assert all(
        word in refused["detail"] for word in ("'vision'", "PUT /v1/budgets/vision", budget["period_end"])
    )
    fakes.submit(client, tags={"project": "b"})

    keeper = Keeper(service)
    keeper.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    service.now.at += DAY_NS
    keeper.one_pass()
    found = client.get(f"/v1/jobs/{job}").json()
    assert (found["state"], found["detail"]) == ("running", "")
    assert get(client)["spend"]["usd"] == 0
    assert get(client)["waiting_jobs"] == []


def test_it_goes_on_after_a_raise_but_not_where_somebody_paused_it(
    service: FakeService, client: TestClient
) -> None:
    put(client, usd=0.001)
    job = fakes.submit(client, algorithm=ASHA)
    fakes.simulate(service, job)
    keeper = Keeper(service)
    service.now.pass_s(61)
    keeper.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused", "too little is left"
    put(client, usd=0.002)
    keeper.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    fakes.simulate(service, job)
    client.post(f"/v1/jobs/{job}/pause")
    put(client, usd=0.003)
    service.now.pass_s(61)
    keeper.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202


def test_what_was_removed_does_not_let_it_go_on_past_the_budget_above(
    service: FakeService, client: TestClient
) -> None:
    """Nor is it forgotten: it waits for the one above from then on."""
    put(client, "whole", usd=0.001)
    put(client, usd=0.001, match={"project": "a"}, parent="whole")
    job = fakes.submit(client, tags={"project": "a"}, algorithm=ASHA)
    fakes.simulate(service, job)
    assert get(client)["waiting_jobs"] == [job]
    assert client.delete("/v1/budgets/vision").status_code == 204
    Keeper(service).one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    assert get(client, "whole")["waiting_jobs"] == [job]
    put(client, "whole", usd=1)
    Keeper(service).one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"


def test_a_job_that_goes_on_ends_by_its_own_budget_where_that_is_the_smaller(
    service: FakeService, client: TestClient
) -> None:
    put(client, usd=1)
    job = fakes.submit(client, algorithm=ASHA, budget={"usd": 0.001})
    fakes.simulate(service, job)
    found = client.get(f"/v1/jobs/{job}").json()
    assert (found["state"], found["stop_reason"]) == ("succeeded", "budget_usd")
    assert get(client)["spend"]["usd"] == found["spend"]["usd"]


def test_two_jobs_share_a_budget_to_its_end(service: FakeService, client: TestClient) -> None:
    put(client, usd=0.002)
    for seed in (1, 2):
        job = fakes.submit(client, algorithm={**ASHA, "seed": seed})
        fakes.simulate(service, job, messages=150 if seed == 1 else None)
        check_books(service)
    assert get(client)["spend"]["usd"] + get(client)["spend"]["held_usd"] <= 0.002
    assert get(client)["waiting_jobs"] == [job]


def test_tags_that_would_pass_a_budget_are_refused(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, algorithm=ASHA, budget={"usd": 0.001})
    fakes.simulate(service, job)
    put(client, usd=0.0005, match={"project": "a"})
    refused = check_problem(client.patch(f"/v1/jobs/{job}", json={"tags": {"project": "a"}}), 409)
    assert "'vision'" in refused["detail"]
    assert client.get(f"/v1/jobs/{job}").json()["tags"] == {}
    check_problem(client.put("/v1/budgets/all", json={"usd": 0.0005}), 409)


def test_a_forecast_says_when_it_runs_out_at_this_pace(service: FakeService, client: TestClient) -> None:
    put(client, usd=1)
    assert get(client)["forecast"]["runs_out_at"] is None
    job = fakes.submit(client, algorithm=ASHA, budget={"usd": 0.004})
    fakes.simulate(service, job)
    found = get(client)
    forecast, left = found["forecast"], found["spend"]["left_usd"]
    hours = left / forecast["usd_per_hour"]
    assert forecast["earliest_at"] <= forecast["runs_out_at"]
    assert forecast["runs_out_at"][:16] == rfc3339(service.now() + round(hours * 3600 * NS))[:16]
    service.now.at += 2 * DAY_NS
    assert get(client)["forecast"]["runs_out_at"] is None


# Webhooks


class Receiver(HTTPServer):
    """Keeps what it is sent, and answers with the next of `statuses`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.statuses: list[int] = []
        self.heard: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?x=1"


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((dict(self.headers), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        self.send_response(status)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def open_service(service: FakeService) -> FakeService:
    return replace(service, settings=replace(service.settings, webhook_private=True))


def spend(service: FakeService, client: TestClient, usd: float) -> None:
    fakes.simulate(service, fakes.submit(client, algorithm=ASHA, budget={"usd": usd}))


def test_each_share_is_told_of_once_signed_and_again_until_it_is_taken(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    alerts = [{"at": share, "url": receiver.url} for share in (0.5, 0.8, 1)]
    secret = put(client, usd=0.002, period="month", alerts=alerts)["webhook_secret"]
    keeper = Keeper(open_service)
    keeper.one_pass()
    assert receiver.heard == []
    spend(open_service, client, 0.0012)
    receiver.statuses = [500, 302]
    for _ in range(3):
        keeper.one_pass()
    assert len(receiver.heard) == 1
    assert get(client)["deliveries"][0]["answer"] == "HTTP 500"
    for wait_s in (10, 20, 40, 80):
        open_service.now.pass_s(wait_s)
        keeper.one_pass()
    assert len(receiver.heard) == 3
    assert len({headers["Tuner-Delivery"] for headers, _ in receiver.heard}) == 1
    shown = get(client)["deliveries"]
    assert [(one["state"], one["tries"], one["answer"]) for one in shown] == [("delivered", 3, "HTTP 204")]

    headers, body = receiver.heard[-1]
    told = json.loads(body)
    assert told["id"] == headers["Tuner-Delivery"] == shown[0]["id"]
    assert (told["budget"], told["share"], told["limit_usd"]) == ("vision", 0.5, 0.002)
    assert 0.5 <= told["spent_share"] < 0.8
    assert told["spent_usd"] == get(client)["spend"]["usd"]
    at, mac = (part.split("=")[1] for part in headers["Tuner-Signature"].split(","))
    wanted = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert mac == wanted

    open_service.now.at += 40 * DAY_NS
    keeper.one_pass()
    assert len(receiver.heard) == 3


def test_the_shares_of_another_limit_are_told_of_anew(open_service: FakeService, receiver: Receiver) -> None:
    client = fakes.client_of(open_service)
    alerts = [{"at": 0.5, "url": receiver.url}]
    put(client, usd=0.002, period="month", alerts=alerts)
    spend(open_service, client, 0.0012)
    keeper = Keeper(open_service)
    for usd, messages in ((0.002, 1), (0.004, 1), (0.0021, 2), (0.0021, 2)):
        put(client, usd=usd, period="month", alerts=alerts)
        keeper.one_pass()
        assert len(receiver.heard) == messages, usd


def test_a_share_that_was_passed_while_nobody_looked_is_told_of_still(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, period="day", alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    open_service.now.at += 2 * DAY_NS
    Keeper(open_service).one_pass()
    assert len(receiver.heard) == 1


def test_what_nobody_takes_is_given_up_after_a_day_and_says_so(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    receiver.statuses = [503] * 100
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    keeper, began = Keeper(open_service), open_service.now.at
    while get(client)["deliveries"][:1] in (
        [],
        [one for one in get(client)["deliveries"] if one["state"] == "pending"],
    ):
        keeper.one_pass()
        open_service.now.pass_s(1800)
    shown = get(client)["deliveries"][0]
    assert (shown["state"], shown["next_try_at"], shown["answer"]) == ("given_up", None, "HTTP 503")
    assert open_service.now.at - began <= GIVE_UP_NS + 3600 * NS
    assert len(receiver.heard) == shown["tries"] > 20


def test_two_keepers_do_not_send_the_same_message_at_once(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    Keeper(open_service).one_pass()
    with open_service.database.write() as db:
        one = deliveries.of_budget(db, open_service.project, "vision", limit=1)[0]
        assert not deliveries.claim(db, one, next_at=one.next_at)


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "fe80::1",
    "fec0::1",
    "::127.0.0.1",
    "fd00:ec2::254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_nothing_is_sent_to_a_name_of_a_private_address(address: str, receiver: Receiver) -> None:
    """Nor where another of its addresses is public."""
    found = outgoing.send(
        f"https://hook.example:{receiver.server_port}/",
        b"{}",
        {},
        private=False,
        resolve=lambda host, port: ["8.8.8.8", address],
    )
    assert not found.taken
    assert "private" in found.said
    assert receiver.heard == []


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_not_taken_for_private(address: str) -> None:
    assert not outgoing.is_private(outgoing.ipaddress.ip_address(address))


def test_it_goes_to_the_address_that_was_checked_and_asks_for_the_name_once(receiver: Receiver) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"http://rebinding.invalid:{receiver.server_port}/hook"
    assert outgoing.send(url, b"{}", {}, private=True, resolve=resolve).taken
    assert asked == ["rebinding.invalid"]
    assert receiver.heard[0][0]["Host"] == f"rebinding.invalid:{receiver.server_port}"


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.statuses = [302]
    assert outgoing.send(receiver.url, b"{}", {}, private=True) == outgoing.Outcome(False, "HTTP 302")
    assert len(receiver.heard) == 1


def anonymous(side: int) -> ssl.SSLContext:
    """TLS without certificates."""
    found = ssl.SSLContext(side)
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    found.maximum_version = ssl.TLSVersion.TLSv1_2
    found.set_ciphers("AECDH-AES256-SHA:ADH-AES256-GCM-SHA384:@SECLEVEL=0")
    return found


def test_who_talks_slowly_over_tls_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is an answer to each read, and none that ends."""
    monkeypatch.setattr(outgoing, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(outgoing.ssl, "create_default_context", lambda: anonymous(ssl.PROTOCOL_TLS_CLIENT))
    heard, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        plain, _ = heard.accept()
        with (
            suppress(OSError),
            anonymous(ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True) as one,
        ):
            one.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.05):
                one.sendall(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    found: list[outgoing.Outcome] = []
    url = f"https://127.0.0.1:{heard.getsockname()[1]}/"
    sending = threading.Thread(target=lambda: found.append(outgoing.send(url, b"{}", {}, private=True)))
    sending.start()
    sending.join(10)
    in_time = list(found)
    over.set()
    dripping.join()
    sending.join()
    heard.close()
    assert len(in_time) == 1


def test_who_does_not_listen_is_said(receiver: Receiver) -> None:
    closed = "http://127.0.0.1:9/"
    found = outgoing.send(closed, b"{}", {}, private=True)
    assert not found.taken
    assert "refused" in found.said.lower()
    assert not outgoing.send("http://nobody.invalid/", b"", {}, private=True, resolve=lambda h, p: []).taken
