"""Webhooks of shared budgets: sign messages, send them to public addresses only, and retry."""

import hashlib
import hmac
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tuner.domain.errors import Fault, TunerError
from tuner.domain.time import NS, Instant
from tuner.ledger import shared_budgets
from tuner.service.bootstrap import Service
from tuner.service.leading import Term
from tuner.settings import Settings
from tuner.store import deliveries
from tuner.store.deliveries import Delivery, DeliveryState

log = logging.getLogger("tuner.webhooks")

# At most this many requests are under way at the same time, for one project and in total. Slow receivers of one project therefore do not
# delay other projects.
AT_ONCE_PER_PROJECT = 2
AT_ONCE = 32
# A refused message is sent again after 10 s, then at growing intervals up to an hour, and given up after a day.
FIRST_RETRY_NS = 10 * NS
LONGEST_RETRY_NS = 3600 * NS
GIVE_UP_NS = 24 * 3600 * NS
# How long a claim lasts. It is longer than a request can take: `TIMEOUT_S` each to resolve the host, to connect, and for the response.
CLAIM_NS = 60 * NS


class WebhookSender:
    """Send the webhook deliveries that are due. Each is claimed first, so that no other service sends it at the same time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._changed = threading.Condition()
        self._sending: Counter[str] = Counter()  # number of requests under way, by project

    def send_due(self, term: Term) -> None:
        """Start to send the due deliveries, and return without waiting for the requests to end.

        At most `AT_ONCE_PER_PROJECT` requests of a project and `AT_ONCE` of all projects are under way at the same time.
        The other deliveries stay due.

        Raises:
            Unavailable: The database does not answer.
            Fenced: Another service leads.
        """
        now = self._service.now()
        with self._service.database.read() as db:
            projects = deliveries.projects_due(db, now)
        for project in projects:
            with self._changed:
                room = min(AT_ONCE_PER_PROJECT - self._sending[project], AT_ONCE - self._sending.total())
            if room <= 0:
                continue
            with self._service.database.read() as db:
                due = deliveries.due(db, project, now, limit=room)
                secrets = {row.budget.name: row.secret for row in shared_budgets.kept(db, project)}
            for delivery in due:
                if delivery.name in secrets:
                    self._start(term, delivery, secrets[delivery.name])
                else:
                    self._drop(term, delivery)

    def settle(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds for the end of the requests under way. Return whether all of them have ended."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sending.total(), timeout_s)

    def _drop(self, term: Term, delivery: Delivery) -> None:
        """Give up a delivery whose budget was removed. Without the budget's secret, its receiver could not check the signature."""
        self._record(term, delivery, "given_up", "the budget was removed", self._service.now())

    def _record(
        self, term: Term, delivery: Delivery, state: DeliveryState, answer: str, next_at: Instant
    ) -> None:
        with self._service.leading.write(term, "webhook.sent") as db:
            deliveries.record(db, delivery.id, state, answer, next_at=next_at)

    def _start(self, term: Term, delivery: Delivery, secret: str) -> None:
        """Claim a delivery and send it in a thread of its own. Do nothing if another service has claimed it."""
        now = self._service.now()
        with self._service.leading.write(term, "webhook.claim") as db:
            if not deliveries.claim(db, delivery, next_at=Instant(now + CLAIM_NS)):
                return
        with self._changed:
            self._sending[delivery.project] += 1
        send = threading.Thread(
            target=self._send,
            args=(term, delivery, secret, now),
            name=f"webhook-{delivery.id}",
            daemon=True,
        )
        send.start()

    def _send(self, term: Term, delivery: Delivery, secret: str, began_at: Instant) -> None:
        body = delivery.body.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tuner",
            "Tuner-Delivery": delivery.id,
            "Tuner-Signature": signature(secret, began_at // NS, body),
        }
        try:
            result = send(
                delivery.url, body, headers, private=may_be_private(self._service.settings, delivery.url)
            )
            self._service.health.count("webhooks_taken" if result.accepted else "webhooks_refused")
            wait_ns = min(LONGEST_RETRY_NS, FIRST_RETRY_NS * 2 ** min(delivery.tries, 20))
            next_at = Instant(self._service.now() + wait_ns)
            is_last = next_at - delivery.created_at > GIVE_UP_NS
            state: DeliveryState = "delivered" if result.accepted else "given_up" if is_last else "pending"
            self._record(term, delivery, state, result.detail, next_at)
            if state == "given_up":
                log.error(
                    "the webhook %s of budget %r was given up after a day: %s",
                    delivery.id,
                    delivery.name,
                    result.detail,
                )
        except TunerError as error:  # another service leads, or the database does not answer: the delivery is sent again later
            log.warning("the result of the webhook %s could not be recorded: %s", delivery.id, error.detail)
        except Exception:
            log.exception("the webhook %s could not be sent", delivery.id)
        finally:
            with self._changed:
                self._sending[delivery.project] -= 1
                self._changed.notify_all()


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
TIMEOUT_S = 10.0
UNLESS_ALLOWED = (
    "unless the service's operator adds the host to TUNER_WEBHOOK_HOSTS or sets TUNER_WEBHOOK_PRIVATE=allow"
)
# These addresses look public, but are services of a cloud for its own machines: Azure's wire server and Oracle's metadata.
METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192")))
UNICAST = ipaddress.ip_network("2000::/3")  # all globally routed IPv6 addresses
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """The outcome of sending a webhook."""

    accepted: bool  #: Whether the receiver answered with a 2xx status.
    detail: str  #: The HTTP status, or why there is none.


