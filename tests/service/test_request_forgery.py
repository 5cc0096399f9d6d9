"""A webhook URL cannot reach private addresses, no matter who writes it and how it is written."""

import ipaddress
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.service import webhooks

service, client = fakes.fixtures("module")

# Answers of an attacker's DNS server. Other names are looked up by the system, without a network.
NAMES = {
    "rebinds.example": ["127.0.0.1"],
    "both.example": ["8.8.8.8", "10.0.0.1"],
    "metadata.google.internal": ["169.254.169.254"],
    "instance-data": ["169.254.169.254"],
    "postgres.internal": ["10.20.30.40"],
    "kubernetes.default.svc": ["10.96.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "a9fea9fe.example": ["169.254.169.254"],
    "six.example": ["::1"],
    "mapped.example": ["::ffff:7f00:1"],
    "translated.example": ["64:ff9b::7f00:1"],
    "site.example": ["fec0::1"],
    "unique.example": ["fd12:3456::1"],
    "link.example": ["fe80::1%lo"],
    "compatible.example": ["::127.0.0.1"],
    "sixtofour.example": ["2002:a9fe:a9fe::1"],
    "teredo.example": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "azure.example": ["168.63.129.16"],
    "nowhere.example": [],
    "hooks.example.internal": ["10.0.0.9"],
    "hooks.example": ["8.8.8.8"],
    "hooks6.example": ["2606:4700::1111"],
    "hooks.internal": ["127.0.0.1"],
}
# PORT is the port of a server on this machine.
REFUSED = [
    *(
        f"https://{host}:PORT/x"
        for host in (
            # The loopback, also in forms that only `inet_aton` reads
            *[
                "127.0.0.1",
                "127.1",
                "127.0.1",
                "127.255.255.254",
                "2130706433",
                "0x7f000001",
                "0x7f.0x0.0x0.0x1",
                "0x7f.1",
            ],
            *[
                "0177.0.0.1",
                "017700000001",
                "0",
                "0.0.0.0",
                "localhost",
                "LOCALHOST",
                "localhost.",
                "127.0.0.1.",
            ],
            *["[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"],
            *["[0:0:0:0:0:ffff:7f00:0001]", "[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]"],
            *["[2001:0:4136:e378:8000:63bf:80ff:fffe]", "①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛocalhost"],
            # Link-local, unique local, site-local and multicast addresses
            *["[fe80::1]", "[fe80::1%25lo]", "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]"],
            *[
                "10.0.0.1",
                "172.16.0.1",
                "172.31.255.255",
                "192.168.0.1",
                "100.64.0.1",
                "100.100.100.200",
                "168.63.129.16",
            ],
            *["192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255"],
            # The metadata service of clouds
            *["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"],
            *["[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]"],
            *(name for name in NAMES if not name.startswith("hooks")),
        )
    ),
    "http://hooks.example/plain",
    "HTTP://hooks.example/plain",
    "https://hooks.example@127.0.0.1:PORT/",
    "https://user:secret@hooks.example/",
    "https://hooks.example:443@localhost:PORT/",
    "https://127.0.0.1:PORT#@hooks.example/",
    "https://127.0.0.1:PORT?@hooks.example/",
    "https://127.0.0.1:PORT\\@hooks.example/",
    "https://hooks.example\\@127.0.0.1:PORT/",
    "https:///127.0.0.1:PORT/",
    "https:127.0.0.1:PORT/",
    "//127.0.0.1:PORT/",
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "gopher://127.0.0.1:PORT/_x",
    "dict://127.0.0.1:PORT/x",
    "ftp://127.0.0.1:PORT/x",
    "ldap://127.0.0.1:PORT/x",
    "jar:https://127.0.0.1:PORT!/x",
    "data:text/plain,x",
    "unix:///run/docker.sock",
    "s3://bucket?endpoint_override=http://127.0.0.1:PORT",
    "https://hooks.example\r\nHost: 127.0.0.1/",
    "https://hooks.example/\r\nX: y",
    "https://hooks.example\t.internal/",
    "https://[::1/",
    "https://hooks.example:99999/",
    "https://hooks.example:0/",
    "https://",
    " https://127.0.0.1:PORT/",
]


class Machine:
    """A server on the loopback that records every attempted connection."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.tried: list[tuple[str, int]] = []
        self.taken = threading.Event()
        connect = socket.create_connection

        def counted(address: tuple[str, int], timeout: float) -> socket.socket:
            self.tried.append(address)
            if address[0] != "127.0.0.1":
                raise ConnectionRefusedError("there is no network here")
            return connect(address, timeout)

        patch.setattr(webhooks.socket, "create_connection", counted)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                if connection.recv(4096):
                    self.taken.set()
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    fake_machine = Machine(monkeypatch)
    yield fake_machine
    fake_machine.close()


def resolve(host: str, port: int) -> list[str]:
    known = NAMES.get(host.rstrip(".").lower())
    return webhooks._resolve(host, port) if known is None else known


def is_private(address: str) -> bool:
    return webhooks.is_private(ipaddress.ip_address(address))


def keep(client: TestClient, url: str) -> Any:
    return client.put("/v1/budgets/vision", json={"usd": 1, "alerts": [{"at": 0.5, "url": url}]})


def test_no_private_address_is_connected_to(
    service: FakeService, client: TestClient, machine: Machine
) -> None:
    """A URL is refused when it is saved or, if only DNS reveals a private address, before anything is sent."""
    through, early = [], 0
    for payload in REFUSED:
        url = payload.replace("PORT", str(machine.port))
        answer = keep(client, url)
        assert answer.status_code in (200, 201, 422), (url, answer.text)
        early += answer.status_code == 422
        private = webhooks.may_be_private(service.settings, url)
        sent = webhooks.send(url, b"{}", {}, private=private, resolve=resolve)
        assert not sent.accepted
        assert "both.example" not in url or "private" in sent.detail
        if any(answer.is_success or is_private(address) for address, _ in machine.tried):
            through.append(url)
        machine.tried.clear()
    print(
        f"request forgery: {len(REFUSED)} URLs, {early} refused where they are written, {len(through)} through"
    )
    assert through == []
    assert not machine.taken.is_set()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://hooks.example/x", ("8.8.8.8", 443)),
        ("https://hooks.example:8443/x?y=1", ("8.8.8.8", 8443)),
        ("https://8.8.4.4/x", ("8.8.4.4", 443)),
        ("https://hooks6.example/x", ("2606:4700::1111", 443)),
        ("https://[2606:4700::1111]/x", ("2606:4700::1111", 443)),
        ("https://[::ffff:8.8.8.8]/x", ("::ffff:8.8.8.8", 443)),
        ("https://[64:ff9b::808:808]/x", ("64:ff9b::808:808", 443)),
    ],
)
def test_public_address_is_connected_to(
    service: FakeService, client: TestClient, machine: Machine, url: str, address: tuple[str, int]
) -> None:
    assert keep(client, url).is_success
    private = webhooks.may_be_private(service.settings, url)
    webhooks.send(url, b"{}", {}, private=private, resolve=resolve)
    assert machine.tried == [address]


def test_only_private_hosts_named_by_the_operator_are_connected_to(
    service: FakeService, machine: Machine
) -> None:
    named = replace(service, settings=replace(service.settings, webhook_hosts=("hooks.internal",)))
    client = fakes.client_of(named)
    url = f"http://HOOKS.internal:{machine.port}/x"
    assert keep(client, url).is_success
    private = webhooks.may_be_private(named.settings, url)
    assert webhooks.send(url, b"{}", {}, private=private, resolve=resolve).accepted
    for other in (
        f"http://127.0.0.1:{machine.port}/x",
        f"http://hooks.internal.example:{machine.port}/x",
        f"http://rebinds.example:{machine.port}/hooks.internal",
        f"http://rebinds.example:{machine.port}/?hooks.internal",
        f"http://hooks.internal@127.0.0.1:{machine.port}/",
    ):
        assert keep(client, other).status_code == 422, other
        assert not webhooks.may_be_private(named.settings, other), other
