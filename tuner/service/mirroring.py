"""Run the mirrors that the settings name, and give them the recorded results that they copy to other tools."""

import hashlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.checkpoints.checkpoints import CheckpointDamaged, CheckpointId, CheckpointMissing, CheckpointStore
from tuner.domain.errors import NotFound, TunerError
from tuner.domain.money import MS_PER_HOUR
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.mirrors.follower import MirrorThread
from tuner.mirrors.record import (
    Mirror,
    MirroredChanges,
    MirroredJob,
    MirroredModel,
    MirroredReport,
    MirroredTrial,
    Position,
)
from tuner.service.best import best_trial
from tuner.service.bootstrap import Service
from tuner.service.checkpoints import choose
from tuner.service.exports import delivered
from tuner.store import best as stored_best
from tuner.store import exports, jobs, leadership, mirrored
from tuner.store.leadership import clock
from tuner.store.mirrored import ChangedTrial
from tuner.tuning.rungs import rungs_of

log = logging.getLogger("tuner.mirrors")
REPORTS_AT_ONCE = 1000
TURN_NS = 30 * NS
# Held while a mirror's library is imported. If two threads import modules with circular imports, one may see a half-imported module.
_IMPORTING = threading.Lock()
# While a service writes a mirror, it renews its lease of the mirror (`LeasedTurn`) every `RENEWED_S` seconds, at most `RENEWALS_MAX` times.
# If the write hangs, the lease therefore expires, and another service can write.
RENEWED_S, RENEWALS_MAX = 10.0, 60


@dataclass(frozen=True)
class StoredRecord:
    """Read the recorded results from the service's database, in the form that mirrors need."""

    service: Service

    def heads(self, among: Collection[str] | None) -> dict[str, Position]:
        with self.service.database.read() as db:
            heads = mirrored.heads(db, among)
        return {job: Position(*head) for job, head in heads.items()}

    def changes(self, job: str, after: Position | None) -> MirroredChanges:
        before = after or Position(0, "")
        with self.service.database.read() as db:
            row = jobs.get(db, job)
            spent = ledger.account(db, job).posted
            moved = row.state != before.state
            mode = row.spec.objective.mode
            upto, trials = mirrored.read_changes(
                db, job, mode, before.seq, limit=REPORTS_AT_ONCE, everything=moved
            )
            best = stored_best.best(db, job)
            newest = jobs.newest_event(db, job)
            exported = int(db.execute(exports.count_of(job)).scalar_one())
        shown = MirroredJob(
            row.id,
            row.project,
            row.spec.name,
            row.tags.get("owner"),
            row.tags,
            row.spec.trainable,
            row.spec.objective.metric,
            row.spec.objective.mode,
            row.spec.space.parameters,
            row.spec.fidelity.max,
            rungs_of(row.spec),
            None if row.budget.usd is None else row.budget.usd.usd,
            None if row.budget.gpu_ms is None else row.budget.gpu_ms / MS_PER_HOUR,
            row.state,
            row.stop_reason,
            spent,
            f"{self.service.settings.url}/#/jobs/{row.id}",
            row.created_at,
            row.ended_at,
            None if best is None or best.value is None else (best.trial, best.value),
        )
        now = Position(upto, row.state, exported)
        if upto < newest:
            now = replace(before, seq=upto)
        return MirroredChanges(
            shown, [_trial(trial) for trial in trials], now, has_new_exports=now.exports != before.exports
        )


def models(service: Service, job: str) -> list[MirroredModel]:
    """Return the best checkpoint of a job that has succeeded, and all files that its exports have delivered.

    If the job confirmed its best configurations, the trial that the confirmation chose is used.
    """
    listed: list[MirroredModel] = []
    with service.database.read() as db:
        row = jobs.get(db, job)
        store = CheckpointStore(service.settings.storage, row.project, job)
        trial = best_trial(db, row) if row.state == "succeeded" else None
        if trial is not None:
            with suppress(NotFound):
                chosen = choose(db, row, trial, None)
                checkpoint = CheckpointId(chosen.step, chosen.attempt)
                fetch = partial(_checkpoint, job, store, trial, checkpoint)
                listed.append(MirroredModel(trial, f"step_{chosen.step}", {"step": str(chosen.step)}, fetch))
        for export in reversed(exports.of_job(db, job)):
            for variant in delivered(export):
                tags = {"step": str(export.step), "export": export.id, "format": variant.format}
                fetch = partial(_exported_file, job, store, export.id, str(variant.file))
                listed.append(MirroredModel(export.trial, f"{export.id}/{variant.format}", tags, fetch))
    return listed


@contextmanager
def _checkpoint(
    job: str, store: CheckpointStore, trial: str, checkpoint: CheckpointId
) -> Iterator[Path | None]:
    """Fetch a checkpoint and yield its path, or None if it is missing or damaged. Other errors of the storage are passed through."""
    with TemporaryDirectory(prefix="tuner-model-") as folder:
        try:
            files = store.fetch(trial, checkpoint, Path(folder))
        except (CheckpointDamaged, CheckpointMissing) as error:
            log.warning(
                "the best checkpoint of job %s (%s) is not registered as a model: %s", job, trial, error
            )
            yield None
            return
        yield files


