"""What the pages show: every fenced block of every page, and how it is tested.

A comment on the line above a block, which no reader sees, says how: `<!-- test: MARK -->`. One before a page's first block that begins
with `page` holds for all blocks of the page that have none of their own and can be tested so: `<!-- test: page run -->`.

| mark | block | what is done with it |
| --- | --- | --- |
| `run` | console, python | runs for real, in the page's order, against a service (tests/system/test_pages.py) |
| `start` | console | starts what the tests have started by themselves; checked as `parse` is |
| `parse` and the reason | console | cannot run here: each command and option must be there, with values that can be |
| `elsewhere` and a file | any | that test runs it, or has its own checks of it; commands of ours are checked as well |
| `file` and a name | any | is written under that name, for what runs later on the page |
| `program` and a file | python | is the whole of that file, as shown for reading |
| `fragment` | python | must compile; names may be missing |
| `output` | text | what the command before it prints |

Without any mark: commands are parsed; Python has to compile, with no name missing; YAML has to be a job or parts of one; JSON has to
be JSON; text is only shown.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = {"run", "start", "parse", "elsewhere", "file", "program", "fragment", "output"}
CONSOLE = {"console", "sh", "bash", "shell"}
TEXT = {"", "text", "csv", "diff", "promql", "mermaid"}
LANGUAGES = CONSOLE | TEXT | {"python", "yaml", "json"}
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\w*)")
_MARK = re.compile(r"^\s*<!-- test: (.*?) -->\s*$")
_PAGE_MARKS = {"run": CONSOLE | {"python"}, "parse": CONSOLE, "elsewhere": CONSOLE | {"python", "yaml"}}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `mark` is empty where nothing was said; `detail` is what stands behind it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    detail: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All that are written for readers, but for what is generated and what machines printed."""
    found = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        ROOT / "benchmarks/README.md",
    ]
    return sorted(page for page in found if "_build" not in page.parts)


def blocks(page: Path) -> list[Block]:
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    page_mark, number = ("", ""), 0
    while number < len(lines):
        mark = _mark(lines[number])
        if mark and mark[0] == "page":
            page_mark = _split(mark[1])
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        end = next(
            (at for at in range(number + 1, len(lines)) if lines[at].strip() == fence[2]),
            None,
        )
        assert end is not None, f"{page}:{number + 1}: the block has no end"
        own = _mark(lines[number - 1]) if number else None
        language = fence[3]
        said = own or (page_mark if language in _PAGE_MARKS.get(page_mark[0], set()) else ("", ""))
        assert not said[0] or said[0] in MARKS, f"{page}:{number}: no such mark: {said[0]}"
        text = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
        yield Block(page, number + 1, language, text, *said)
        number = end + 1


def _mark(line: str) -> tuple[str, str] | None:
    found = _MARK.match(line)
    return _split(found[1]) if found else None


def _split(words: str) -> tuple[str, str]:
    first, _, rest = words.partition(" ")
    return first, rest.strip()


def commands(block: Block) -> list[str]:
    """The command lines of a console block: continued ones joined, prompts and comments left out."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words_of(line: str) -> list[str]:
    """As the shell takes them apart, up to a pipe or a redirection, and without variables set before."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|>;&"):
            break
        words.append(word)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words
