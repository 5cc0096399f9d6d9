"""Send webhooks, several at a time, so that a receiver that hangs delays no other project."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from tuner.domain.errors import TunerError
from tuner.domain.time import NS, Instant
from tuner.service import webhooks
from tuner.service.bootstrap import Service
from tuner.service.leading import Term
from tuner.store import deliveries, shared_budgets
from tuner.store.deliveries import Delivery, DeliveryState

log = logging.getLogger("tuner.webhooks")

AT_ONCE_PER_PROJECT = 2
AT_ONCE = 32
FIRST_RETRY_NS = 10 * NS
LONGEST_RETRY_NS = 3600 * NS
GIVE_UP_NS = 24 * 3600 * NS


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
                secrets = {one.budget.name: one.secret for one in shared_budgets.kept(db, project)}
            for delivery in due:
                self._start(term, delivery, secrets)

    def settle(self, timeout_s: float) -> bool:
        """Wait for the requests under way. Return whether all of them ended in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sending.total(), timeout_s)

    def _start(self, term: Term, one: Delivery, secrets: Mapping[str, str]) -> None:
        """Claim a delivery and send it in a thread of its own. Do nothing if another service has claimed it."""
        now = self._service.now()
        wait_ns = min(LONGEST_RETRY_NS, FIRST_RETRY_NS * 2 ** min(one.tries, 20))
        with self._service.leading.write(term, "webhook.claim") as db:
            if not deliveries.claim(db, one, next_at=Instant(now + wait_ns)):
                return
        last = now + wait_ns - one.created_at > GIVE_UP_NS
        with self._changed:
            self._sending[one.project] += 1
        send = threading.Thread(
            target=self._send,
            args=(term, one, secrets.get(one.name, ""), now, last),
            name=f"webhook-{one.id}",
            daemon=True,
        )
        send.start()

    def _send(self, term: Term, one: Delivery, secret: str, now: Instant, last: bool) -> None:
        try:
            self._send_and_note(term, one, secret, now, last=last)
        except TunerError as error:  # another service leads, or the database does not answer: the delivery is sent again later
            log.warning("the result of the webhook %s could not be recorded: %s", one.id, error.detail)
        except Exception:
            log.exception("the webhook %s could not be sent", one.id)
        finally:
            with self._changed:
                self._sending[one.project] -= 1
                self._changed.notify_all()

    def _send_and_note(self, term: Term, one: Delivery, secret: str, now: Instant, *, last: bool) -> None:
        body = one.body.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tuner",
            "Tuner-Delivery": one.id,
            "Tuner-Signature": webhooks.signature(secret, now // NS, body),
        }
        private = webhooks.may_be_private(self._service.settings, one.url)
        outcome = webhooks.send(one.url, body, headers, private=private)
        self._service.vitals.count("webhooks_taken" if outcome.taken else "webhooks_refused")
        with self._service.leading.write(term, "webhook.sent") as db:
            state: DeliveryState = "delivered" if outcome.taken else "given_up" if last else "pending"
            deliveries.end(db, one.id, state, outcome.said)
        if state == "given_up":
            log.error(
                "the webhook %s of budget %r was given up after a day: %s", one.id, one.name, outcome.said
            )
