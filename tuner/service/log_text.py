"""Printed bytes as text that can be shown anywhere: as a terminal would show it, without what could steer one."""

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
# What is left of C0 and C1, and what turns the direction of text, which makes it read as what it is not.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
UTF8_BYTES = 4


def readable(data: bytes) -> str:
    """Colours and movements of the cursor are left out, a line that was written over is as it was last, other control characters
    are made visible.

    >>> readable(b"".join([bytes([27]), b"[31mred ", bytes([13]), b"10%", bytes([7])]))
    '10%␇'
    """
    text = _ESCAPES.sub("", data.decode(errors="replace"))
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub(lambda found: _picture(found[0]), text)


def _picture(control: str) -> str:
    code = ord(control)
    return "\u2421" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"


def masked(data: bytes, secrets: list[str]) -> bytes:
    """As long as it was."""
    for secret in secrets:
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data


def whole_end(data: bytes) -> int:
    """Up to where these bytes are whole characters: one that is still being written is left for later."""
    for back in range(1, min(UTF8_BYTES, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of more than one byte
            wants = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if wants > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def whole_begin(data: bytes) -> bytes:
    """Without the rest of a character that was cut."""
    begin = 0
    while begin < min(UTF8_BYTES - 1, len(data)) and 0x80 <= data[begin] < 0xC0:
        begin += 1
    return data[begin:]
