"""The `tuner` command line: many of its commands, one function each, and the headings under which `tuner --help` lists all commands."""

import gc
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from tuner import __version__
from tuner.cli import arguments, render
from tuner.cli import watch as watching
from tuner.cli.access import audit, keys, members, projects, users, whoami
from tuner.cli.answers import advice, curves, logs
from tuner.cli.arguments import JobId, Json, TrialId
from tuner.cli.artifacts import artifacts, checkpoint, storage
from tuner.cli.best import best, best_of_all, pareto
from tuner.cli.cluster import cluster, preempt
from tuner.cli.command_group import CommandGroup
from tuner.cli.escape import harmless
from tuner.cli.estimate import estimate
from tuner.cli.exporting import export
from tuner.cli.finops import report
from tuner.cli.job_yaml import job_file
from tuner.cli.money import budgets, quota, spend, topup
from tuner.cli.operating import backup, dashboard, doctor, migrate, packages, replay, restore
from tuner.cli.output import PROJECT, Output, connect, maybe_done
from tuner.cli.plan import pilot, plan
from tuner.cli.prices import prices
from tuner.cli.simulate import simulate
from tuner.cli.tables import Format, Style
from tuner.cli.training import train

SHOWN = 10  # How many trials `tuner bill` lists unless --all is given.
app = CommandGroup(
    None,
    pretty_exceptions_enable=False,
    help="Hyperparameter tuning under hard budgets in dollars and GPU-hours.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tuner {__version__}")
        raise typer.Exit


@app.callback()
def tuner(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version, and end.", callback=_print_version, is_eager=True),
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(
            help="Project to work in. Only for the operator, who uses the service's own key. Default: TUNER_PROJECT."
        ),
    ] = None,
) -> None:
    PROJECT.set(project)


def serve() -> None:
    """Start the service: REST API, web page and controller. It starts a local Ray cluster unless TUNER_RAY_ADDRESS is set."""
    gc.disable()  # Collecting garbage during the imports takes a fifth of the start-up time. `run` enables it again.
    from tuner.cli.server import run

    run()


def stop(
    job: Annotated[
        str,
        typer.Argument(metavar="[JOB", help="Job of the trial to stop.", autocompletion=arguments.jobs),
    ] = "",
    trial: Annotated[
        str,
        typer.Argument(metavar="TRIAL]", help="Trial to stop permanently.", autocompletion=arguments.trials),
    ] = "",
    as_json: Json = False,
) -> None:
    """Stop a trial permanently. Without arguments, stop the local Ray cluster that belongs to TUNER_HOME instead. Running jobs are
    interrupted, and continue when `tuner serve` is next started."""
    if job and not trial:
        raise typer.BadParameter("name a trial of the job; to end the whole job, use `tuner cancel JOB`")
    if job:
        with maybe_done(f"the trial may have been stopped; check `tuner trial {job} {trial}`"):
            stopped = connect().stop_trial(job, trial)
        Output(as_json).show(stopped, render.trial)
        return
    from tuner.cli.cluster import stop_cluster

    stop_cluster()


