"""Describe the Python API, the clients and what a trainable uses, from signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

import tuner
import tuner.client
import tuner.training
from tools.reference.words import MADE, doc
from tuner.client.bridge import call, series

# Sections of Google's docstring style (https://google.github.io/styleguide/pyguide.html#383-functions-and-methods).
LISTED = ("Args:", "Raises:", "Attributes:")
SECTIONS = (*LISTED, "Returns:", "Yields:")

HEAD = f"""# Python
{MADE}

The methods return Pydantic models with the fields of [REST](rest.md#shapes), so editors complete them. [How to use Python](../python.md) and
[how to write a trainable](../trainables.md) have examples.
"""


def page() -> str:
    parts = [HEAD, "## tuner\n"]
    parts += [_class(f"tuner.{name}", getattr(tuner, name)) for name in ("Client",)]
    parts.append(_awaited())
    for name in ("Job", "Trial", "Event", "ApiError"):
        parts.append(_class(f"tuner.client.{name}", getattr(tuner.client, name)))
    parts.append("## tuner.training\n")
    for name in tuner.training.__all__:
        thing = getattr(tuner.training, name)
        show = _class if isinstance(thing, type) else _function
        parts.append(show(f"tuner.training.{name}", thing))
    return "\n".join(parts)


def _awaited() -> str:
    return f"### tuner.AsyncClient\n\n{doc(tuner.AsyncClient)} It has the methods of `tuner.Client`.\n"


def _class(name: str, kind: type) -> str:
    parts = [
        f"### {name}\n",
        _code(f"class {name.rpartition('.')[2]}{_made_from(kind)}"),
        _paragraphs(doc(kind)),
    ]
    for method, documentation in _methods(kind):
        parts += [
            f"#### {name.rpartition('.')[2]}.{method}\n",
            _code(f"{method}{documentation[0]}"),
            _paragraphs(documentation[1]),
        ]
    return "\n".join(part for part in parts if part)


def _made_from(kind: type) -> str:
    """Return the constructor's signature, or an empty string for answers, which only the client creates."""
    return "" if issubclass(kind, BaseModel) else _signature(kind).removesuffix(" -> None")


def _methods(kind: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield our public methods in the order of their definition, those of the class before those of its bases."""
    seen: set[str] = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("tuner."):
            continue
        for name, attribute in vars(owner).items():
            if name.startswith(("_", "model_")) or name in seen:
                continue
            seen.add(name)
            if isinstance(attribute, call | series):
                text = "\n\n".join(filter(None, [doc(attribute.body), _keywords(attribute.body)]))
                yield name, (_signature(attribute.body), text)
            elif inspect.isfunction(attribute):
                yield name, (_signature(attribute), doc(attribute))


def _function(name: str, member: Any) -> str:
    return "\n".join(
        [f"### {name}\n", _code(f"{name.rpartition('.')[2]}{_signature(member)}"), _paragraphs(doc(member))]
    )


def _signature(member: Any) -> str:
    """Return the signature without `self` and with short type names. What a series yields is an iterator for its caller."""
    try:
        signature = inspect.signature(member)
    except (TypeError, ValueError):
        return ""
    kept = [_plain(parameter) for name, parameter in signature.parameters.items() if name != "self"]
    text = str(signature.replace(parameters=kept))
    text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text)  # what is imported for types alone
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("Items[", "Iterator[")
    return re.sub(
        r"\b(?:[A-Za-z_0-9]+\.)+([A-Z]\w*)",
        r"\1",
        text.replace("JobFacts", "Job").replace("TrialDetail", "Trial").replace("~", ""),
    )


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Remove the annotation of keyword arguments described by a TypedDict, because `_keywords` lists them one
    by one.
    """
    return parameter.replace(annotation=inspect.Parameter.empty) if _typed_dict(parameter) else parameter


def _keywords(member: Any) -> str:
    names = [
        name
        for parameter in inspect.signature(member).parameters.values()
        for name in getattr(_typed_dict(parameter), "__annotations__", ())
    ]
    return f"Keywords: {', '.join(f'`{name}`' for name in names)}." if names else ""


def _typed_dict(parameter: inspect.Parameter) -> Any:
    match = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    return getattr(tuner.client.http, match[1]) if match else None


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _paragraphs(text: str) -> str:
    """Return a docstring as Markdown. Indented paragraphs are examples, and the sections of Google's style become lists."""
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n")) + "\n" if text else ""


def _paragraph(part: str) -> str:
    if part.partition("\n")[0] in SECTIONS:
        return _section(part)
    is_example = part.startswith("    ") or ("\n" in part and part.startswith(("from ", "client")))
    return f"```text\n{textwrap.dedent(part)}\n```" if is_example else part


def _section(part: str) -> str:
    """Return a list with an item for each entry. An entry's further lines are indented more than its first."""
    title, _, rest = part.partition("\n")
    entries: list[str] = []
    for line in textwrap.dedent(rest).splitlines():
        if title in LISTED and entries and line.startswith(" "):
            entries[-1] += f" {line.strip()}"
        elif title in LISTED:
            name, colon, meaning = line.partition(": ")
            entries.append(f"`{name}`: {meaning}" if colon else line)
        else:
            entries.append(line.strip())
    text = "\n".join(f"- {entry}" for entry in entries) if title in LISTED else " ".join(entries)
    return f"**{title.removesuffix(':')}**\n\n{text}"
