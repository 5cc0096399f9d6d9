"""The command line of a program that is tuned: its placeholders, and how values become arguments.

The command is first split into words, by the rules of a shell. Then the placeholders in each word are replaced by values. Therefore a
value is always part of a single argument, and no shell interprets it.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from tuner.domain.errors import Fault
from tuner.domain.text import nearest

PROGRAM_ENTRY = "tuner.worker.program:run"  #: The trainable that runs the program of a job.
GIVEN = (
    "seed",
    "steps",
)  #: Placeholders for `algorithm.seed` and `fidelity.max`. `steps` has a value only if `fidelity.max` is set.
MAX_COMMAND = 4000
MAX_NAME = 300  # the length of a trainable's name in the database
MAX_PATTERN = 1000
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""")
_SHELL_SYNTAX = re.compile(r"\d?&?>>?(?:&\d)?|<<?|\|\|?|&&?|;")
_SCRIPT_FOLLOWS = re.compile(
    r"-[a-zA-Z]*c[a-zA-Z]*"
)  # an option of a shell before an inline script, such as -c or -lc
_NAME_FOLLOWS = re.compile(
    r"[-+][a-zA-Z]*[oO]"
)  # an option of a shell before a name, such as -o in `-o pipefail`
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def name_of(command: str) -> str:
    """Return the name under which a command is recorded as a trainable. Jobs with the same name are compared with each other.

    The name is the command itself. A command with more than 300 characters is cut, and a digest is appended.
    """
    if len(command) <= MAX_NAME:
        return command
    return f"{command[: MAX_NAME - 20]}… {hashlib.sha256(command.encode()).hexdigest()[:16]}"


def words_of(command: str) -> list[str]:
    """Split a command into words. Raise ValueError if a quotation is not closed."""
    return shlex.split(command)


def placeholders(word: str) -> list[str]:
    """Return the names of the placeholders of a word."""
    return [part[1] for part in _PART.finditer(word) if part[1] is not None]


def arguments(words: Iterable[str], values: Mapping[str, object]) -> Iterator[str]:
    """Yield the arguments of a program: each word of the command with its placeholders replaced by `values`.

    An inactive parameter has no value, so a word that contains its placeholder is omitted. If the word consists of the placeholder alone, an
    option directly before it is omitted too. Example: both words of `--momentum {momentum}`.
    """
    kept: list[str] = []
    # `before` is the last kept word with its placeholders instead of their values. A value such as -1 would look like an option.
    before = ""
    for word in words:
        if all(name in values for name in placeholders(word)):
            kept.append(_PART.sub(lambda part: _replaced(part, values), word))
            before = word
        elif _PART.fullmatch(word) and before.startswith("-") and "=" not in before:
            kept.pop()
            before = ""
    yield from kept


def _replaced(part: re.Match[str], values: Mapping[str, object]) -> str:
    return text_of(values[part[1]]) if part[1] is not None else part[0][0]


def text_of(value: object) -> str:
    """Convert a value to the text of an argument: a string unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def command_faults(command: str, names: Iterable[str], *, has_steps: bool) -> list[Fault]:
    """Return the faults of a command that can be found without looking at files.

    Args:
        command: The command.
        names: The names of the parameters of the search space and of the constants.
        has_steps: Whether the job has a last step, `fidelity.max`. Without one, the placeholder `{steps}` is a fault.
    """
    if len(command) > MAX_COMMAND or not command.isprintable():
        return [
            _fault(
                f"use at most {MAX_COMMAND} characters in one line (>- in YAML joins lines); put longer scripts into a file"
            )
        ]
    try:
        words = words_of(command)
    except ValueError as error:
        return [_fault(f"cannot be split into words: {error}")]
    if not words:
        return [_fault("name a program and its arguments, such as python train.py --lr {learning_rate}")]
    if syntax := _SHELL_SYNTAX.search(_QUOTED.sub("_", command)):
        return [
            _fault(
                f"the command runs without a shell, so {syntax[0]} has no effect; put the command into a script and run bash script.sh, "
                "or use quotes to pass the characters to the program"
            )
        ]
    if placeholders(words[0]):
        return [_fault("the program itself cannot be a placeholder; name it, such as python or ./train.sh")]
    known = {*names, *GIVEN}
    faults = [_fault(detail) for word in words for detail in _word_details(word, known)]
    if not has_steps and "steps" not in names and any("steps" in placeholders(word) for word in words):
        faults.append(
            _fault(
                "the value of {steps} is fidelity.max, which is not set; set fidelity.max, or remove {steps}"
            )
        )
    if any(map(placeholders, _shell_words(words))):
        faults.append(
            _fault(
                "the value of a placeholder in the script after -c would be read as shell syntax; "
                """write bash -c 'echo "$1"' bash {name}, or run a script file"""
            )
        )
    return faults


def _shell_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words of the first call of a shell with an inline script (`bash -c SCRIPT`), from the shell's name to the script.

    Return an empty list if the command contains no such call.
    """
    for start, program in enumerate(words):
        if PurePath(program).name not in SHELLS:
            continue
        for end in range(start + 1, len(words)):
            if _SCRIPT_FOLLOWS.fullmatch(words[end]):
                return words[start : end + 2]
            if not words[end].startswith(("-", "+")) and not _NAME_FOLLOWS.fullmatch(words[end - 1]):
                break  # this word is the name of a script file, so the shell gets no inline script
    return []


def _word_details(word: str, known: Iterable[str]) -> Iterator[str]:
    for part in _PART.finditer(word):
        name = part[1]
        if part[0] in ("{", "}"):
            yield f"{word!r} has a single {part[0]}; write {part[0] * 2} to pass one brace to the program"
        elif name is not None and name not in known:
            near = nearest(name, known, 1)
            hint = f"did you mean {{{near[0]}}}? To pass braces" if near else "to pass braces"
            yield f"{{{name}}} is neither a parameter nor a constant; {hint} to the program, write {{{{ and }}}}"


def pattern_faults(pattern: str, metrics: Mapping[str, str]) -> list[Fault]:
    """Return the faults of a regular expression that finds metrics in a program's output.

    Args:
        pattern: The regular expression. It needs a named group for each metric.
        metrics: The name of each metric, by the JSON pointer to the field of the job that contains this name.
    """
    at = "/metrics_pattern"
    if len(pattern) > MAX_PATTERN:
        return [Fault(at, f"use at most {MAX_PATTERN} characters")]
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        return [Fault(at, f"is not a valid Python regular expression: {error}")]
    named = (
        f"the pattern's groups are named {', '.join(groups)}" if groups else "the pattern has no named groups"
    )
    return [
        Fault(at, f"has no group for the metric {metric}; write (?P<{metric}>...); {named}")
        if metric.isidentifier()
        else Fault(
            pointer,
            "use letters, digits and underscores, a letter first: with metrics_pattern, a metric has the same name as a group of the pattern",
        )
        for pointer, metric in metrics.items()
        if metric not in groups
    ]


def _fault(detail: str) -> Fault:
    return Fault("/command", detail)