def enqueue(
    job: JobId,
    config: Annotated[
        str,
        typer.Option(
            help="Configuration as JSON: a value for each parameter, except conditional parameters that do not apply.",
            metavar="JSON",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Try a configuration as soon as a worker is free."""
    values = arguments.parsed_config(config)
    with maybe_done(f"the configuration may have been added; check `tuner trials {job}`"):
        changed = connect().enqueue(job, values)
    Output(as_json).show(changed, lambda job: render.enqueued(job, values))


def promote(job: JobId, trial: TrialId, as_json: Json = False) -> None:
    """Let a trial run to its next rung, before other trials."""
    with maybe_done(
        f"the trial may have been promoted; check `tuner trial {job} {trial}` before you repeat it"
    ):
        promoted = connect().promote_trial(job, trial)
    Output(as_json).show(promoted, render.promoted)


def width(
    job: JobId,
    trials: Annotated[
        int, typer.Argument(min=1, help="How many trials may run at once.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Change how many trials of a job may run at once. If more are running, the excess trials are paused with a checkpoint."""
    Output(as_json).show(connect().patch(job, max_concurrent_trials=trials), render.job)


def demo(
    usd: Annotated[float, typer.Option(help="Budget in dollars.")] = 0.002,
    trainable: Annotated[str, typer.Option(help="Trainable to tune.")] = "trainables.digits_cnn:train",
) -> None:
    """Start a temporary service, tune a model within a budget, and print the best configuration and the bill."""
    from tuner.cli.demo import run

    run(usd, trainable)


def submit(
    what: Annotated[
        str,
        typer.Argument(
            metavar="JOB.yaml|MODULE:FUNCTION",
            help="Job file (- reads standard input), or a Ray Tune trainable or an Optuna objective.",
            show_default=False,
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the job ends.")] = False,
    space: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Take the search space and the constants from this `param_space` of a Ray Tune script.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Use `optuna` if the function is an Optuna objective. The command runs the objective on this machine to record "
            "its search space."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to optimize. Default for an Optuna objective: value.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="`max` or `min`: the direction of the metric.")] = None,
    usd: Annotated[float | None, typer.Option(help="Budget in dollars.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="Budget in GPU-hours.")] = None,
    wall_clock: Annotated[
        str | None, typer.Option(help="Maximum wall-clock time of the job: 90s, 15m, 6h.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Maximum number of trials.")] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Maximum number of steps per trial. Each report is one step.")
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="best-of:JOB",
            help="Try the best configuration of this job first. Can be repeated.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="If a job was submitted with this key in the last 24 hours, show that job instead of submitting another one.",
        ),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the job file, and submit nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Submit a tuning job described by a job file or by options. Options replace values of the file.
    The file's `planning` section is ignored.

    With MODULE:FUNCTION, describe the job with options instead of a file. The command imports the function's module and the module of
    --space on this machine to read the search space. The code is not uploaded: the service's workers must be able to import it, too.
    """
    from tuner.cli.job_of_code import Overrides, job_of, with_start

    overrides = Overrides(space, kind, metric, mode, usd, gpu_hours, wall_clock, trials, max_steps)
    asked = job_of(what, overrides)
    asked.pop("planning", None)
    with_start(asked, start or [], lambda job: connect().best(job, forecast=False).config)
    if print_only:
        typer.echo(json.dumps(asked) if as_json else job_file(asked), nl=as_json)
        return
    client = connect()
    with maybe_done("the job may have been submitted; check `tuner jobs`"):
        job = client.submit(asked, idempotency_key=idempotency_key)
    if not wait:
        Output(as_json).show(job, render.job)
        return
    with watching.may_leave(job.id):
        typer.echo(f"submitted {job.id}", err=as_json)
        if not as_json:
            watching.watch(client, job.id)
        job = client.wait(job.id, progress=False)
    Output(as_json).show(job, render.job)
    if job.state != "succeeded":
        why = job.detail or job.stop_reason or ""
        typer.echo(harmless(f"The job is {job.state}\n{why}").rstrip(), err=True)
        raise typer.Exit(1)


def jobs(
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state.", autocompletion=arguments.states)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag, as key:value.")] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    Output(as_json, style).show_all(list(connect().jobs(state=state, tag=tag)), render.jobs)


def job(job: JobId, as_json: Json = False) -> None:
    """Show one job."""
    Output(as_json).show(connect().job(job), render.job)


def watch(
    job: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Follow a job until it ends or is paused. With --json, print one event per line."""
    follow = watching.print_events if as_json else watching.watch
    with watching.may_leave(job):
        state = follow(connect(), job)
    watching.exit_unless_succeeded(state)


def trials(
    job: JobId,
    sort: Annotated[
        str,
        typer.Option(
            help="Sort by number, metric, cost_usd or steps; a leading minus sorts in descending order.",
            autocompletion=arguments.sorts,
        ),
    ] = "number",
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of trials to list.")] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List a job's trials."""
    client = connect()
    items = list(client.trials(job, sort=sort, limit=limit))
    is_unfinished = any(trial.state in ("pending", "paused") for trial in items)
    of_job = client.job(job) if is_unfinished and not as_json else None
    Output(as_json, style).show_all(items, partial(render.trials, job=of_job))


def trial(job: JobId, trial: TrialId, as_json: Json = False) -> None:
    """Show one trial with its learning curve, bill and attempts."""
    Output(as_json).show(connect().trial(job, trial), render.trial)


def bill(
    job: JobId,
    all_trials: Annotated[
        bool, typer.Option("--all", help=f"List all trials, not only the {SHOWN} most expensive ones.")
    ] = False,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Show what a job cost, by kind of spend and by trial."""
    shown = None if all_trials or style is not Style.TABLE else SHOWN
    Output(as_json, style).show(connect().bill(job), partial(render.bill, most_expensive=shown))


def ledger(job: JobId, style: Format = Style.TABLE, as_json: Json = False) -> None:
    """List every entry of a job's ledger."""
    Output(as_json, style).show(connect().ledger(job), render.ledger)


def pause(job: JobId, as_json: Json = False) -> None:
    """Pause a job: save a checkpoint of every running trial and stop them."""
    Output(as_json).show(connect().pause(job), render.job)


def resume(job: JobId, as_json: Json = False) -> None:
    """Resume a paused job, or a job that has succeeded and has money left. If its budget is used up, run `tuner topup` first."""
    with maybe_done(f"the job may have been resumed; check `tuner job {job}`"):
        resumed = connect().resume(job)
    Output(as_json).show(resumed, render.job)


def cancel(job: JobId, as_json: Json = False) -> None:
    """Cancel a job: its work stops within seconds. A cancelled job cannot be resumed."""
    Output(as_json).show(connect().cancel(job), render.cancelled)


def priority(
    job: JobId,
    value: Annotated[
        int,
        typer.Argument(
            help="From -1000 to 1000. In a project, jobs with a higher priority are launched first."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Set the priority of a waiting job. In a project, jobs with a higher priority are launched first."""
    Output(as_json).show(connect().patch(job, priority=value), render.job)


def trainables(
    name: Annotated[
        str | None,
        typer.Argument(help="Trainable to import and describe, such as my_module:train.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the trainables that can be tuned, or check one of them."""
    if name is None:
        Output(as_json).show(connect().trainables(), render.trainables)
    else:
        Output(as_json).show(connect().trainable(name), render.trainable)


#: Commands under the headings of `tuner --help`, in the order in which they are shown.
HEADINGS: dict[str, Sequence[Callable[..., None] | CommandGroup]] = {
    "Run": (
        demo,
        submit,
        pause,
        resume,
        cancel,
        topup,
        priority,
        width,
        enqueue,
        promote,
        pilot,
        train,
        export,
        trainables,
        packages,
    ),
    "Watch": (
        jobs,
        job,
        watch,
        trials,
        trial,
        logs,
        curves,
        best,
        best_of_all,
        pareto,
        checkpoint,
        artifacts,
        report,
    ),
    "Money": (bill, ledger, spend, storage, budgets, quota, advice),
    "Plan": (plan, estimate, prices, simulate),
    "Operate": (serve, stop, dashboard, cluster, preempt, doctor, replay, migrate, backup, restore),
    "Access": (whoami, projects, users, members, keys, audit),
}
for heading, commands in HEADINGS.items():
    for command in commands:
        if isinstance(command, CommandGroup):
            app.add_typer(command, rich_help_panel=heading)
        else:
            # Without this setting, a negative priority such as -5 would be refused as an unknown option.
            settings = {"ignore_unknown_options": command is priority}
            app.add(rich_help_panel=heading, context_settings=settings)(command)


if __name__ == "__main__":
    app()
