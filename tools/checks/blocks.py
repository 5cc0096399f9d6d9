"""Fenced blocks of the documentation pages, and how each of them is tested.

A comment on the line above a block, which readers do not see, names the way: `<!-- test: MARK -->`. A comment before the first block
of a page that begins with `page` applies to all blocks of the page that have no mark and whose language fits it:
`<!-- test: page run -->`.

| mark | language | what happens to the block |
| --- | --- | --- |
| `run` | console, python | runs in the order of the page, against a real service (tests/system/test_pages.py, test_tutorial.py) |
| `start` | console | starts what the tests have already started; checked like `parse` |
| `parse` and the reason | console | cannot run in a test; each command, option and value must be valid |
| `elsewhere` and a file | any | that test runs it or checks it; our own commands are checked as well |
| `file` and a name | any | is written to a file of that name, for later blocks of the page |
| `program` and a file | python | equals that file |
| `fragment` | python | must compile; names may be undefined |
| `output` | text, json | is what the command before it prints |

Without a mark, commands are parsed, Python must compile without undefined names, YAML must be a job or a part of one, JSON must parse,
and text is only shown. tools/checks/examples.py checks everything that can be checked without running it.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.checks import ROOT

CONSOLE = {"console", "sh", "bash", "shell"}
PROGRAMS = ("tuner", "tuner-admin")  # tuner-admin is tuner with the settings of a server (deploy/systemd).
TEXT = {"", "text", "csv", "diff", "promql", "mermaid"}
LANGUAGES = CONSOLE | TEXT | {"python", "yaml", "json"}
# The languages that fit each mark; None if all do.
MARKS: dict[str, set[str] | None] = {
    "run": CONSOLE | {"python"},
    "start": CONSOLE,
    "parse": CONSOLE,
    "elsewhere": None,
    "file": None,
    "program": {"python"},
    "fragment": {"python"},
    "output": TEXT | {"json"},
}
_PAGE_MARKS = {"run": CONSOLE | {"python"}, "parse": CONSOLE, "elsewhere": CONSOLE | {"python", "yaml"}}
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\w*)")
_MARK = re.compile(r"^\s*<!-- test: (.*?) -->\s*$")
_BLOCK = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)


class InvalidBlock(ValueError):
    """A block without an end, or with an unknown mark."""

    def __init__(self, page: Path, line: int, message: str) -> None:
        super().__init__(f"{page}:{line}: {message}")
        self.line, self.message = line, message


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int  #: The line of the opening fence, from 1.
    language: str
    text: str  #: Without indentation.
    mark: str  #: Empty if there is none.
    detail: str  #: The words after the mark.

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages with examples, which are all but the release notes and what benchmarks print."""
    paths = [
        root / "README.md",
        *(root / "docs").rglob("*.md"),
        *(root / "deploy").rglob("*.md"),
        root / "benchmarks/README.md",
    ]
    return sorted(page for page in paths if "_build" not in page.parts and page.is_file())


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order.

    Raises:
        InvalidBlock: A block has no end, or a mark is unknown.
    """
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    page_mark, number = ("", ""), 0
    while number < len(lines):
        mark = _mark(lines[number])
        if mark and mark[0] == "page":
            page_mark = _split(mark[1])
            _known(page, number + 1, page_mark[0])
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        end = _end(page, lines, number, fence[2])
        own = _mark(lines[number - 1]) if number else None
        language = fence[3]
        if own is None or own[0] == "page":
            own = page_mark if language in _PAGE_MARKS.get(page_mark[0], set()) else ("", "")
        else:
            _known(page, number, own[0])
        text = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
        yield Block(page, number + 1, language, text, *own)
        number = end + 1


def _end(page: Path, lines: list[str], start: int, fence: str) -> int:
    for number in range(start + 1, len(lines)):
        line = lines[number].strip()
        if line == fence:
            return number
        if line.startswith(fence):
            raise InvalidBlock(page, number + 1, f"the block that begins on line {start + 1} is still open")
    raise InvalidBlock(page, start + 1, "the block has no end")


def _known(page: Path, line: int, mark: str) -> None:
    if mark not in MARKS:
        raise InvalidBlock(page, line, f"unknown mark `{mark}`: use one of {', '.join(MARKS)}")


def _mark(line: str) -> tuple[str, str] | None:
    match = _MARK.match(line)
    return _split(match[1]) if match else None


def _split(words: str) -> tuple[str, str]:
    first, _, rest = words.partition(" ")
    return first, rest.strip()


def prose(text: str) -> str:
    """Return the text with its blocks emptied, so that lines keep their numbers."""
    return _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)


def commands(block: Block) -> list[str]:
    """Return the command lines of a console block, with continued lines joined, without prompts and comments."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words_of(line: str) -> list[str]:
    """Split a line as the shell does, up to a pipe or a redirection, without `sudo`, its options and variables before the program."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|>;&"):
            break
        words.append(word)
    if words[:1] == ["sudo"]:
        words.pop(0)
        while words and words[0].startswith("-"):
            if words.pop(0) in ("-u", "--user"):
                del words[:1]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words
