"""The `tuner` command line: one function per command, and the groups of `tuner --help`."""

import gc
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import arguments, ascii_chart, render
from tuner.cli import watch as watching
from tuner.cli.access import audit, keys, members, projects, users, whoami
from tuner.cli.answers import advice, checkpoint, curves, logs
from tuner.cli.arguments import JobId, Json, TrialId
from tuner.cli.best import best, best_of_all, pareto
from tuner.cli.cluster import cluster, preempt
from tuner.cli.estimate import estimate
from tuner.cli.examples import add_examples
from tuner.cli.job_yaml import read_job
from tuner.cli.money import budgets, quota, spend, topup
from tuner.cli.operating import backup, dashboard, doctor, migrate, packages, replay, restore
from tuner.cli.output import PROJECT, Frame, connect, with_problems
from tuner.cli.pilot import pilot
from tuner.cli.plan import plan
from tuner.cli.prices import prices
from tuner.cli.simulate import simulate
from tuner.cli.tables import Format, Style
from tuner.cli.training import train

SHOWN = 10  # How many trials `tuner bill` lists unless --all is given.
#: Headings of `tuner --help` and the commands under each, in the order in which they are shown.
GROUPS = {
    "Run": (
        "demo",
        "submit",
        "pause",
        "resume",
        "cancel",
        "topup",
        "priority",
        "pilot",
        "train",
        "trainables",
        "packages",
    ),
    "Watch": (
        "jobs",
        "job",
        "watch",
        "trials",
        "trial",
        "logs",
        "curves",
        "best",
        "best-of-all",
        "pareto",
        "checkpoint",
        "report",
    ),
    "Money": ("bill", "ledger", "spend", "budgets", "quota", "advice"),
    "Plan": ("plan", "estimate", "prices", "simulate"),
    "Operate": (
        "serve",
        "stop",
        "dashboard",
        "cluster",
        "preempt",
        "doctor",
        "replay",
        "migrate",
        "backup",
        "restore",
    ),
    "Access": ("whoami", "projects", "users", "members", "keys", "audit"),
}


def group_commands(app: typer.Typer) -> None:
    """Put each command under its heading in `GROUPS`, in the order of `GROUPS`.

    Raises:
        KeyError: A command is missing from `GROUPS`.
    """
    panels = {name: panel for panel, names in GROUPS.items() for name in names}
    order = list(panels)

    def name_of(command: typer.models.CommandInfo) -> str:
        return command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]

    for command in app.registered_commands:
        command.rich_help_panel = panels[name_of(command)]
    for group in app.registered_groups:
        group.rich_help_panel = panels[str(group.name)]
    app.registered_commands.sort(key=lambda command: order.index(name_of(command)))


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Hyperparameter tuning under hard budgets in dollars and GPU-hours.",
)


@app.callback()
def tuner(
    project: Annotated[
        str | None,
        typer.Option(help="Project to work in. Only for the service's own key. Default: TUNER_PROJECT."),
    ] = None,
) -> None:
    PROJECT.set(project)


@app.command()
@with_problems
def serve() -> None:
    """Start the service: REST API, web page and controller. It starts a local Ray cluster unless TUNER_RAY_ADDRESS is set."""
    gc.disable()  # Collecting garbage during the imports takes a fifth of the start-up time. `run` enables it again.
    from tuner.cli.server import run

    run()


@app.command()
@with_problems
def stop() -> None:
    """Stop the local Ray cluster of this TUNER_HOME. Running jobs continue after the next `tuner serve`."""
    from tuner.cli.server import stop_cluster

    stop_cluster()


@app.command()
@with_problems
def demo(
    usd: Annotated[float, typer.Option(help="Budget in dollars.")] = 0.003,
    trainable: Annotated[str, typer.Option(help="Trainable to tune.")] = "trainables.digits_cnn:train",
) -> None:
    """Start a temporary service, tune a model within a budget, and print the best configuration and the bill."""
    from tuner.cli.demo import run

    run(usd, trainable)


@app.command()
@with_problems
def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file; - reads standard input.")],
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a tuning job. The file's `planning` section is ignored."""
    client, asked = connect(), read_job(file)
    asked.pop("planning", None)
    job = client.submit(asked)
    if not wait:
        Frame(as_json).show(job, render.job)
        return
    with watching.may_leave(job.id):
        if not as_json:
            typer.echo(f"submitted {job.id}")
            watching.watch(client, job.id)
        job = client.wait(job.id, progress=False)
    Frame(as_json).show(job, render.job)
    if job.state != "succeeded":
        typer.echo(f"The job is {job.state}\n{job.detail or job.stop_reason or ''}".rstrip(), err=True)
        raise typer.Exit(1)


