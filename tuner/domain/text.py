"""Texts of user code, in a form that databases accept."""


def storable(text: str, max_characters: int | None = None) -> str:
    """Return the text without NULs and with lone surrogates replaced by `?`, because databases reject both.

    File names that are not UTF-8 contain lone surrogates.

    Args:
        text: Any text.
        max_characters: The number of characters to keep. None means all of them.
    """
    return text[:max_characters].encode("utf-8", "replace").decode().replace("\0", "")
