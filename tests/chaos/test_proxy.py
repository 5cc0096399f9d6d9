"""Test each harm of the proxy, from a client of an echo server."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import HARMS, Proxy

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    connection.sendall(piece)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    echo_proxy = Proxy(echo, position=lambda length: length - 1)
    yield echo_proxy
    echo_proxy.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_S)


def send_and_receive(client: socket.socket, sent: bytes) -> bytes:
    """Return as many bytes as were sent, or those received before the connection ended."""
    received = b""
    try:
        client.sendall(sent)
        while len(received) < len(sent) and (piece := client.recv(65536)):
            received += piece
    except ConnectionError:
        pass
    return received


def is_over(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_proxy_without_harm_forwards_all_bytes_and_the_shutdown(proxy: Proxy) -> None:
    big = bytes(range(256)) * 4000
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(big,), daemon=True).start()
        received = b""
        while len(received) < len(big):
            received += client.recv(65536)
        assert received == big
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_cut_ends_only_open_connections(proxy: Proxy) -> None:
    with connect(proxy) as before:
        assert send_and_receive(before, b"here") == b"here"
        proxy.harm("cut")
        assert is_over(before)
    with connect(proxy) as after:
        assert send_and_receive(after, b"here") == b"here"


def test_refuse_closes_new_connections_until_healed(proxy: Proxy) -> None:
    proxy.harm("refuse")
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b""
    proxy.heal()
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b"here"


def test_delay_applies_in_both_directions(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b"here"
        proxy.harm("delay", delay_s=0.2)
        began = time.monotonic()
        assert send_and_receive(client, b"late") == b"late"
        assert time.monotonic() - began >= 0.4  # The delay applies in both directions.


def test_half_open_connection_drops_bytes_and_ends_when_healed(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b"here"
        proxy.harm("half_open")
        client.sendall(b"nobody hears this")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(TIMEOUT_S)
        proxy.heal()
        assert is_over(client)


def test_connections_are_cut_after_a_number_of_bytes(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.harm("cut_after", after_bytes=6)
        assert send_and_receive(client, b"four") in (b"fo", b"")
        assert is_over(client)
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b""
    proxy.heal()
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b"here"


def test_exactly_one_byte_is_corrupted(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.harm("corrupt")
        assert send_and_receive(client, b"here") == b"her" + bytes([ord("e") ^ 0x80])
        assert send_and_receive(client, b"here") == b"here"
    assert proxy.corrupted == 1


def test_connection_ends_if_the_server_is_gone(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gone = Proxy(port)
    try:
        with connect(gone) as client:
            assert is_over(client)
    finally:
        gone.close()


def test_every_injected_fault_can_be_removed(proxy: Proxy) -> None:
    for harm in HARMS:
        proxy.harm(harm)
        proxy.heal()
    with connect(proxy) as client:
        assert send_and_receive(client, b"here") == b"here"
