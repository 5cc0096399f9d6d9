"""Export a checkpoint in the child process of a worker, and send each variant to the supervisor as one step."""

import json
import shutil
import sys
from pathlib import Path

from tuner.training.channel import Channel, StopTraining
from tuner.training.checkpoint import saved_state
from tuner.training.exported_files import ExportFailed
from tuner.training.exporting import Exporter, export_function


def run_export(channel: Channel) -> None:
    """Export the model of a checkpoint to each format that the attempt's configuration lists. Exceptions of user code propagate.

    The configuration has the keys `config` (the trial's configuration), `checkpoint` (the directory of the checkpoint), `formats`,
    `mode` (whether a higher or a lower metric is better), `max_drop` (by how much the metric may get worse) and `threads` (how
    many threads the measurements use).

    Each format gives one variant, which is one step. Its file, and its measurements as JSON, are saved as the checkpoint of that step,
    so a variant that is finished is kept if a later one kills the process.
    """
    wanted, staging = channel.begin.config, Path(channel.begin.staging)
    work = staging / "work"
    work.mkdir()
    try:
        function = export_function(sys.modules[channel.begin.entry.partition(":")[0]])
        exported = function(wanted["config"], saved_state(Path(wanted["checkpoint"])))
        exporter = Exporter(
            exported, work, mode=wanted["mode"], max_drop=wanted["max_drop"], threads=wanted["threads"]
        )
    except ExportFailed as failed:
        channel.report(1, {"code": failed.code, "detail": failed.detail}, resumable=False)
        return
    # from here on, the supervisor measures each variant as a step, and decides when to save
    channel.phase("train")
    unsaved: list[Path] = []
    for step, format in enumerate(wanted["formats"], start=1):
        variant = exporter.variant(format)
        figures = work / f"{format}.json"
        text = json.dumps(variant.plain())
        figures.write_text(text)
        unsaved += [figures, *([work / format] if variant.file else [])]
        reply = channel.report(step, {"variant": text, "metric": exporter.metric}, resumable=True)
        if reply.save or reply.stop:
            _save(channel, step, unsaved)
            unsaved = []
        if reply.stop:
            raise StopTraining(0)


def _save(channel: Channel, step: int, paths: list[Path]) -> None:
    folder = Path(channel.begin.staging) / f"step_{step:08d}"
    folder.mkdir()
    for path in paths:
        shutil.move(path, folder / path.name)
    channel.saved(step, str(folder))
