"""Every block of every page is one of those that are tested, and what can be checked without running it holds."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.exceptions import TyperException
from typer.main import get_command

from tests.pages import CONSOLE, LANGUAGES, ROOT, TEXT, Block, blocks, commands, pages, words_of
from tuner.api.translate import spec_of
from tuner.cli.job_yaml import JobYaml
from tuner.cli.main import app
from tuner.domain.errors import Invalid
from tuner.schemas.estimates import EstimateRequest
from tuner.schemas.job import JobRequest
from tuner.schemas.plan import PlanRequest

BLOCKS = [block for page in pages() for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language in CONSOLE]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
JOB = {
    "name": "a",
    "trainable": "m:f",
    "objective": {"metric": "m", "mode": "max"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"usd": 1.0},
}


def test_all_fences_are_seen() -> None:
    """Counted in another way: each block has a fence before and one behind it."""
    for page in pages():
        fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), page
    assert len(BLOCKS) > 60


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_it_is_known_how_each_block_is_tested(block: Block) -> None:
    if block.mark == "elsewhere":
        assert (ROOT / block.detail).is_file(), f"{block}: there is no test {block.detail}"
        return
    if not block.mark and block.page.is_relative_to(ROOT / "deploy"):
        return
    assert block.language in LANGUAGES, f"{block}: say who tests it, by <!-- test: elsewhere tests/... -->"
    fits = {
        "run": CONSOLE | {"python"},
        "start": CONSOLE,
        "parse": CONSOLE,
        "fragment": {"python"},
        "program": {"python"},
        "output": TEXT | {"json"},
    }
    assert not block.mark or block.mark == "file" or block.language in fits[block.mark], block
    if block.mark in ("file", "program"):
        assert block.detail, f"{block}: name the file"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_ones_that_there_are(block: Block) -> None:
    lines = commands(block)
    assert lines, f"{block}: no command"
    for line in lines:
        check_command(line, block)


def check_command(line: str, block: Block) -> None:
    words = words_of(line)
    if words[0] == "tuner":
        parse(words[1:])
    elif words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS, line
    elif words[:2] == ["ray", "start"]:
        from ray.scripts.scripts import start  # takes seconds

        start.make_context("ray start", words[2:])
    elif words[:2] == ["python", "-m"]:
        found = words[2].replace(".", "/")
        where = [ROOT / f"{found}.py", ROOT / found / "__main__.py"]
        assert any(file.is_file() for file in where) or words[2] in ("venv", "pip"), line
    else:
        elsewhere = block.page.is_relative_to(ROOT / "deploy")  # whose own tests see to what is not ours
        assert block.mark or elsewhere, f"{block}: `{line}` is none of ours: mark the block"


def parse(words: list[str]) -> None:
    """Raises UsageError for a command, an option or a value that there is not."""
    command: Any = get_command(app)
    path = ["tuner"]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command `{' '.join([*path, words[0]])}`"
        command, path, words = command.commands[words[0]], [*path, words[0]], words[1:]
    if "--help" in words:
        return
    command.make_context(" ".join(path), list(words))


def test_a_command_that_there_is_not_is_found_out() -> None:
    for words in ("bills JOB", "bill JOB --euro", "topup JOB --usd much", "budgets put x"):
        with pytest.raises((AssertionError, TyperException)):
            parse(words.split())


INLINE = [
    (page, code)
    for page in pages()
    for code in re.findall(r"`(tuner [a-z][^`\n]*)`", re.sub(r"(?ms)^\s*```.*?^\s*```", "", page.read_text()))
]


@pytest.mark.parametrize(("page", "code"), INLINE, ids=lambda one: str(getattr(one, "name", one)))
def test_commands_within_sentences_are_ones_that_there_are(page: Path, code: str) -> None:
    command: Any = get_command(app)
    words = words_of(code.replace("…", ""))[1:]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words[0]
        if re.fullmatch(r"[a-z-]+\|[a-z|-]+", name):
            return
        assert name in command.commands, f"{page}: {code}"
        command, words = command.commands[name], words[1:]
    options = {opt for one in command.params for opt in (*one.opts, *one.secondary_opts)} | {"--help"}
    asked = {word.split("=")[0] for word in words if word.startswith("--")}
    assert asked <= options, f"{page}: {code}"


PYTHON = [block for block in BLOCKS if block.language == "python" and block.mark != "elsewhere"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_misses_no_name(block: Block) -> None:
    ast.parse(block.text)
    if block.mark == "program":
        assert block.text == (ROOT / block.detail).read_text(), f"{block} is not {block.detail}"
    select = "E9" if block.mark == "fragment" else "E9,F"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", select, "-"]
    done = subprocess.run(command, input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}"


YAML = [
    block
    for block in BLOCKS
    if block.language == "yaml"
    and block.mark != "elsewhere"
    and not block.page.is_relative_to(ROOT / "deploy")
]


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_is_a_job_or_parts_of_one(block: Block) -> None:
    found = yaml.load(block.text, JobYaml)  # noqa: S506  a SafeLoader
    assert isinstance(found, dict), block
    estimated = set(found) <= set(EstimateRequest.model_fields)
    model = EstimateRequest if estimated else PlanRequest if "planning" in found else JobRequest
    whole = found if estimated or "trainable" in found else {**JOB, **found}
    try:
        asked = model.model_validate(whole)
        if isinstance(asked, JobRequest):
            spec_of(asked)  # what the values mean together
    except (ValidationError, Invalid) as error:
        pytest.fail(f"{block}: {error}")


def test_yaml_that_is_no_job_is_found_out() -> None:
    for key, value in (("budgets", {"usd": 1}), ("budget", {"euro": 1}), ("priority", "high")):
        with pytest.raises(ValidationError):
            JobRequest.model_validate({**JOB, key: value})


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_what_a_newcomer_types_is_run_for_real(page: str) -> None:
    for block in blocks(ROOT / page):
        if block.language in CONSOLE:
            assert block.mark in ("run", "start"), f"{block}: {block.mark or 'no mark'}"
