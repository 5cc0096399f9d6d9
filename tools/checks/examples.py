"""Check that commands, programs, job files and JSON on the documentation pages are valid, as far as possible
without running them.
"""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from typer.exceptions import TyperException
from typer.main import get_command

from tools.checks import ROOT, Problem
from tools.checks.blocks import (
    CONSOLE,
    LANGUAGES,
    MARKS,
    PROGRAMS,
    Block,
    InvalidBlock,
    blocks,
    commands,
    pages,
    prose,
    words_of,
)
from tuner.api.translate import spec_of
from tuner.cli.job_yaml import JobYaml
from tuner.cli.main import app
from tuner.cluster import nodes
from tuner.domain.errors import Invalid
from tuner.domain.money import Price
from tuner.planning.catalogue import Catalogue, read_catalogue
from tuner.schemas.estimates import EstimateRequest
from tuner.schemas.job import JobRequest
from tuner.schemas.plan import PlanRequest

# Newcomers type everything on these pages, so everything on them runs in tests.
FOLLOWED = ("README.md", "docs/tutorial.md")
WATCHER = "tuner.cluster.notice_watch"
SEEDING = ("torch.manual_seed", "random.seed", "np.random.seed", "numpy.random.seed")
# The remaining keys, added to a part of a job file to make it complete.
JOB: dict[str, Any] = {
    "name": "a",
    "trainable": "m:f",
    "objective": {"metric": "m", "mode": "max"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"usd": 1.0},
}


class Wrong(ValueError):
    """An invalid example. The message says why."""


def check(root: Path) -> Iterator[Problem]:
    all_blocks: list[Block] = []
    for page in pages(root):
        try:
            page_blocks = blocks(page)
            all_blocks += page_blocks
            yield from _budgets(page_blocks)
        except InvalidBlock as error:
            yield Problem(page, error.line, error.message)
        yield from _inline(page)
    for block in all_blocks:
        for message in _marks(block, root):
            yield Problem(block.page, block.line, message)
        yield from _content(block, root)
    yield from _names([block for block in all_blocks if _is_program(block) and block.mark != "fragment"])


def _in_deploy(block: Block, root: Path) -> bool:
    """Return whether the block is on a page of deploy/, whose own tests check commands and files of other programs."""
    return block.page.is_relative_to(root / "deploy")


def _marks(block: Block, root: Path) -> Iterator[str]:
    fitting = MARKS[block.mark] if block.mark else LANGUAGES
    if block.mark == "elsewhere" and not (root / block.detail).is_file():
        yield f"the test {block.detail} does not exist"
    if block.mark in ("file", "program") and not block.detail:
        yield f"name the file after `{block.mark}`"
    if fitting is not None and block.language not in fitting and (block.mark or not _in_deploy(block, root)):
        yield f"`{block.language}` does not fit the mark: name what tests it, by <!-- test: elsewhere tests/... -->"
    followed = block.page in [root / page for page in FOLLOWED]
    if followed and block.language in CONSOLE and block.mark not in ("run", "start"):
        yield "all commands on this page must run in a test: mark the block `run` or `start`"


def _content(block: Block, root: Path) -> Iterator[Problem]:
    if block.language in CONSOLE:
        yield from _console(block, root)
    elif _is_program(block):
        yield from _python(block, root)
    elif block.language == "yaml" and block.mark != "elsewhere" and not _in_deploy(block, root):
        try:
            job_file(block.text)
        except (yaml.YAMLError, Wrong) as error:
            yield Problem(block.page, block.line, f"not a job file: {error}")
    elif block.language == "json":
        try:
            json.loads(block.text)
        except json.JSONDecodeError as error:
            yield Problem(block.page, block.line + error.lineno, f"not JSON: {error.msg}")


def _console(block: Block, root: Path) -> Iterator[Problem]:
    lines = commands(block)
    if not lines:
        yield Problem(block.page, block.line, "the block has no command")
    for line in lines:
        try:
            ours = command(line, root)
        except Wrong as error:
            yield Problem(block.page, block.line, f"`{line}`: {error}")
            continue
        if not ours and not block.mark and not _in_deploy(block, root):
            yield Problem(block.page, block.line, f"`{line}` is a command of another program: mark the block")


