"""Test how values become the arguments of a program."""

import pytest

from tuner.domain.command import arguments

VALUES = {"lr": 0.5, "low": -1e-05, "text": "-x y", "no": -3}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--low", "{low}", "{no}"], ["--low", "-1e-05", "-3"]),
        (["--low", "{low}", "{gone}"], ["--low", "-1e-05"]),
        (["--text", "{text}", "{gone}", "end"], ["--text", "-x y", "end"]),
        (["--lr", "{lr}", "--gone", "{gone}", "{no}"], ["--lr", "0.5", "-3"]),
        (["--opt={gone}", "--lr={lr}"], ["--lr=0.5"]),
        (["--lr={lr}", "{gone}"], ["--lr=0.5"]),
        (["--flag", "a{gone}"], ["--flag"]),
        (["--gone", "{gone}", "{gone}"], []),
        (["{gone}"], []),
        (["{{lr}}", "{lr}:{no}"], ["{lr}", "0.5:-3"]),
    ],
)
def test_placeholders_become_arguments(words: list[str], expected: list[str]) -> None:
    assert list(arguments(["run", *words], VALUES)) == ["run", *expected]
