"""Download checkpoints, artifacts and the files of exports.

All downloads are verified with their SHA-256. Checkpoints and the files of exports are streamed, and continue after a broken connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx2

from tuner.client.http import TRIES, ApiError, Http, unreachable
from tuner.schemas.base import Problem

MANIFEST = "MANIFEST.json"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The directory on this machine to which a trial's checkpoint was downloaded, and the size of its files."""

    directory: str
    trial: str
    step: int
    size_bytes: int


async def download(http: Http, path: str, trial: str, to: Path, step: int | None) -> Downloaded:
    """Download a checkpoint into the directory `to`, which must be empty or not exist. If the download fails, no file is left there.

    Raises:
        ApiError: The service refused or does not answer. The status is 422 if `to` is not an empty directory or cannot be written, and
            0 if the files do not match their manifest.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise _refused(422, "The directory is not empty", f"{to} exists; name an empty or a new directory")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    except OSError as error:
        raise _refused(422, "The directory cannot be written", str(error)) from error
    try:
        headers = await _fetch(http, path, partial / "tar", {} if step is None else {"step": step})
        step = int(headers["Tuner-Step"])
        try:
            size = _unpack(partial / "tar", partial / "files")
        except (ValueError, KeyError, TypeError, tarfile.TarError) as error:
            raise _refused(0, "The download is not a valid checkpoint", str(error)) from error
        if to.exists():
            to.rmdir()
        os.replace(partial / "files", to)
        return Downloaded(str(to), trial, step, size)
    except OSError as error:  # such as a full disk
        raise _refused(422, "The directory cannot be written", str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


async def download_file(http: Http, path: str, to: Path) -> Path:
    """Download a file whose `ETag` is its SHA-256, and return its path.

    If `to` is a directory, the file is written into it under the name that the service gives. An existing file is replaced.

    Raises:
        ApiError: The service refused or does not answer. The status is 422 if the file cannot be written, and 0 if the download is
            damaged.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=".export-", dir=to if to.is_dir() else to.parent))
    except OSError as error:
        raise _refused(422, "The file cannot be written", str(error)) from error
    try:
        partial = folder / "file"
        headers = await _fetch(http, path, partial, {})
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != headers["ETag"].strip('"'):
            raise _refused(
                0, "The download is damaged", f"the SHA-256 of {path} does not match; download the file again"
            )
        if to.is_dir():
            to = to / PurePosixPath(headers["Tuner-File"]).name
        os.replace(partial, to)
        return to
    except OSError as error:
        raise _refused(422, "The file cannot be written", str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _fetch(http: Http, path: str, target: Path, query: Mapping[str, int]) -> httpx2.Headers:
    """Download a file to `target`, and return the headers of the response.

    After a broken connection, continue after the last received byte, or begin again if the file has changed.
    """
    etag = ""
    with target.open("wb") as file:
        for attempt in range(TRIES):
            arrived = file.tell()
            headers = {"Range": f"bytes={arrived}-", "If-Range": etag} if arrived else {}
            try:
                async with http.stream(path, params=query, headers=headers) as response:
                    if response.is_success:
                        etag = response.headers.get("ETag", "")
                        # With another status, the response has the whole file and not the requested range.
                        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                            file.seek(0)
                            file.truncate()
                        async for chunk in http.chunks(response):
                            file.write(chunk)
                        return response.headers
                    if response.status_code not in (429, 503) or attempt == TRIES - 1:
                        raise ApiError.of(response)
            except httpx2.HTTPError as error:
                if attempt == TRIES - 1:
                    raise unreachable(http.url, error) from error
            await http.sleep(0.25 * 2**attempt)
    raise AssertionError("the last try neither returned a response nor raised an error")


def _unpack(tar: Path, into: Path) -> int:
    """Extract the files of a downloaded tar file, and return their total size in bytes.

    Raises:
        ValueError: A file does not match the manifest, an entry is not a regular file, or its name leads out of the directory.
    """
    into.mkdir()
    digests: dict[str, str] = {}
    total, manifest = 0, dict[str, Any]()
    with tarfile.open(tar) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isfile() else None
            name = PurePosixPath(member.name)
            if source is None or name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{member.name} is not a regular file inside the checkpoint")
            if member.name == MANIFEST:
                manifest = json.load(source)
                continue
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with target.open("wb") as file:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            digests[member.name], total = digest.hexdigest(), total + member.size
    _check(digests, manifest)
    return total


def _check(digests: Mapping[str, str], manifest: Mapping[str, Any]) -> None:
    expected = {file["path"]: file["sha256"] for file in manifest["files"]}
    if digests != expected:
        wrong = sorted(name for name in {*digests, *expected} if digests.get(name) != expected.get(name))
        raise ValueError(
            f"{', '.join(wrong)}: damaged in the storage or during the download; download the checkpoint again"
        )


def write_checked(folder: Path, name: str, content: bytes, sha256: str) -> None:
    """Verify a downloaded artifact, and write it to the file `name` in `folder`.

    Raises:
        ApiError: With status 0 if the content does not match the digest or `name` is not a plain file name, and with 422 if the directory
            cannot be written.
    """
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _refused(
            0, "The download is damaged", f"{name} does not match its digest; download the file again"
        )
    if PurePosixPath(name).name != name or name.startswith("."):
        raise _refused(0, "The download is not valid", f"{name!r} is not the name of a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    except OSError as error:
        raise _refused(422, "The directory cannot be written", str(error)) from error


def _refused(status: int, title: str, detail: str) -> ApiError:
    return ApiError(Problem(title=title, status=status, detail=detail))
