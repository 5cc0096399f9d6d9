"""Webhooks sent out: signed, to addresses that were looked at, and to no other."""

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tuner.domain.errors import Fault
from tuner.settings import Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
TIMEOUT_S = 10.0
MEND = "TUNER_WEBHOOK_HOSTS with its name, or TUNER_WEBHOOK_PRIVATE=allow,"
# Globally routed as they look, these are services of a cloud to its machines: Azure's wire server, and Oracle's metadata.
METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192")))
UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is routed globally
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`taken`: the other side answered with a 2xx."""

    taken: bool
    said: str


class Refused(Exception):
    """An address that nothing is sent to."""


def signature(secret: str, at_s: int, body: bytes) -> str:
    """The value of `Tuner-Signature`: HMAC-SHA256 (RFC 2104) of the time, a dot and the body, as Stripe and others sign."""
    mac = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def is_private(address: Address) -> bool:
    """Whether it is of this machine, its networks or its cloud, however it is written: IPv4 within IPv6 too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            return is_private(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        within = address.ipv4_mapped or address.sixtofour
        if within is not None:
            return is_private(within)
        if address.teredo is not None or address.scope_id is not None or address not in UNICAST:
            return True
    return not address.is_global or address.is_multicast or address in METADATA


def may_be_private(settings: Settings, url: str) -> bool:
    """Whether the operator allows this host, though it be private or without TLS."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    return settings.webhook_private or host in settings.webhook_hosts


def url_fault(pointer: str, url: str, *, private: bool) -> Fault | None:
    """What can be known to be wrong without asking the network."""
    try:
        parts = urlsplit(url)
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        address = None
    if private:
        return None
    if address is not None and is_private(address):
        return Fault(pointer, f"{address} is a private address; {MEND} allows it")
    if not url.startswith("https://"):
        return Fault(pointer, f"must begin with https://; {MEND} allows http://")
    return None


def send(
    url: str, body: bytes, headers: dict[str, str], *, private: bool, resolve: Resolve | None = None
) -> Outcome:
    """One POST, without redirects, proxies or a second look at the name: it goes to the address that was checked."""
    try:
        parts = urlsplit(url)
        addresses = _checked(parts, private=private, resolve=resolve or _resolve)
        status = _post(parts, addresses[0], body, headers)
    except Refused as error:
        return Outcome(False, str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Outcome(False, f"{type(error).__name__}: {error}"[:300])
    return Outcome(200 <= status < 300, f"HTTP {status}")


def _checked(parts: SplitResult, *, private: bool, resolve: Resolve) -> list[str]:
    """All addresses of the name. Raises Refused where any of them is private."""
    if parts.scheme not in (("https", "http") if private else ("https",)):
        raise Refused("only https:// is sent to")
    if "@" in parts.netloc:
        raise Refused("nothing is sent to a URL with a user")
    host = parts.hostname or ""
    found = resolve(host, _port(parts))
    for text in found:
        if not private and is_private(ipaddress.ip_address(text)):
            raise Refused(f"{host} is {text}, a private address; {MEND} allows it")
    if not found:
        raise Refused(f"{host} has no address")
    return found


def _resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raise OSError if there are none, or if they are not known in time.

    The system's resolver has no time limit of its own, so it runs in a thread that is not waited for any longer.
    """
    answer: list[list[str] | OSError] = []

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.append(list(dict.fromkeys(str(one[4][0]) for one in found)))
        except OSError as error:
            answer.append(error)

    looking = threading.Thread(target=look, name=f"resolve-{host}", daemon=True)
    looking.start()
    looking.join(TIMEOUT_S)
    if not answer:
        raise TimeoutError(f"{host} could not be resolved within {TIMEOUT_S:g} s")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _post(parts: SplitResult, address: str, body: bytes, headers: dict[str, str]) -> int:
    """The answer's status. However slowly the other side talks, it is over after some seconds."""
    host = parts.hostname or ""
    raw = socket.create_connection((address, _port(parts)), TIMEOUT_S)
    line = raw.dup()  # TLS takes `raw` over
    over = threading.Timer(TIMEOUT_S, _hang_up, [line])
    over.daemon = True
    over.start()
    try:
        if parts.scheme == "https":
            raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        connection = http.client.HTTPConnection(host, _port(parts), timeout=TIMEOUT_S)
        connection.sock = raw
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": parts.netloc, "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        over.cancel()
        raw.close()
        line.close()


def _hang_up(raw: socket.socket) -> None:
    try:
        raw.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