class AddressRefused(Exception):
    """Raised if a webhook must not be sent to its URL or to the address of the URL's host."""


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Return the value of `Tuner-Signature` in Stripe's format: the time, and the HMAC-SHA256 (RFC 2104) of the time, a dot and the body."""
    mac = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def is_private(address: Address) -> bool:
    """Return whether an address belongs to this machine, its networks or its cloud.

    IPv4 addresses inside IPv6 ones are checked too.
    """
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
    """Return whether the operator allows webhooks to the host of this URL even if it is private or the URL has no TLS."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    return settings.webhook_private or host in settings.webhook_hosts


def url_fault(pointer: str, url: str, *, private: bool) -> Fault | None:
    """Return what is wrong with a webhook's URL as far as can be found without the network, or None.

    Args:
        pointer: The JSON pointer to the URL in the request.
        private: Whether private addresses and URLs without TLS are allowed.
    """
    try:
        parts = urlsplit(url)
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        address = None
    if private:
        return None
    if address is not None and is_private(address):
        return Fault(pointer, f"{address} is a private address, which is refused {UNLESS_ALLOWED}")
    if not url.startswith("https://"):
        return Fault(pointer, f"must begin with https://, {UNLESS_ALLOWED}")
    return None


def send(
    url: str, body: bytes, headers: dict[str, str], *, private: bool, resolve: Resolve | None = None
) -> WebhookResult:
    """Send one POST request without following redirects or using proxies. Errors are returned in the result and not raised.

    The name of the host is resolved only once, so that the request goes to the address that was checked.

    Args:
        private: Whether private addresses and URLs without TLS are allowed.
        resolve: Returns the addresses of a host and port. None means the system's resolver.
    """
    try:
        parts = urlsplit(url)
        addresses = _checked(parts, private=private, resolve=resolve or _resolve)
        status = _post(parts, addresses[0], body, headers)
    except AddressRefused as error:
        return WebhookResult(False, str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return WebhookResult(False, f"{type(error).__name__}: {error}"[:300])
    return WebhookResult(200 <= status < 300, f"HTTP {status}")


def _checked(parts: SplitResult, *, private: bool, resolve: Resolve) -> list[str]:
    """Return all addresses of the host.

    Raise AddressRefused if the URL is not allowed, if the host has no address, or if an address is private and `private` is false.
    """
    if parts.scheme not in (("https", "http") if private else ("https",)):
        raise AddressRefused("the URL must begin with https://")
    if "@" in parts.netloc:
        raise AddressRefused("the URL must not contain a user name")
    host = parts.hostname or ""
    addresses = resolve(host, _port(parts))
    for text in addresses:
        if not private and is_private(ipaddress.ip_address(text)):
            raise AddressRefused(f"{host} is {text}, a private address, which is refused {UNLESS_ALLOWED}")
    if not addresses:
        raise AddressRefused(f"{host} does not resolve to an address")
    return addresses


def _resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name.

    Raise OSError if it has none, or if the resolver does not answer in time. Raise ValueError if the name cannot be encoded.

    The system's resolver has no time limit. It therefore runs in a thread that is abandoned after `TIMEOUT_S`.
    """
    answer: list[list[str] | OSError | ValueError] = []

    def look_up() -> None:
        try:
            address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.append(list(dict.fromkeys(str(address_info[4][0]) for address_info in address_infos)))
        except (OSError, ValueError) as error:
            answer.append(error)

    looking = threading.Thread(target=look_up, name=f"resolve-{host}", daemon=True)
    looking.start()
    looking.join(TIMEOUT_S)
    if not answer:
        raise TimeoutError(f"{host} could not be resolved within {TIMEOUT_S:g} s")
    if isinstance(answer[0], OSError | ValueError):
        raise answer[0]
    return answer[0]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _post(parts: SplitResult, address: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a POST request to an address and return the HTTP status.

    The request ends within `TIMEOUT_S` after connecting, however slowly the receiver answers.
    """
    host = parts.hostname or ""
    raw = socket.create_connection((address, _port(parts)), TIMEOUT_S)
    line = raw.dup()  # the timer needs a handle of its own, because TLS takes over `raw`
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