@app.command()
@with_problems
def jobs(
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state.", autocompletion=arguments.states)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag, as key:value.")] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    Frame(as_json, style).show_all(list(connect().jobs(state=state, tag=tag)), render.jobs)


@app.command()
@with_problems
def job(job: JobId, as_json: Json = False) -> None:
    """Show one job."""
    Frame(as_json).show(connect().job(job), render.job)


@app.command()
@with_problems
def watch(job: JobId, as_json: Json = False) -> None:
    """Follow a job until it ends. With --json, print one event per line."""
    follow = watching.print_events if as_json else watching.watch
    with watching.may_leave(job):
        state = follow(connect(), job)
    watching.exit_unless_succeeded(state)


@app.command()
@with_problems
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
    found = list(client.trials(job, sort=sort, limit=limit))
    ended = None
    if not as_json and any(one.state in ("pending", "paused") for one in found):
        ended = client.job(job)
    Frame(as_json, style).show_all(found, partial(render.trials, job=ended))


@app.command()
@with_problems
def trial(job: JobId, trial: TrialId, as_json: Json = False) -> None:
    """Show one trial with its learning curve, bill and attempts."""
    Frame(as_json).show(connect().trial(job, trial), render.trial)


@app.command()
@with_problems
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
    Frame(as_json, style).show(connect().bill(job), partial(render.bill, dearest=shown))


@app.command()
@with_problems
def report(job: JobId, as_json: Json = False) -> None:
    """Show the best result over money spent, and estimate what other search methods would have spent."""
    Frame(as_json).show(connect().report(job), ascii_chart.report)


@app.command()
@with_problems
def ledger(job: JobId, style: Format = Style.TABLE, as_json: Json = False) -> None:
    """List every entry of a job's ledger."""
    Frame(as_json, style).show(connect().ledger(job), render.ledger)


@app.command()
@with_problems
def pause(job: JobId, as_json: Json = False) -> None:
    """Pause a job: save a checkpoint of every running trial and stop them."""
    Frame(as_json).show(connect().pause(job), render.job)


@app.command()
@with_problems
def resume(job: JobId, as_json: Json = False) -> None:
    """Resume a paused job, or, after a top-up, a job that ended because its budget was used up."""
    Frame(as_json).show(connect().resume(job), render.job)


@app.command()
@with_problems
def cancel(job: JobId, as_json: Json = False) -> None:
    """Cancel a job immediately. A cancelled job cannot be resumed."""
    Frame(as_json).show(connect().cancel(job), render.job)


@app.command(
    context_settings={"ignore_unknown_options": True}
)  # Otherwise a negative value, such as -5, would be read as an option.
@with_problems
def priority(
    job: JobId,
    value: Annotated[
        int, typer.Argument(help="From -1000 to 1000. Jobs with a higher priority are launched first.")
    ],
    as_json: Json = False,
) -> None:
    """Change a waiting job's place in the queue."""
    Frame(as_json).show(connect().patch(job, priority=value), render.job)


@app.command()
@with_problems
def trainables(
    name: Annotated[
        str | None,
        typer.Argument(help="Trainable to import and describe, such as my_module:train.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the trainables that can be tuned, or check one of them."""
    if name is None:
        Frame(as_json).show(connect().trainables(), render.trainables)
    else:
        Frame(as_json).show(connect().trainable(name), render.trainable)


app.command()(topup)
app.command()(whoami)
app.command()(logs)
app.command()(curves)
app.command()(best)
app.command()(best_of_all)
app.command()(pareto)
app.command()(train)
app.command()(pilot)
app.command()(plan)
app.command()(estimate)
app.command()(prices)
app.command()(audit)
app.command()(advice)
app.command()(simulate)
app.command()(cluster)
app.command()(dashboard)
app.command()(doctor)
app.command()(replay)
app.command()(migrate)
app.command()(backup)
app.command()(restore)
app.command()(preempt)
app.command()(spend)
app.add_typer(budgets, name="budgets")
app.add_typer(packages, name="packages")
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(quota, name="quota")
app.add_typer(projects, name="projects")
app.add_typer(users, name="users")
app.add_typer(members, name="members")
app.add_typer(keys, name="keys")
group_commands(app)
add_examples(app)


if __name__ == "__main__":
    app()
