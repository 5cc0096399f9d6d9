"""Register commands: add examples to their help, and print their errors as text instead of as tracebacks."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from tuner.cli.output import with_problems

F = TypeVar("F", bound=Callable[..., Any])

#: Examples that `--help` shows, by command. Commands whose usage line is clear enough have none. Each example runs as written once JOB is
#: replaced by a job id.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("tuner demo", "tuner demo --usd 0.01 --trainable trainables.digits_mlp:train"),
    "replay": ("tuner replay JOB", "tuner replay JOB --with scheduler=asha --with sampler=random"),
    "migrate": ("tuner migrate", "tuner migrate --to 0028"),
    "dashboard": ("tuner dashboard", "tuner dashboard JOB --no-open"),
    "backup": ("tuner backup tuner-2026-01-31.backup",),
    "restore": ("tuner restore tuner-2026-01-31.backup", "tuner restore tuner-2026-01-31.backup --replace"),
    "submit": (
        "tuner submit digits.yaml --wait",
        "tuner submit - --json",
        "tuner submit mine:train --space mine:SPACE --metric loss --mode min --usd 5",
        "tuner submit mine:objective --kind optuna --mode min --usd 5",
    ),
    "plan": ("tuner plan digits.yaml", "tuner plan digits.yaml --deadline 6h --format markdown"),
    "pilot": ("tuner pilot digits.yaml --usd 0.05 --wait",),
    "jobs": ("tuner jobs --state running", "tuner jobs --tag owner:alice --format csv"),
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
    "artifacts": ("tuner artifacts JOB trial_00012", "tuner artifacts JOB trial_00012 --to plots"),
    "train": (
        "tuner train JOB --save trained",
        "tuner train JOB --trial trial_00012 --steps 9",
        "tuner train trainables.digits_mlp:train --steps 9 --config '{\"width\": 64}'",
    ),
    "export": (
        "tuner export JOB --to files",
        "tuner export JOB --formats onnx,int8-dynamic --max-drop 0.01",
        "tuner export JOB --export export_00001 --to files",
    ),
    "bill": ("tuner bill JOB", "tuner bill JOB --format markdown"),
    "ledger": ("tuner ledger JOB --format csv",),
    "spend": ("tuner spend --by owner --since 2026-01-01", "tuner spend --by tag:project --by day --csv"),
    "report": (
        "tuner report JOB",
        "tuner report --month 2026-11",
        "tuner report --project vision --format csv",
    ),
    "storage": ("tuner storage ls",),
    "storage ls": ("tuner storage ls", "tuner storage ls --json"),
    "storage gc": ("tuner storage gc --dry-run", "tuner storage gc"),
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
    "packages push": (
        "tuner packages push my_trainable",
        "tuner packages push my_trainable-1.0-py3-none-any.whl",
    ),
    "budgets set": (
        "tuner budgets set vision --usd 100 --match project:vision --period month",
        "tuner budgets set vision --usd 100 --match project:vision --period month --alert 0.8=https://example.com/hook",
    ),
    "audit": ("tuner audit --since 2026-01-01", "tuner audit --user ada --action job.cancel"),
    "members set": ("tuner members set ada --role submitter",),
    "keys make": ("tuner keys make ada --name laptop --expires-in 30d",),
    "keys rotate": ("tuner keys rotate tnr_4k0x9q2m --overlap 1h",),
    "keys revoke": ("tuner keys revoke tnr_4k0x9q2m",),
    "quota set": ("tuner quota set --usd 500 --period month --concurrent-jobs 4",),
}


class PlainCommand(TyperCommand):
    """A command whose errors about an option's value begin without the words that pydantic adds to them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


class CommandGroup(typer.Typer):
    """Commands under a common name, or the top-level commands if `name` is None."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name=name, no_args_is_help=True, epilog=_epilog(name), **options)

    def add(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Return a decorator that registers a function as a command. If `name` is None, the command is named like the function."""

        def register(function: F) -> F:
            command = name or function.__name__.replace("_", "-")
            full_name = command if self.info.name is None else f"{self.info.name} {command}"
            self.command(command, cls=PlainCommand, epilog=_epilog(full_name), **options)(
                with_problems(function)
            )
            return function

        return register


def _epilog(name: str | None) -> str | None:
    """Return the examples of the command `name`, or None if it has none. Each is a separate paragraph, because rich joins the lines of a
    paragraph.
    """
    examples = EXAMPLES.get(name or "")
    return "\n\n".join(["Examples:", *examples]) if examples else None
