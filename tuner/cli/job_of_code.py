"""Make a job from Python code: a Ray Tune trainable with its `param_space`, or an Optuna objective.

The user's modules are imported in this process, because their code defines the search space. What they print goes to standard error.
"""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tuner.cli.job_yaml import read_job
from tuner.domain.space import SpaceRefused
from tuner.training.channel import message_at_import

OBJECTIVE_METRIC = "value"  # Optuna's name for the number that an objective returns


@dataclass(frozen=True)
class Overrides:
    """The options of `tuner submit` that replace parts of a job. A part whose option is None is left unchanged."""

    space: str | None  #: `module:name` of a `param_space`.
    kind: str | None
    metric: str | None
    mode: str | None
    usd: float | None
    gpu_hours: float | None
    wall_clock: str | None
    trials: int | None
    max_steps: int | None


def job_of(what: str, options: Overrides) -> dict[str, Any]:
    """Read the job file, or build a job for `module:function`, and apply the options.

    Raises:
        typer.BadParameter: The file is Python code or not a job, an option is missing, or a part that an option changes is not a mapping.
        SpaceRefused: The search space cannot be converted or recorded.
    """
    if options.kind not in (None, "optuna"):
        raise typer.BadParameter("must be optuna", param_hint="--kind")
    if options.kind and options.space:
        raise typer.BadParameter(
            "an Optuna objective defines its own search space; leave --space out", param_hint="--space"
        )
    is_code = re.fullmatch(r"[\w.]+:\w+", what) is not None and not Path(what).exists()
    if what.endswith(".py"):
        raise typer.BadParameter(
            f"{what} is a Python file, not a job file; to submit a function of a module, write {_module_of(what)}:train"
        )
    job = _job_of_function(what, options) if is_code else read_job(Path(what))
    if options.space is not None:
        from tuner.cli.ray_space import job_of_space

        constants = _mapping(job, "constants")
        fields = job_of_space(_imported(options.space))
        job.pop("kind", None)
        job |= {**fields, "constants": {**constants, **fields["constants"]}}
    elif options.kind is not None:
        job["kind"] = options.kind
    if job.get("objectives") and (options.metric or options.mode):
        raise typer.BadParameter(
            "the job has several objectives; change them in the job file", param_hint="--metric, --mode"
        )
    _put(job, "objective", metric=options.metric, mode=options.mode)
    limits = {"usd": options.usd, "gpu_hours": options.gpu_hours}
    _put(job, "budget", **limits, wall_clock=options.wall_clock, trials=options.trials)
    _put(job, "fidelity", max=options.max_steps)
    return with_recorded_space(job)


def _module_of(file: str) -> str:
    """Return the name of the module in a Python file, relative to the working directory. Leave the folders of a file elsewhere out."""
    path, here = Path(file).resolve(), Path.cwd()
    inside = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return ".".join(inside.with_suffix("").parts)


def with_recorded_space(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job, and add a recorded search space if the job has an Optuna objective and no search space.

    Any other job is returned unchanged.

    Raises:
        SpaceRefused: The search space cannot be recorded.
    """
    entry = job.get("trainable")
    if job.get("kind") != "optuna" or "search_space" in job or not isinstance(entry, str):
        return job  # If the trainable is missing or is not text, the service reports this when the job is submitted.
    return {**job, "search_space": recorded(entry)}


def with_start(job: dict[str, Any], given: Sequence[str], best_of: Callable[[str], dict[str, Any]]) -> None:
    """Insert the best configurations of other jobs at the beginning of the job's `start`.

    Parameters that are not in the job's search space are left out of these configurations.

    Args:
        job: The job, which is changed.
        given: The values of `--start`, each of the form `best-of:JOB`.
        best_of: Returns the best configuration of a job.

    Raises:
        typer.BadParameter: A value has another form.
    """
    space, configs = _mapping(job, "search_space"), []
    for value in given:
        form, _, source = value.partition(":")
        if form != "best-of" or not source:
            raise typer.BadParameter(f"must be best-of:JOB, not {value!r}", param_hint="--start")
        configs.append({name: part for name, part in best_of(source).items() if name in space})
    if configs:
        job["start"] = [*configs, *(job.get("start") or [])]


def _job_of_function(entry: str, options: Overrides) -> dict[str, Any]:
    """Return a job that has only the trainable `entry`, a name, and the metric `value` (Optuna's name for what an objective returns).

    The caller adds or replaces the other parts from the options. Raise BadParameter if a required option is missing.
    """
    if options.space is None and options.kind is None:
        raise typer.BadParameter(
            f"{entry} needs --space MODULE:NAME with its param_space, or --kind optuna if it is an objective"
        )
    if options.metric is None and options.kind is None:
        raise typer.BadParameter("name the metric that the trainable reports", param_hint="--metric")
    if options.mode is None:
        raise typer.BadParameter("give the direction of the metric: max or min", param_hint="--mode")
    if options.usd is None and options.gpu_hours is None:
        raise typer.BadParameter("give a budget, --usd or --gpu-hours", param_hint="--usd")
    name = entry.replace(":", ".").lstrip("_")[:100]
    return {"name": name, "trainable": entry, "objective": {"metric": OBJECTIVE_METRIC}}


def _put(job: dict[str, Any], part: str, **values: object) -> None:
    """Set fields of the part `part` of a job to `values`. Values that are None are skipped."""
    given = {name: value for name, value in values.items() if value is not None}
    if given:
        job[part] = {**_mapping(job, part), **given}


def _mapping(job: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return a part of a job, or {} if the job does not have it. Raise BadParameter if the part is not a mapping."""
    value = job.get(part)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{part} must be a mapping in the job file")
    return value


def recorded(entry: str) -> dict[str, Any]:
    """Return the search space of an Optuna objective, recorded by running it in this process.

    Raises:
        SpaceRefused: The objective cannot be imported, or its space cannot be recorded.
    """
    from tuner.service.trainables import recorded_space

    objective = _imported(entry)
    if not callable(objective):
        raise SpaceRefused("not_importable", f"{entry} is a {type(objective).__name__}, not a function")
    typer.echo(f"recording the search space: running {entry} until its first report, several times", err=True)
    with _output_on_stderr():
        return recorded_space(objective)


def _imported(entry: str) -> Any:
    """Import `module:name` from the current directory or the installed modules. Raise SpaceRefused if it cannot be imported."""
    module_name, _, name = entry.partition(":")
    if not (module_name and name):
        raise SpaceRefused("not_importable", f"{entry!r} is not of the form module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    sys.argv = sys.argv[:1]  # user code that parses its command line gets no arguments, as on a worker
    try:
        with _output_on_stderr():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise SpaceRefused(
            "not_importable",
            f"importing {module_name} in {os.getcwd()} raised {type(error).__name__}: {message_at_import(error)}",
        ) from error
    if not hasattr(module, name):
        raise SpaceRefused("not_importable", f"{module_name} has no {name!r}")
    return getattr(module, name)


@contextlib.contextmanager
def _output_on_stderr() -> Iterator[None]:
    """Send the output of user code to standard error, because standard output is for the result of the command."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
