"""Check that each mutant of `make mutants` can be planted and changes its module, and that its tests exist."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.checks import Problem, line_of
from tools.mutants import planted
from tools.planted import MUTANTS, Mutant


def check(root: Path, mutants: Sequence[Mutant] = MUTANTS) -> Iterator[Problem]:
    listing = root / "tools/planted.py"
    text = listing.read_text()
    names: set[str] = set()
    for mutant in mutants:
        line = line_of(text, f'"{mutant.name}"')
        if mutant.name in names:
            yield Problem(listing, line, f"two mutants have the name {mutant.name}")
        names.add(mutant.name)
        for message in (*_planting(root, mutant), *_tests(root, mutant)):
            yield Problem(listing, line, f"{mutant.name}: {message}")


def _planting(root: Path, mutant: Mutant) -> Iterator[str]:
    path = root / mutant.file
    if not path.is_file():
        yield f"the file {mutant.file} does not exist"
        return
    before = path.read_text()
    after = planted(mutant, before)
    if after is None:
        yield f"{mutant.old!r} occurs {before.count(mutant.old)} times in {mutant.file}, not once"
        return
    try:
        changed = ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    except SyntaxError as error:
        yield f"{mutant.file} does not compile with the mutant: {error.msg}"
        return
    if not changed:
        yield f"the mutant does not change what {mutant.file} does"


def _tests(root: Path, mutant: Mutant) -> Iterator[str]:
    if not mutant.tests:
        yield "the mutant does not name a test"
    for name in mutant.tests:
        path, _, function = name.partition("::")
        if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text():
            yield f"the test {name} does not exist"
