"""Examples that `--help` shows, by command. Users can type each as it is, after replacing JOB with a job id."""

from collections.abc import Iterator

import typer
from typer.models import CommandInfo

EXAMPLES: dict[str, tuple[str, ...]] = {
    "serve": ("tuner serve",),
    "stop": ("tuner stop",),
    "demo": ("tuner demo", "tuner demo --usd 0.01 --trainable trainables.digits_mlp:train"),
    "replay": ("tuner replay JOB", "tuner replay JOB --with scheduler=asha --with sampler=random"),
    "migrate": ("tuner migrate", "tuner migrate --to 0028"),
    "doctor": ("tuner doctor",),
    "dashboard": ("tuner dashboard", "tuner dashboard JOB --no-open"),
    "backup": ("tuner backup tuner-2026-01-31.backup",),
    "restore": ("tuner restore tuner-2026-01-31.backup", "tuner restore tuner-2026-01-31.backup --replace"),
    "submit": ("tuner submit digits.yaml --wait", "tuner submit - --json"),
    "plan": ("tuner plan digits.yaml", "tuner plan digits.yaml --deadline 6h --format markdown"),
    "pilot": ("tuner pilot digits.yaml --usd 0.05 --wait",),
    "jobs": ("tuner jobs --state running", "tuner jobs --tag owner:alice --format csv"),
    "job": ("tuner job JOB",),
    "watch": ("tuner watch JOB", "tuner watch JOB --json"),
    "trials": ("tuner trials JOB --sort -metric --limit 10", "tuner trials JOB --format csv"),
    "trial": ("tuner trial JOB trial_00012",),
    "curves": ("tuner curves JOB", "tuner curves JOB --metric train_loss"),
    "logs": ("tuner logs JOB trial_00012", "tuner logs JOB trial_00012 --follow"),
    "best": (
        "tuner best JOB",
        "tuner best JOB --max-cost-usd 5",
        "tuner best JOB --market spot --instance-type g6.xlarge",
    ),
    "best-of-all": ("tuner best-of-all trainables.digits_mlp:train val_accuracy --max-cost-usd 5",),
    "pareto": ("tuner pareto JOB", "tuner pareto JOB --format markdown"),
    "checkpoint": ("tuner checkpoint get JOB --to model",),
    "checkpoint get": (
        "tuner checkpoint get JOB --to model",
        "tuner checkpoint get JOB --trial trial_00012 --step 9 --to model",
    ),
    "train": (
        "tuner train JOB --save trained",
        "tuner train JOB --trial trial_00012 --steps 9",
        "tuner train trainables.digits_mlp:train --steps 9 --config '{\"width\": 64}'",
    ),
    "bill": ("tuner bill JOB", "tuner bill JOB --format markdown"),
    "report": ("tuner report JOB",),
    "advice": ("tuner advice JOB",),
    "ledger": ("tuner ledger JOB --format csv",),
    "spend": ("tuner spend --by owner --since 2026-01-01", "tuner spend --by tag:project --by day --csv"),
    "pause": ("tuner pause JOB",),
    "resume": ("tuner resume JOB",),
    "cancel": ("tuner cancel JOB",),
    "topup": ("tuner topup JOB --usd 10",),
    "priority": ("tuner priority JOB 5", "tuner priority JOB -5"),
    "trainables": ("tuner trainables", "tuner trainables my_module:train"),
    "prices": ("tuner prices --accelerator L4 --market spot", "tuner prices --update prices.csv"),
    "estimate": (
        "tuner estimate run.yaml",
        "tuner estimate --samples 50000 --throughput 850@A10G --deadline 12h",
    ),
    "simulate": (
        "tuner simulate --table curves.npz --budget-trainings 20",
        "tuner simulate --table curves.npz --budget-trainings 20 --preemptions bamboo",
    ),
    "cluster": ("tuner cluster --spot 2 --on-demand 1",),
    "preempt": ("tuner preempt spot-1 --notice 15s",),
    "packages": ("tuner packages list",),
    "packages push": (
        "tuner packages push my_trainable",
        "tuner packages push my_trainable-1.0-py3-none-any.whl",
    ),
    "packages list": ("tuner packages list",),
    "packages show": ("tuner packages show PACKAGE",),
    "budgets": ("tuner budgets list",),
    "budgets list": ("tuner budgets list",),
    "budgets show": ("tuner budgets show vision",),
    "budgets set": (
        "tuner budgets set vision --usd 100 --match project:vision --period month",
        "tuner budgets set vision --usd 100 --alert 0.8=https://example.com/hook",
    ),
    "budgets remove": ("tuner budgets remove vision",),
    "audit": ("tuner audit --since 2026-01-01", "tuner audit --user ada --action job.cancel"),
    "whoami": ("tuner whoami",),
    "projects": ("tuner projects list",),
    "projects list": ("tuner projects list",),
    "projects show": ("tuner projects show vision",),
    "projects add": ("tuner projects add vision",),
    "users": ("tuner users list",),
    "users list": ("tuner users list",),
    "users disable": ("tuner users disable ada",),
    "users enable": ("tuner users enable ada",),
    "members": ("tuner members list",),
    "members list": ("tuner members list",),
    "members set": ("tuner members set ada --role submitter",),
    "members remove": ("tuner members remove ada",),
    "keys": ("tuner keys list",),
    "keys list": ("tuner keys list",),
    "keys make": ("tuner keys make ada --name laptop --expires-in 30d",),
    "keys rotate": ("tuner keys rotate tnr_4k0x9q2m --overlap 1h",),
    "keys revoke": ("tuner keys revoke tnr_4k0x9q2m",),
    "quota": ("tuner quota show",),
    "quota show": ("tuner quota show",),
    "quota set": ("tuner quota set --usd 500 --period month --concurrent-jobs 4",),
}


def add_examples(app: typer.Typer, prefix: str = "") -> None:
    """Add the examples to the help of every command, including those of command groups.

    `prefix` is the name of the group with a trailing space, or "" for the top level.
    """
    for name, command in _commands(app):
        command.epilog = _epilog(EXAMPLES.get(prefix + name, ()))
    for group in app.registered_groups:
        if group.typer_instance is not None and isinstance(group.name, str):
            group.epilog = _epilog(EXAMPLES.get(prefix + group.name, ()))
            add_examples(group.typer_instance, f"{prefix}{group.name} ")


def _commands(app: typer.Typer) -> Iterator[tuple[str, CommandInfo]]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield command.name or command.callback.__name__.replace("_", "-"), command


def _epilog(examples: tuple[str, ...]) -> str | None:
    """Return the examples, each as a paragraph of its own, because rich joins the lines of a paragraph."""
    return "\n\n".join(["Examples:", *examples]) if examples else None
