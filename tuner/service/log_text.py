"""Convert printed bytes to text that is safe to show: as a terminal would show it, without control sequences."""

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
# The other control characters of C0 and C1, and characters that change the direction of text, which can disguise it.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
UTF8_BYTES = 4


def readable(data: bytes) -> str:
    """Return printed bytes as a terminal would show them.

    Colours and cursor movements are removed. If a line was overwritten, its last version is shown. Other control
    characters are made visible.

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
    """Replace each secret by asterisks of the same length in bytes."""
    for secret in secrets:
        data = data.replace(secret.encode(), b"*" * len(secret.encode()))
    return data


def whole_end(data: bytes) -> int:
    """Return the length of the bytes without an incomplete UTF-8 character at the end.

    The rest of that character may still be written.
    """
    for back in range(1, min(UTF8_BYTES, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of more than one byte
            wants = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if wants > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def whole_begin(data: bytes) -> bytes:
    """Remove the rest of a UTF-8 character whose first byte was cut off."""
    begin = 0
    while begin < min(UTF8_BYTES - 1, len(data)) and 0x80 <= data[begin] < 0xC0:
        begin += 1
    return data[begin:]