def _budgets(page_blocks: list[Block]) -> Iterator[Problem]:
    """Check that a second `tuner budgets set NAME` of a page has the options of the first, because it replaces the whole budget."""
    options: dict[str, set[str]] = {}
    console = [block for block in page_blocks if block.language in CONSOLE]
    for place, line in [(block.line, line) for block in console for line in commands(block)]:
        words = words_of(line)
        if words[:3] != ["tuner", "budgets", "set"] or len(words) < 4:
            continue
        given = {word for word in words if word.startswith("--")}
        if missing := options.setdefault(words[3], given) - given:
            message = f"`{line}` replaces the budget: repeat {', '.join(sorted(missing))}"
            yield Problem(console[0].page, place, message)


def command(line: str, root: Path) -> bool:
    """Return False if the command belongs to another program, which is not checked.

    Raises:
        Wrong: The command, an option or a value does not exist.
    """
    program, *words = words_of(line) or [""]
    if Path(program).name in PROGRAMS:
        _tuner(words)
    elif program == "make":
        targets = re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(), re.MULTILINE)
        if unknown := {word for word in words if "=" not in word} - set(targets):
            raise Wrong(f"the Makefile has no target {', '.join(sorted(unknown))}")
    elif program == "ray" and words[:1] == ["start"]:
        from ray.scripts.scripts import start  # takes a second or more

        with _usage():
            context = start.make_context("ray start", words[1:])
        _price(context.params["labels"])
    elif Path(program).name == "python" and words[:1] == ["-m"]:
        _module(words[1], words[2:], root)
    else:
        return False
    return True


def _price(text: str) -> None:
    """Compare the price in the labels of a node with the catalogue, because readers copy the label, and it overrides the catalogue."""
    labels = dict(label.split("=", 1) for label in text.split(",") if "=" in label)
    price, market = nodes.usd_per_hour(labels), nodes.market_of(labels)
    listed = _catalogue().find(instance_type=nodes.instance_type_of(labels), market=market)
    if price is None or not listed:
        return
    if Price.from_usd_per_hour(price) not in [listing.price(market) for listing in listed]:
        raise Wrong(f"the catalogue has another {market} price for {listed[0].instance_type} than {price}")


@cache
def _catalogue() -> Catalogue:
    return read_catalogue((ROOT / "tuner/planning/data/prices.csv").read_text(), "shipped")


def _module(name: str, words: list[str], root: Path) -> None:
    path = root / name.replace(".", "/")
    if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
        if path.parts[-1] == name and find_spec(name):
            pass  # an installed one, such as pytest
        else:
            raise Wrong(f"the module {name} does not exist")
    if missing := [word for word in words if word.startswith("tests/") and not (root / word).exists()]:
        raise Wrong(f"the test {missing[0]} does not exist")
    if name == WATCHER:
        from tuner.cluster.notice_watch import parser, sources_of

        with _usage():
            sources_of(parser().parse_args(words))


@cache
def _command() -> Any:
    return get_command(app)


def _tuner(words: list[str]) -> None:
    subcommand, path, words = _subcommand(words)
    if "--help" not in words:
        with _usage():
            subcommand.make_context(" ".join(path), list(words))


