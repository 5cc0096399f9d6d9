"""What `make core` measures and runs is there: a module that was renamed would else leave the core unseen."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def measured() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns: list[str] = tomllib.load(file)["tool"]["coverage"]["run"]["include"]
    return patterns


def test_each_module_of_the_core_is_there() -> None:
    assert [pattern for pattern in measured() if not list(ROOT.glob(pattern))] == []


def test_nothing_in_the_core_is_left_out_by_a_comment() -> None:
    files = [path for pattern in measured() for path in ROOT.glob(pattern)]
    assert [path for path in files if "pragma: no" in path.read_text()] == []


def test_the_docs_tell_each_module_of_the_core() -> None:
    table = (ROOT / "docs/testing.md").read_text().partition("| what | modules |")[2].partition("\n\n")[0]
    told: list[str] = []
    for cell in (line.split("|")[2] for line in table.splitlines()[2:]):
        room = ""
        for name in re.findall(r"`([^`]+)`", cell):
            room = name if name.startswith("tuner/") else room
            told += [] if name == room else [f"{room}{name}.py"]
    assert sorted(told) == sorted(measured())


def test_the_tests_that_go_through_it_are_there() -> None:
    made = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    listed = re.findall(r"^CORE_\w+ := (.*)$", made, re.MULTILINE)
    assert listed
    for words in listed:
        expanded = re.sub(
            r"\$\(addprefix (\S+?),([^)]*)\)",
            lambda found: " ".join(found[1] + name for name in found[2].split()),
            words,
        )
        for name in expanded.split():
            assert (ROOT / name.partition("::")[0]).exists(), name
