"""Export the model of a checkpoint to files in several formats, under a lease.

The export runs as an attempt of a supervisor of its own, like the restore self-test. The attempt has the export's id in place of a
trial's. Each variant (the file of one format) is one step of the attempt, and its files are stored as the checkpoint of that step.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from tuner.checkpoints.checkpoints import (
    CheckpointDamaged,
    CheckpointId,
    CheckpointMissing,
    CheckpointStore,
    StoredFile,
)
from tuner.checkpoints.storage import explained
from tuner.domain.objective import Mode
from tuner.training.variants import Variant, finite
from tuner.worker.child import EXPORT_KIND
from tuner.worker.orders import BeginOrder, FailureFields, WorkerState
from tuner.worker.packages import Stored
from tuner.worker.scratch import Scratch
from tuner.worker.supervisor import Supervisor

OUT_OF_TIME = "the money held for the export was used up before all formats were done; request fewer formats, or raise max_cost_usd"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export. `code` and `detail` say why some variants were not made, and are None if all were made."""

    #: The value of the objective's metric before the model is converted to a format. None if it was not evaluated.
    metric: float | None
    variants: tuple[Variant, ...]
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOrder:
    """What one export exports, and with what."""

    project: str
    job: str
    export: str  #: The export's id.
    storage: str  #: The URL of the storage with the checkpoint, to which the files are written.
    trial: str  #: The trial whose checkpoint is exported.
    checkpoint: CheckpointId  #: The checkpoint that is exported.
    entry: str  #: The trainable, `module:attribute`.
    #: What is needed to load the package of the trainable. None without a package.
    package: Mapping[str, str] | None
    config: Mapping[str, Any]  #: The trial's configuration, including constants.
    formats: Sequence[str]  #: The formats to export to.
    mode: Mode  #: Whether a higher or a lower metric is better.
    max_drop: float | None  #: By how much the metric may get worse. None means no limit.
    threads: int  #: How many threads the measurements of latency use.
    limit_s: float  #: How many seconds the download of the checkpoint and the attempt may take together.
    #: The numbers of CPUs and GPUs that the export may use, by the names of Ray.
    resources: Mapping[str, float]


def export(order: ExportOrder, *, owns_process: bool = False) -> ExportResult:
    """Export a trial's checkpoint, and return the result. This blocks for up to `order.limit_s` plus a few seconds.

    `owns_process` is that of `Supervisor`: True in a process that does nothing else.
    """
    began, formats = time.monotonic(), len(order.formats)
    store = CheckpointStore(order.storage, order.project, order.job)
    try:
        # The supervisor imports the trainable while the checkpoint is downloaded.
        with (
            closing(Scratch("export")) as scratch,
            closing(
                Supervisor(order.entry, package=Stored.parse(order.package), owns_process=owns_process)
            ) as supervisor,
        ):
            try:
                checkpoint = store.fetch(order.trial, order.checkpoint, scratch.path / "checkpoint")
            except (CheckpointDamaged, CheckpointMissing) as error:
                detail = f"the checkpoint cannot be read: {error}; export another trial, or resume the job, which saves a new checkpoint"
                return ExportResult(None, (), "checkpoint_unreadable", detail)
            except Exception as error:  # each kind of storage has errors of its own
                detail = f"the storage of the checkpoint failed: {explained(error)}; export again"
                return ExportResult(None, (), "storage_failed", detail)
            # The download used a part of the time that is paid for. The attempt must save its variants within the rest.
            lease_s = order.limit_s - (time.monotonic() - began)
            if lease_s <= 0:
                return ExportResult(None, (), "out_of_time", OUT_OF_TIME)
            begin: BeginOrder = {
                "order": "begin",
                "project": order.project,
                "job": order.job,
                "trial": order.export,
                "attempt": 1,
                "entry": order.entry,
                "kind": EXPORT_KIND,
                "config": {
                    "config": dict(order.config),
                    "checkpoint": str(checkpoint),
                    "formats": list(order.formats),
                    "mode": order.mode,
                    "max_drop": order.max_drop,
                    "threads": order.threads,
                },
                "target_step": None,
                "max_step": formats,
                "lease_ns": max(1, round(lease_s * 1e9)),
                "storage": order.storage,
                "restore_step": None,
                "keep": formats,
                "resources": dict(order.resources),
                "checkpoint_interval_ns": 1,
            }
            supervisor.order(begin)
            result = _follow(supervisor, order.export, formats)
        return _stored(result, store, order.export)
    except Exception as error:
        # Return an error of the supervisor as the result. Otherwise only the log of the process would show it.
        return ExportResult(
            None, (), "worker_failed", f"the worker failed: {type(error).__name__}: {error}; export again"
        )


def _follow(supervisor: Supervisor, export: str, formats: int) -> ExportResult:
    """Follow the attempt until it ends, and return its result."""
    metric, variants = None, list[Variant]()
    code = detail = None
    state: WorkerState = "running"
    ordered = False
    error: FailureFields | None = None
    while state in ("running", "waiting"):
        message = supervisor.step()
        state, error = message["state"], message["error"]
        for report in message["reports"]:
            figures = report["metrics"]
            try:
                if "variant" in figures:
                    variants.append(Variant.of(json.loads(str(figures["variant"]))))
                    metric = finite("metric", figures["metric"])
                else:
                    code, detail = str(figures["code"])[:40], str(figures["detail"])
            except (KeyError, TypeError, ValueError) as invalid:
                code, detail = (
                    "invalid_export",
                    f"the export's process reported a result that cannot be used: {invalid}",
                )
        # The child waits after its last variant, or because the lease is too short for the next one. In both cases the export ends.
        if state == "waiting" and not ordered:
            supervisor.order({"order": "pause", "trial": export})
            ordered = True
    if code is None and len(variants) < formats:
        if state == "paused":
            code, detail = "out_of_time", OUT_OF_TIME
        else:
            text = "Error:" if error is None else f"{error['type']}: {error['message']}\n{error['traceback']}"
            code, detail = "export_raised", text.strip()[:4000]
    return ExportResult(metric, tuple(variants), code, detail)


def _stored(result: ExportResult, store: CheckpointStore, export: str) -> ExportResult:
    """Return the result, with an error in each variant whose file is not in the storage."""
    files, detail = dict[str, StoredFile](), "the file could not be written to the storage; export again"
    try:
        files = store.files(export)
    except Exception as error:  # each kind of storage has errors of its own
        detail = f"the storage failed after the export: {explained(error)}; export again"
    variants = [
        variant
        if variant.file is None or variant.file in files
        else replace(variant, file=None, code="not_stored", detail=detail)
        for variant in result.variants
    ]
    return ExportResult(result.metric, tuple(variants), result.code, result.detail)
