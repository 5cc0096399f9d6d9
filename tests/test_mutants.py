"""The mutants of `make mutants` can still be planted: each changes what its module does, and has tests that could notice."""

import ast
from pathlib import Path

import pytest

from tools.mutants import planted
from tools.planted import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
NAMES = [one.name for one in MUTANTS]


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(MUTANTS) >= 16


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_it_can_be_planted_and_changes_the_code(mutant: Mutant) -> None:
    before = (ROOT / mutant.file).read_text()
    after = planted(mutant, before)
    assert after is not None, f"{mutant.old!r} is not in {mutant.file}, or not once"
    compile(after, mutant.file, "exec")
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_the_tests_that_should_notice_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    for name in mutant.tests:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text()


def test_the_docs_tell_all_of_them() -> None:
    told = (ROOT / "docs/testing.md").read_text().partition("| mutant |")[2].partition("\n\n")[0]
    assert told.splitlines()[2:] == [f"| `{one.name}` | `{one.file}` | {one.why} |" for one in MUTANTS]


def test_what_is_not_there_or_there_twice_cannot_be_planted() -> None:
    mutant = Mutant("m", "f.py", "a = 1", "a = 2", "", ())
    assert planted(mutant, "b = 1") is None
    assert planted(mutant, "a = 1\na = 1") is None
    assert planted(mutant, "a = 1") == "a = 2"
