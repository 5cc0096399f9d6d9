"""Answer with a stored file, or with the range of it that a request asks for (RFC 9110, section 14)."""

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from fastapi import HTTPException, Response
from fastapi.responses import StreamingResponse

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")  # in a file name


class Ranged(Protocol):
    """A stored file of `size` bytes that can be read from any position. `digest` identifies its content."""

    size: int
    digest: str

    def read(self, start: int, stop: int) -> Iterator[bytes]: ...


def ranged(
    file: Ranged, range_: str, if_range: str, *, name: str, media_type: str, headers: Mapping[str, str]
) -> Response:
    """Return the whole file (200), or the bytes that the headers `Range` and `If-Range` ask for (206), as a download.

    Args:
        file: The file.
        range_: The header `Range` of the request.
        if_range: The header `If-Range` of the request.
        name: The name under which a browser saves the file. Unsafe characters are replaced, because user code may have chosen the name.
        media_type: The type of the file.
        headers: Further headers of the response.

    Raises:
        HTTPException: The range begins after the end (416).
    """
    etag = f'"{file.digest}"'
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{_UNSAFE.sub("_", name)}"',
        "ETag": etag,
        "X-Content-Type-Options": "nosniff",
        **headers,
    }
    wanted = _range(range_, file.size) if not if_range or if_range == etag else (0, file.size)
    if wanted is None:
        raise HTTPException(
            416,
            f"the requested range is outside the file, which has {file.size} bytes",
            {"Content-Range": f"bytes */{file.size}"},
        )
    start, stop = wanted
    headers["Content-Length"] = str(stop - start)
    status = 200
    if (start, stop) != (0, file.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{file.size}"
    return StreamingResponse(file.read(start, stop), status, headers, media_type=media_type)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte that a Range header requests, and the position after the last one. Return None if no such byte exists.

    A header with several ranges, or with units other than bytes, is ignored, as RFC 9110 allows. The whole file is then returned.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return 0, size
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size) if length else None
    start, last = int(match[1]), int(match[2] or size - 1)
    if match[2] and last < start:
        return 0, size
    return (start, min(last + 1, size)) if start < size else None