@contextmanager
def _exported_file(job: str, store: CheckpointStore, export: str, path: str) -> Iterator[Path | None]:
    """Fetch a file that an export has delivered, and yield the folder that contains it, or None if it is missing or damaged.

    Other errors of the storage are passed through.
    """
    file, digest = store.files(export).get(path), hashlib.sha256()
    with TemporaryDirectory(prefix="tuner-model-") as folder:
        with (Path(folder) / Path(path).name).open("wb") as copy:
            for chunk in file.read(0, file.size) if file is not None else ():
                digest.update(chunk)
                copy.write(chunk)
        if file is None or digest.hexdigest() != file.digest:
            log.warning(
                "the file %s of %s of job %s is not registered as a model, because the file is missing or damaged",
                path,
                export,
                job,
            )
            yield None
            return
        yield Path(folder)


def _trial(trial: ChangedTrial) -> MirroredTrial:
    """Return a trial with its state at the last event that has been read for the mirror.

    The database stores only a trial's newest state. A trial that has changed after that event is therefore shown as running.
    """
    row = trial.row
    same = {
        field.name: getattr(row, field.name) for field in fields(MirroredTrial) if hasattr(row, field.name)
    }
    reports = [MirroredReport(r.step, r.at, r.value, r.metrics, r.cost, best) for r, best in trial.reports]
    state = row.state if trial.is_as_of_then else "running"
    return MirroredTrial(**{**same, "id": row.trial, "state": state, "reports": reports})


@dataclass
class LeasedTurn:
    """The right of one service to write a mirror, leased in the database.

    The first service that takes the turn keeps it until it stops renewing. The turn does not depend on which service
    leads, because a write may take long and the leader may change meanwhile. The service's own clock determines when to
    renew, and the database's clock how long a lease lasts.
    """

    service: Service
    name: str
    _holder: str = field(
        default_factory=lambda: f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
    )
    _until: int = 0

    def is_mine(self) -> bool:
        now = self.service.now()
        if (
            TURN_NS // 2 < self._until - now <= TURN_NS
        ):  # if more than TURN_NS is left, the clock was set back
            return True
        return self._take(now)

    @contextmanager
    def kept(self, every_s: float = RENEWED_S) -> Iterator[None]:
        """Renew the turn in a thread while the caller writes to the mirror.

        Without renewal, the turn would run out during a long write, and another service would write the same results again.
        """
        over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(over, every_s), name="turn", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            over.set()
            renewing.join()  # otherwise the thread could take the turn again after it was given back

    def _renew(self, over: threading.Event, every_s: float) -> None:
        for _ in range(RENEWALS_MAX):
            if over.wait(every_s):
                return
            with suppress(TunerError):  # a later renewal may still succeed before the lease of the turn ends
                self._take(self.service.now())

    def _take(self, now: Instant) -> bool:
        with self.service.database.write("mirror.turn") as db:
            at = clock(db, now)
            mine = leadership.take(db, self.name, self._holder, now=at, until=Instant(at + TURN_NS))
        self._until = now + TURN_NS if mine else 0
        return mine

    def give_back(self) -> None:
        with self.service.database.write("mirror.give_back") as db:
            leadership.give_back(db, self.name, self._holder)


class Mirrors:
    """Start and stop one thread for each mirror that the settings name."""

    def __init__(self, service: Service) -> None:
        record = StoredRecord(service)
        self._followers = [
            MirrorThread(name, opens, record, LeasedTurn(service, f"mirror:{name}"))
            for name, opens in _configured(service).items()
        ]

    def start(self) -> None:
        for follower in self._followers:
            follower.start()

    def stop(self) -> None:
        for follower in self._followers:
            follower.stop()

    def status(self) -> Mapping[str, str]:
        """Return `ok` or `failing` for each mirror, by its name."""
        return {
            follower.mirror_name: "failing" if follower.is_failing else "ok" for follower in self._followers
        }


def _configured(service: Service) -> dict[str, Callable[[], Mirror]]:
    """Return the functions that open the mirrors that the settings name, by the name of the mirror.

    Each function imports the library of its mirror, so that a missing library affects that mirror alone.
    """
    settings = service.settings

    def optuna() -> Mirror:
        with _IMPORTING:
            from tuner.mirrors.optuna import OptunaMirror
        return OptunaMirror(settings.optuna_storage)

    def tensorboard() -> Mirror:
        with _IMPORTING:
            from tuner.mirrors.tensorboard import TensorBoardMirror
        return TensorBoardMirror(Path(settings.tensorboard))

    def mlflow() -> Mirror:
        with _IMPORTING:
            from tuner.mirrors.mlflow import MlflowMirror
        listed = partial(models, service) if settings.mlflow_register else None
        return MlflowMirror(settings.mlflow_uri, settings.mlflow_experiment, listed)

    mirrors = {
        "optuna": (settings.optuna_storage, optuna),
        "tensorboard": (settings.tensorboard, tensorboard),
        "mlflow": (settings.mlflow_uri, mlflow),
    }
    return {name: opens for name, (target, opens) in mirrors.items() if target}
