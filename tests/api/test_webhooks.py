"""Webhooks of shared budgets: one signed message per alert share, retried until accepted, never sent to private addresses."""

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

from tests import fakes
from tests.api.budgeting import ASHA, get, put, spend
from tests.api.test_bad_bodies import check_problem
from tests.cluster.waiting import until
from tests.fakes import FakeService
from tests.listening import listening
from tests.store.builders import hold
from tuner.domain.money import Cost, Money
from tuner.domain.time import DAY_NS, NS, Instant
from tuner.ledger import shared_budget_changes, shared_budgets
from tuner.service import webhooks
from tuner.service.reconciler import Reconciler
from tuner.service.webhooks import AT_ONCE_PER_PROJECT, CLAIM_NS, GIVE_UP_NS
from tuner.store import deliveries, jobs
from tuner.store.deliveries import Delivery
from tuner.store.journal import SqlJournal

service, client = fakes.fixtures("function")


class Receiver(HTTPServer):
    """A server that records what it receives and responds with the next of `statuses`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.statuses: list[int] = []
        self.received: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?x=1"


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        self.send_response(status)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 240.0)
    with listening(Receiver()) as server:
        yield server


@pytest.fixture
def open_service(service: FakeService) -> FakeService:
    return replace(service, settings=replace(service.settings, webhook_private=True))


def one_pass(reconciler: Reconciler) -> None:
    """Run one pass of the reconciler, and wait for all requests that it started."""
    reconciler.one_pass()
    assert reconciler.webhooks.settle(240)


def test_alert_is_signed_and_retried_until_accepted_then_not_repeated(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    alerts = [{"at": share, "url": receiver.url} for share in (0.5, 0.8, 1)]
    secret = put(client, usd=0.002, period="month", alerts=alerts)["webhook_secret"]
    reconciler = Reconciler(open_service)
    one_pass(reconciler)
    assert receiver.received == []
    spend(open_service, client, 0.0012)
    receiver.statuses = [500, 302]
    for _ in range(3):
        one_pass(reconciler)
    assert len(receiver.received) == 1
    assert get(client)["deliveries"][0]["answer"] == "HTTP 500"
    for wait_s in (10, 20, 40, 80):
        open_service.now.pass_s(wait_s)
        one_pass(reconciler)
    assert len(receiver.received) == 3
    assert len({headers["Tuner-Delivery"] for headers, _ in receiver.received}) == 1
    shown = get(client)["deliveries"]
    assert [(delivery["state"], delivery["tries"], delivery["answer"]) for delivery in shown] == [
        ("delivered", 3, "HTTP 204")
    ]

    headers, body = receiver.received[-1]
    alert = json.loads(body)
    assert alert["id"] == headers["Tuner-Delivery"] == shown[0]["id"]
    assert (alert["budget"], alert["share"], alert["limit_usd"]) == ("vision", 0.5, 0.002)
    assert 0.5 <= alert["spent_share"] < 0.8
    assert alert["spent_usd"] == get(client)["spend"]["usd"]
    at, mac = (part.split("=")[1] for part in headers["Tuner-Signature"].split(","))
    wanted = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert mac == wanted

    open_service.now.at += 40 * DAY_NS
    one_pass(reconciler)
    assert len(receiver.received) == 3


def test_leader_that_lost_its_term_while_sending_leaves_the_rest_to_the_next(
    open_service: FakeService, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, period="month", alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    other, send = replace(open_service), webhooks.send

    def standing_still(*args: Any, **kwargs: Any) -> webhooks.WebhookResult:
        open_service.now.pass_s(5)
        assert other.leading.term() is not None
        return send(*args, **kwargs)

    monkeypatch.setattr(webhooks, "send", standing_still)
    one_pass(Reconciler(open_service))
    monkeypatch.setattr(webhooks, "send", send)
    assert get(client)["deliveries"][0]["state"] == "pending"
    open_service.now.pass_s(2)
    one_pass(Reconciler(open_service))
    assert get(client)["deliveries"][0]["tries"] == 1, "who does not lead sends nothing"
    open_service.now.pass_s(CLAIM_NS / NS)
    one_pass(Reconciler(other))
    assert get(client)["deliveries"][0]["state"] == "delivered"
    assert len({headers["Tuner-Delivery"] for headers, _ in receiver.received}) == 1


def test_alert_at_1_is_sent_when_the_rest_of_the_budget_pays_for_no_work(
    open_service: FakeService, receiver: Receiver
) -> None:
    """It is not sent while another job holds the rest, because that money may be released."""
    client = fakes.client_of(open_service)
    put(client, usd=0.0017, period="month", alerts=[{"at": 1, "url": receiver.url}])
    job = fakes.submit(client, algorithm=ASHA, budget={"usd": 0.003})
    fakes.simulate(open_service, job)
    shown = get(client)
    assert (shown["spend"]["left_usd"] > 0, shown["waiting_jobs"]) == (True, [job])

    def recorded() -> int:
        Reconciler(open_service).one_pass()
        return len(get(client)["deliveries"])

    def set_held(usd: int) -> None:
        with open_service.database.write() as db:
            period = shared_budgets.get(db, "default", "vision")
            now = shared_budgets.period_at(db, "default", period.budget, open_service.now())
            account = replace(now.account, held=Cost(Money(usd)))
            shared_budgets.set_account(db, "default", period.budget, replace(now, account=account))

    set_held(1)
    assert recorded() == 0
    set_held(0)
    assert recorded() == 1
    assert recorded() == 1


def test_job_refused_while_another_job_holds_the_budget_sends_no_alerts(
    open_service: FakeService, receiver: Receiver
) -> None:
    """The other job ends and releases its hold, so that most of the budget is left."""
    client, now = fakes.client_of(open_service), open_service.now()
    alerts = [{"at": share, "url": receiver.url} for share in (0.8, 1)]
    put(client, usd=0.01, period="month", alerts=alerts)
    other = fakes.submit(client, budget={"usd": 1})
    with open_service.database.write() as db:
        jobs.begin_running(db, other, at=now)
    journal = SqlJournal(open_service.database, other, open_service.project, 1, now)
    held = hold(1, Cost(Money(8000)), job=other)
    with journal.transaction() as tx:
        assert tx.hold(replace(held, placed_at=now, ends_at=Instant(now + NS)))
    job = fakes.submit(client, algorithm=ASHA, budget={"usd": 0.005})
    fakes.simulate(open_service, job)
    with journal.transaction() as tx:
        tx.settle(held.id, {"train": Cost(Money(1000))}, at=now)
        tx.put_job("failed", "a test", at=now)
    shown = get(client)
    assert shown["waiting_jobs"] == [job]
    assert shown["spend"]["usd"] < 0.004
    Reconciler(open_service).one_pass()
    assert get(client)["deliveries"] == []


def test_changed_limit_sends_its_alerts_again(open_service: FakeService, receiver: Receiver) -> None:
    client = fakes.client_of(open_service)
    alerts = [{"at": 0.5, "url": receiver.url}]
    put(client, usd=0.002, period="month", alerts=alerts)
    spend(open_service, client, 0.0012)
    reconciler = Reconciler(open_service)
    for usd, messages in ((0.002, 1), (0.004, 1), (0.0021, 2), (0.0021, 2)):
        put(client, usd=usd, period="month", alerts=alerts)
        one_pass(reconciler)
        assert len(receiver.received) == messages, usd


def test_alert_is_sent_for_a_share_passed_in_an_earlier_period(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, period="day", alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    open_service.now.at += 2 * DAY_NS
    one_pass(Reconciler(open_service))
    assert len(receiver.received) == 1


def test_undelivered_alert_is_given_up_after_a_day(open_service: FakeService, receiver: Receiver) -> None:
    client = fakes.client_of(open_service)
    receiver.statuses = [503] * 100
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    reconciler, began = Reconciler(open_service), open_service.now.at
    while get(client)["deliveries"][:1] in (
        [],
        [delivery for delivery in get(client)["deliveries"] if delivery["state"] == "pending"],
    ):
        one_pass(reconciler)
        open_service.now.pass_s(1800)
    shown = get(client)["deliveries"][0]
    assert (shown["state"], shown["next_try_at"], shown["answer"]) == ("given_up", None, "HTTP 503")
    assert open_service.now.at - began <= GIVE_UP_NS + 3600 * NS
    assert len(receiver.received) == shown["tries"] > 20


def test_delivery_cannot_be_claimed_twice(open_service: FakeService, receiver: Receiver) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    one_pass(Reconciler(open_service))
    with open_service.database.write() as db:
        delivery = deliveries.of_budget(db, open_service.project, "vision", limit=1)[0]
        assert not deliveries.claim(db, delivery, next_at=delivery.next_at)


def test_alert_is_not_sent_again_while_its_request_runs(
    open_service: FakeService, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fakes.client_of(open_service)
    receiver.statuses = [409]
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    send = webhooks.send

    def slow(*args: Any, **kwargs: Any) -> webhooks.WebhookResult:
        monkeypatch.setattr(webhooks, "send", send)
        result = send(*args, **kwargs)
        for _ in range(29):
            open_service.now.pass_s(1)
            one_pass(Reconciler(open_service))
        return result

    monkeypatch.setattr(webhooks, "send", slow)
    one_pass(Reconciler(open_service))
    assert len(receiver.received) == 1
    assert get(client)["deliveries"][0]["answer"] == "HTTP 409"
    open_service.now.pass_s(9)
    one_pass(Reconciler(open_service))
    assert len(receiver.received) == 1
    open_service.now.pass_s(1)
    one_pass(Reconciler(open_service))
    assert [each["state"] for each in get(client)["deliveries"]] == ["delivered"]


def test_alert_of_a_removed_budget_is_not_sent(
    open_service: FakeService, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is removed after the pass has found that the alert is due."""
    client = fakes.client_of(open_service)
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    write = open_service.leading.write

    def meanwhile(term: Any, name: str = "") -> Any:
        if name == "reconciler.alerts":
            assert client.delete("/v1/budgets/vision").is_success
        return write(term, name)

    monkeypatch.setattr(open_service.leading, "write", meanwhile)
    one_pass(Reconciler(open_service))
    one_pass(Reconciler(open_service))
    assert receiver.received == []
    with open_service.database.read() as db:
        assert deliveries.of_budget(db, open_service.project, "vision", limit=1) == []


