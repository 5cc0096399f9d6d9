"""Run scripts of deploy/ in a copy of the files they need, with stand-ins for third-party programs."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.files import ROOT

# Record the call and its standard input. Answer with the first entry of `answers` whose words are all in the call.
PROGRAM = """#!{python} -SE
import json, os, signal, sys, time
called = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
stdin = sys.stdin.read()
def note(words, stdin=""):
    with open({calls!r}, "a") as file:
        file.write(json.dumps([words, stdin]) + "\\n")
def noted(beginning):
    with open({calls!r}) as file:
        return any(" ".join(json.loads(line)[0]).startswith(beginning) for line in file)
def end(number, frame):
    while {ends_after!r} and not noted({ends_after!r}):
        time.sleep(0.02)
    note(["ended", *called[:3]])
    sys.exit()
blocks = any(set(words.split()) <= set(called) for words in {blocks!r})
if blocks:
    signal.signal(signal.SIGTERM, end)
note(called, stdin)
while blocks:
    signal.pause()
for words, beginning in {waits!r}:
    while set(words.split()) <= set(called) and not noted(beginning):
        time.sleep(0.02)
for words, status, said in {answers!r}:
    if set(words.split()) <= set(called):
        print(said, end="")
        sys.exit(status)
"""

Answers = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Scratch:
    """A checkout with selected files, a home, and a folder of stand-ins that comes first on the PATH."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    def copy(self, *names: str) -> None:
        for name in names:
            there = self.checkout / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, there, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copy(ROOT / name, there)

    def stand_in(
        self,
        name: str,
        answers: Answers = (),
        *,
        at: Path | None = None,
        blocks: tuple[str, ...] = (),
        waits: tuple[tuple[str, str], ...] = (),
        ends_after: str = "",
    ) -> None:
        """Write a stand-in for a program, on the PATH or in `at`.

        A call with all words of an entry of `blocks` runs until SIGTERM. A call with the words of an entry of `waits` runs until a recorded
        line starts with that entry's text. A call that SIGTERM ends first waits for a line that starts with `ends_after`, if that is given.
        """
        path = (at or self.folder / "bin") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = PROGRAM.format(
            python=sys.executable,
            calls=str(self.calls),
            answers=answers,
            blocks=blocks,
            waits=waits,
            ends_after=ends_after,
        )
        path.write_text(text)
        path.chmod(0o755)

    def pip_that_lists_modules(self, at: Path) -> Path:
        """Write a pip to `at` that lists the Python files of the checkout when it is called. Return the path of its list."""
        at.mkdir(parents=True, exist_ok=True)
        listed = self.folder / "listed"
        pip = at / "pip"
        pip.write_text(f"#!/bin/sh\ncd '{self.checkout}' && find . -name '*.py' >'{listed}'\n")
        pip.chmod(0o755)
        return listed

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    def run(
        self, *words: str, env: dict[str, str] | None = None, status: int = 0
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script of the checkout. Raise AssertionError if its exit status is not `status`."""
        self.home.mkdir(exist_ok=True)
        script, *rest = words
        completed = subprocess.run(
            [self.checkout / script, *rest],
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.home),
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == status, completed.stderr
        return completed

    def called(self) -> list[list[str]]:
        """Return the calls since the last time, each as program and arguments."""
        return [words for words, _ in self.take_calls()]

    def take_calls(self) -> list[tuple[list[str], str]]:
        """Return the calls since the last time, each with its standard input."""
        text = self.calls.read_text() if self.calls.exists() else ""
        self.calls.unlink(missing_ok=True)
        return [(words, stdin) for words, stdin in map(json.loads, text.splitlines())]