def _subcommand(words: list[str]) -> tuple[Any, list[str], list[str]]:
    """Return the command that the words select, the words that select it, and the rest."""
    subcommand, path = _command(), ["tuner"]
    while hasattr(subcommand, "commands") and words and not words[0].startswith("-"):
        if words[0] not in subcommand.commands:
            raise Wrong(f"the command `{' '.join([*path, words[0]])}` does not exist")
        subcommand, path, words = subcommand.commands[words[0]], [*path, words[0]], words[1:]
    return subcommand, path, words


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """Raise Wrong with the message of a command line parser."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            yield
    except TyperException as error:
        raise Wrong(error.format_message()) from error
    except SystemExit as error:
        raise Wrong(stderr.getvalue().strip().rpartition("\n")[2]) from error
    except Exception as error:
        # Ray's commands raise the UsageError of click, which is not the one that Typer has.
        if hasattr(error, "format_message"):
            raise Wrong(error.format_message()) from error
        raise


def _inline(page: Path) -> Iterator[Problem]:
    """Check the commands and options of `tuner ...` in sentences, where arguments may be missing."""
    text = prose(page.read_text())
    for match in re.finditer(r"`(tuner [a-z][^`\n]*)`", text):
        try:
            _named(words_of(match[1].replace("…", ""))[1:])
        except Wrong as error:
            yield Problem(page, text.count("\n", 0, match.start()) + 1, f"{match[0]}: {error}")


def _named(words: list[str]) -> None:
    alternatives = [number for number, word in enumerate(words) if re.fullmatch(r"[a-z-]+\|[a-z|-]+", word)]
    if alternatives:
        _subcommand(words[: alternatives[0]])
        return
    subcommand, _, words = _subcommand(words)
    options = {
        option for parameter in subcommand.params for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    if unknown := {word.split("=")[0] for word in words if word.startswith("--")} - options:
        raise Wrong(f"the command has no option {', '.join(sorted(unknown))}")


def _is_program(block: Block) -> bool:
    return block.language == "python" and block.mark != "elsewhere"


def _python(block: Block, root: Path) -> Iterator[Problem]:
    try:
        yield from _seeds(block, ast.parse(block.text))
    except SyntaxError as error:
        yield Problem(block.page, block.line + (error.lineno or 0), f"not Python: {error.msg}")
    if block.mark == "program" and block.detail:
        path = root / block.detail
        if not path.is_file() or block.text != path.read_text():
            yield Problem(block.page, block.line, f"the block differs from {block.detail}")


def _seeds(block: Block, program: ast.Module) -> Iterator[Problem]:
    """Report constant seeds in a function `train`, because all repeats of `confirm` would train the same model with them."""
    functions = [
        node for node in ast.walk(program) if isinstance(node, ast.FunctionDef) and node.name == "train"
    ]
    for call in (node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) in SEEDING and call.args and isinstance(call.args[0], ast.Constant):
            message = "`train` sets a constant seed: leave it out, because the service sets the seed"
            yield Problem(block.page, block.line + call.lineno, message)


def _names(programs: list[Block]) -> Iterator[Problem]:
    """Run Ruff once over all programs: undefined names, unused imports."""
    if not programs:
        return
    with tempfile.TemporaryDirectory() as name:
        for number, block in enumerate(programs):
            (Path(name) / f"{number}.py").write_text(block.text)
        words = ["check", "--isolated", "--quiet", "--output-format=json", "--select=E9,F", name]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words], capture_output=True, text=True, check=False
        )
    for violation in json.loads(done.stdout):
        block = programs[int(Path(violation["filename"]).stem)]
        if violation["code"] != "invalid-syntax":  # which `_python` has found
            yield Problem(
                block.page,
                block.line + violation["location"]["row"],
                f"{violation['code']} {violation['message']}",
            )


def job_file(text: str) -> None:
    """Check a job file, the part of one, or a request for an estimate.

    Raises:
        Wrong: The service would refuse it.
    """
    document = yaml.load(text, JobYaml)  # noqa: S506  a SafeLoader
    if not isinstance(document, dict):
        raise Wrong("the document is not a mapping")
    estimated = set(document) <= set(EstimateRequest.model_fields)
    model = EstimateRequest if estimated else PlanRequest if "planning" in document else JobRequest
    rest = {**JOB, "objective": None} if "objectives" in document else JOB
    whole = document if estimated or "trainable" in document else {**rest, **document}
    try:
        request = model.model_validate(whole)
        if isinstance(request, JobRequest):
            spec_of(request)  # checks the values against each other
    except ValidationError as error:
        first = error.errors()[0]
        raise Wrong(f"/{'/'.join(map(str, first['loc']))}: {first['msg']}") from error
    except Invalid as error:
        raise Wrong(str(error)) from error
