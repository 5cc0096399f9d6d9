"""Mirror of trials as TensorBoard runs.

Each trial has an event file with every metric and the cost by step, and the configuration for the HParams page. Files are only
appended to. If a crash cut off the last event, the incomplete event is removed, and the trial continues after the last complete one.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from tuner.domain.time import NS, Instant
from tuner.mirrors.record import MirroredChanges, MirroredJob, MirroredTrial, Position

POSITION = ".position"
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")


class TensorBoardMirror:
    """The TensorBoard mirror. The run of a trial is in `folder/NAME-JOB/TRIAL/`, where NAME and JOB are the job's name and id.

    Its methods raise OSError if a file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._last_steps: dict[Path, int] = {}

    def positions(self) -> dict[str, Position]:
        positions = {}
        for path in self._folder.glob(f"*/{POSITION}"):
            job, _, text = path.read_text().partition(" ")
            position = Position.parse(text)
            if position is not None:
                positions[job] = position
        return positions

    def write(self, changes: MirroredChanges) -> bool:
        job = changes.job
        folder = self._folder / f"{job.name} {job.id}".replace(" ", "-")
        folder.mkdir(exist_ok=True)
        for trial in changes.trials:
            self._write(folder / trial.id, job, trial)
        draft = folder / f"{POSITION}.new"
        draft.write_text(f"{job.id} {changes.upto}")
        draft.rename(folder / POSITION)
        if changes.is_end:
            self._last_steps = {run: step for run, step in self._last_steps.items() if run.parent != folder}
        return True

    def close(self) -> None:
        pass

    def _write(self, run: Path, job: MirroredJob, trial: MirroredTrial) -> None:
        run.mkdir(exist_ok=True)
        file = run / f"events.out.tfevents.{trial.created_at // NS:010d}.tuner"
        if run not in self._last_steps:
            self._last_steps[run] = _fix(file)
        last, events = self._last_steps[run], []
        if not file.exists() or file.stat().st_size == 0:
            events.append(_event(trial.created_at, file_version="brain.Event:2"))
            events += [_event(trial.created_at, summary=summary) for summary in _hparams(job, trial)[:2]]
        for report in trial.reports:
            if report.step > last:
                numbers = report.numbers(job.metric)
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
                events.append(_event(report.at, step=report.step, summary=Summary(value=values)))
                last = report.step
        if trial.is_final:
            events.append(_event(trial.updated_at, summary=_hparams(job, trial)[2]))
        with file.open("ab") as out:
            out.write(b"".join(_framed(event.SerializeToString()) for event in events))
        self._last_steps[run] = last


def _hparams(job: MirroredJob, trial: MirroredTrial) -> tuple[Any, Any, Any]:
    """Return three summaries for the HParams page: of the experiment, of the start of this trial, and of its end."""
    config = {name: "null" if value is None else value for name, value in trial.config.items()}
    metrics = dict.fromkeys((f"best_{job.metric}", job.metric, "cost_usd", "gpu_hours"))
    summaries: tuple[Any, Any, Any] = hparams(config, metrics)
    return summaries


def _event(at: Instant, **parts: Any) -> Any:
    return Event(wall_time=at / NS, **parts)


def _framed(data: bytes) -> bytes:
    """Return the bytes as a TFRecord: the length, its checksum, the bytes, and their checksum."""
    length = struct.pack("<Q", len(data))
    return length + _CRC.pack(_masked(length)) + data + _CRC.pack(_masked(data))


def _masked(data: bytes) -> int:
    value: int = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _fix(file: Path) -> int:
    """Remove an incomplete event from the end of an event file. Return the highest step of the complete events, or 0 if there is none."""
    if not file.exists():
        return 0
    data, whole, last = file.read_bytes(), 0, 0
    for end, event in _events(data):
        whole, last = end, max(last, event.step)
    if whole < len(data):
        os.truncate(file, whole)
    return last


def _events(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the end position in `data` and the content of each event, up to the first incomplete event."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, check = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length + _CRC.size
        if check != _masked(data[at : at + 8]) or end > len(data):
            return
        body = data[at + _HEAD.size : end - _CRC.size]
        if _CRC.unpack_from(data, end - _CRC.size)[0] != _masked(body):
            return
        yield end, Event.FromString(body)
        at = end
