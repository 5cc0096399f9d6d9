"""Submit the processes of queued exports to Ray, and settle exports whose process died."""

import logging

from tuner.domain.cost import CostKind
from tuner.domain.ledger import lost_of
from tuner.domain.money import Cost
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.service.bootstrap import Service
from tuner.service.cluster import HUNG_NS, SILENT_NS, SilenceWatch
from tuner.service.leading import Term
from tuner.store import exports
from tuner.store.exports import ExportRow

OUTLIVES_NS = 2 * NS  # how long the actor of an export can outlive the last heartbeat of its process
LOST = "the process of the export died, or its cluster was restarted; export again"
log = logging.getLogger("tuner.controller")


class ExportKeeper:
    """The part of the controller that looks after exports."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped: set[str] = set()  # processes that were stopped because they hung
        self._watch = SilenceWatch()

    def one_pass(self, term: Term) -> None:
        """Look after all exports that have not ended.

        Raises:
            Unavailable: The cluster or the database does not answer.
            Fenced: Another service became the leader during the pass.
        """
        with self._service.database.read() as db:
            rows = exports.live(db)
        self._watch.keep({row.submission_id for row in rows})
        for row in rows:
            if row.submitted_at is None:
                self._submit(term, row)
            elif self._silent_ns(row) >= SILENT_NS:
                self._look_after(term, row)

    def _silent_ns(self, row: ExportRow) -> int:
        """Return the time since the process's last heartbeat, or since its submission if there was none."""
        return self._service.now() - max(row.submitted_at or 0, row.heartbeat_at or 0)

    def _submit(self, term: Term, row: ExportRow) -> None:
        """Submit the process, then record that. If this service dies in between, the next one submits the same id again."""
        self._service.cluster.submit_export(row.submission_id, job=row.job, export=row.id)
        with self._service.leading.write(term, "controller.export_submitted") as db:
            exports.submitted(db, row, self._service.now())
        log.info("launched %s", row.submission_id)

    def _look_after(self, term: Term, row: ExportRow) -> None:
        status = self._service.cluster.status(row.submission_id)
        # The row was read before the exports ahead of it were looked after, which may have taken long.
        with self._service.database.read() as db:
            row = exports.get(db, row.job, row.id)
        if row.state not in exports.LIVE:
            return
        if status not in ("pending", "running"):
            self._settle_dead(term, row)
        elif self._silent_ns(row) > HUNG_NS and self._watch.stays_silent(
            row.submission_id, row.heartbeat_at, self._service.now()
        ):
            log.warning("%s has sent no heartbeat and is stopped", row.submission_id)
            self._service.cluster.stop(row.submission_id)
            self._stopped.add(row.submission_id)

    def _settle_dead(self, term: Term, row: ExportRow) -> None:
        """Settle and fail an export whose process died. What it had used counts as lost, as for a dead driver."""
        now = self._service.now()
        died_at = Instant(min(now, (row.heartbeat_at or now) + OUTLIVES_NS))
        if row.submission_id in self._stopped:
            died_at = now  # it may have worked until it was stopped
            self._stopped.discard(row.submission_id)
        with self._service.leading.write(term, "controller.export_lost") as db:
            hold = ledger.open_hold(db, row.hold)
            if hold is not None:
                lost: dict[CostKind, Cost] = lost_of(hold, {}, died_at)
                ledger.settle(db, row.project, row.job, hold.id, lost, now)
            ended = exports.end(db, row, "failed", now, code="export_lost", detail=LOST)
        if ended:
            log.warning("the process of %s died", row.submission_id)