def test_message_without_a_secret_is_given_up(open_service: FakeService, receiver: Receiver) -> None:
    now = open_service.now()
    left = Delivery("dlv_left", open_service.project, "gone", receiver.url, "{}", "pending", now, now)
    with open_service.database.write() as db:
        deliveries.add(db, left)
    one_pass(Reconciler(open_service))
    assert receiver.received == []
    with open_service.database.read() as db:
        (shown,) = deliveries.of_budget(db, open_service.project, "gone", limit=1)
    assert (shown.state, shown.tries, shown.answer) == ("given_up", 0, "the budget was removed")


def test_late_result_does_not_change_a_delivered_message(
    open_service: FakeService, receiver: Receiver
) -> None:
    client = fakes.client_of(open_service)
    put(client, usd=0.002, alerts=[{"at": 0.5, "url": receiver.url}])
    spend(open_service, client, 0.0012)
    one_pass(Reconciler(open_service))
    delivered = get(client)["deliveries"][0]
    assert delivered["state"] == "delivered"
    with open_service.database.write() as db:
        deliveries.record(db, delivered["id"], "pending", "HTTP 409", next_at=open_service.now())
    assert get(client)["deliveries"] == [delivered]


def test_hanging_url_does_not_delay_other_projects(
    open_service: FakeService, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reconciler does not wait for the hanging URL either."""
    hanging, may_end, send = threading.Semaphore(0), threading.Event(), webhooks.send

    def hang(url: str, *args: Any, **kwargs: Any) -> webhooks.WebhookResult:
        if "hangs" in url:
            hanging.release()
            may_end.wait(240)
            return webhooks.WebhookResult(False, "hung")
        return send(url, *args, **kwargs)

    monkeypatch.setattr(webhooks, "send", hang)
    client = fakes.client_of(open_service)
    alerts = [{"at": share, "url": f"{receiver.url}&hangs={share}"} for share in (0.1, 0.2, 0.3, 0.5)]
    put(client, usd=0.002, alerts=alerts)
    spend(open_service, client, 0.0012)
    reconciler = Reconciler(open_service)
    for _ in range(3):
        reconciler.one_pass()
    for _ in range(AT_ONCE_PER_PROJECT):
        assert hanging.acquire(timeout=240)
    assert not hanging.acquire(blocking=False), "more requests of one project than are allowed at once"
    with open_service.database.write() as db:
        waiting = deliveries.of_budget(db, open_service.project, "vision", limit=9)
        other = replace(
            waiting[0], id="dlv_other", project="other", url=receiver.url, tries=0, state="pending"
        )
        vision = shared_budgets.get(db, open_service.project, "vision").budget
        shared_budget_changes.put(db, "other", vision, secret="whsec_other", at=open_service.now())
        deliveries.add(db, replace(other, next_at=open_service.now()))
    reconciler.one_pass()
    until(lambda: bool(receiver.received))
    assert not may_end.is_set()
    may_end.set()
    assert reconciler.webhooks.settle(240)


def test_request_goes_to_the_checked_address_after_one_name_lookup_and_follows_no_redirect(
    receiver: Receiver,
) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"http://rebinding.invalid:{receiver.server_port}/hook"
    assert webhooks.send(url, b"{}", {}, private=True, resolve=resolve).accepted
    assert asked == ["rebinding.invalid"]
    assert receiver.received[0][0]["Host"] == f"rebinding.invalid:{receiver.server_port}"
    receiver.statuses = [302]
    assert webhooks.send(receiver.url, b"{}", {}, private=True) == webhooks.WebhookResult(False, "HTTP 302")
    assert len(receiver.received) == 2


def anonymous(side: int) -> ssl.SSLContext:
    """Return a TLS context without certificates."""
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:ADH-AES256-GCM-SHA384:@SECLEVEL=0")
    return context


def test_slow_tls_response_ends_in_time_and_its_status_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read returns a byte, but the headers of the response never end."""
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 5)
    monkeypatch.setattr(webhooks.ssl, "create_default_context", lambda: anonymous(ssl.PROTOCOL_TLS_CLIENT))
    listener, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        plain, _ = listener.accept()
        with (
            suppress(OSError),
            anonymous(ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True) as connection,
        ):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.05):
                connection.sendall(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    results: list[webhooks.WebhookResult] = []
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
    sending = threading.Thread(target=lambda: results.append(webhooks.send(url, b"{}", {}, private=True)))
    sending.start()
    sending.join(120)
    in_time = list(results)
    over.set()
    dripping.join()
    sending.join()
    listener.close()
    assert in_time == [webhooks.WebhookResult(True, "HTTP 200")]


@pytest.mark.parametrize("host", ["hooks..example", f"{'x' * 64}.example"])
def test_host_name_that_cannot_be_encoded_is_refused_and_reported(
    open_service: FakeService, host: str
) -> None:
    alerts = [{"at": 1, "url": f"https://{host}/"}]
    client = fakes.client_of(open_service)
    problem = check_problem(client.put("/v1/budgets/b", json={"usd": 1, "alerts": alerts}), 422)
    assert [error["pointer"] for error in problem["errors"]] == ["/alerts/0/url"]
    result = webhooks.send(f"https://{host}/", b"{}", {}, private=True)
    assert not result.accepted
    assert "Unicode" in result.detail, "the real error is shown, and not a timeout"


def test_refused_connection_and_unknown_host_are_reported(receiver: Receiver) -> None:
    closed = "http://127.0.0.1:9/"
    result = webhooks.send(closed, b"{}", {}, private=True)
    assert not result.accepted
    assert "refused" in result.detail.lower()
    assert not webhooks.send(
        "http://nobody.invalid/", b"", {}, private=True, resolve=lambda h, p: []
    ).accepted
