"""Texts that databases accept, and suggestions for misspelled words."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

# Only this many characters of a misspelled word are compared, because the time of a comparison is quadratic.
LONGEST = 100


def storable(text: str, max_characters: int | None = None) -> str:
    """Return the text without NULs and with lone surrogates replaced by `?`, because databases reject both.

    File names that are not UTF-8 contain lone surrogates.

    Args:
        text: Any text.
        max_characters: The number of characters to keep. None means all of them.
    """
    return text[:max_characters].encode("utf-8", "replace").decode().replace("\0", "")


def nearest(word: str, known: Iterable[str], count: int = 3, *, cutoff: float = 0.6) -> list[str]:
    """Return at most `count` of the known words that are spelled like `word`, the most similar first. Upper and lower case count as equal.

    Args:
        word: The misspelled word.
        known: The words to choose from.
        count: The most words to return.
        cutoff: The least similarity of a returned word, from 0 to 1.

    >>> nearest("Budgte", ["budget", "trials"])
    ['budget']
    """
    by_case = {name.casefold(): name for name in known}
    return [by_case[near] for near in get_close_matches(word[:LONGEST].casefold(), by_case, count, cutoff)]


def suggested(near: Sequence[str], examples: Sequence[str]) -> str:
    """Return the end of an error text, which names the words that are spelled like a wrong one, or else examples of known words.

    >>> suggested(["budget"], ["trials"]), suggested([], ["budget", "trials"])
    ('the nearest: budget', 'for example: budget, trials')
    """
    return f"the nearest: {', '.join(near)}" if near else f"for example: {', '.join(examples)}"


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the end of an error text, which suggests the known word that is spelled most like `word`. Return "" if none is similar.

    >>> did_you_mean("budgte", ["budget", "trials"]), did_you_mean("x", ["budget"])
    ("; did you mean 'budget'?", '')
    """
    near = nearest(word, known, 1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
