"""One file over HTTP(S): resumable, checked, and put in place atomically."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from qbayes.errors import BadFile, BadInput

Progress = Callable[[str, int, int | None], None]

TIMEOUT_SECONDS = 30.0  # without a byte
SIZE_LIMIT = 2**30  # bytes: far above any of our files, far below a full disk
_CHUNK = 2**18
_OK, _PARTIAL, _RANGE_REFUSED = 200, 206, 416


class Unreachable(BadFile):
    """The server could not be reached, or did not give the file."""


def checksum_of(path: Path, kind: str) -> str:
    """``kind:hex`` of a file on disk, kind being md5 or sha256."""
    with path.open("rb") as file:
        # md5 is what the publishers give; it guards against accidents here, not against attackers.
        digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


def matches(path: Path, checksum: str) -> bool:
    kind, _, _ = checksum.partition(":")
    return bool(checksum) and checksum_of(path, kind) == checksum


def download(url: str, place: Path, checksum: str, progress: Progress | None = None) -> None:
    """Bring ``url`` to ``place``; continue a ``.part`` file of an earlier try where the server can.

    The checksum is taken from the disk, so that it also covers what earlier tries wrote.
    """
    if not url.startswith(("http://", "https://")):
        raise BadInput("an address must begin with http:// or https://", f"'{url}'", "check QBAYES_MIRROR")
    part = place.with_name(place.name + ".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part, progress)
        _check(part, checksum, url)
        os.replace(part, place)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise Unreachable(
            f"{place.name} must be available at {url}", f"{error}", "check the connection and run it again"
        ) from error
    except OSError as error:
        raise cannot_write(place, error) from error


def cannot_write(place: Path, error: OSError) -> BadFile:
    return BadFile(
        f"{place} must be writable, with room for the file",
        f"{error.strerror or error}",
        "free space, change the rights, or choose another folder with --data-dir or QBAYES_DATA",
    )


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, have)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_REFUSED or not have:
            raise
        # nothing lies beyond what we have: start again, the server's file may have changed.
        response, have = _open(url, 0), 0
    with response:
        continued = response.status == _PARTIAL and _starts_at(response) == have
        if response.status == _PARTIAL and not continued:
            raise http.client.HTTPException("the server sent another range than was asked for")
        have = have if continued else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        if (total or 0) > SIZE_LIMIT:
            raise http.client.HTTPException(f"the file has {total} bytes, more than any of our files")
        with part.open("ab" if continued else "wb") as file:
            _copy(response, file, have, total, name=part.stem, progress=progress)


def _open(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "qbayes", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)


def _starts_at(response: http.client.HTTPResponse) -> int:
    """The first byte of ``Content-Range: bytes 100-199/200``."""
    first = (response.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _copy(
    response: http.client.HTTPResponse,
    file: IO[bytes],
    have: int,
    total: int | None,
    *,
    name: str,
    progress: Progress | None,
) -> None:
    while chunk := response.read(_CHUNK):
        file.write(chunk)
        have += len(chunk)
        if have > SIZE_LIMIT:
            raise http.client.HTTPException(f"more than {SIZE_LIMIT} bytes came")
        if progress is not None:
            progress(name, have, total)
    if total is not None and have < total:
        raise http.client.HTTPException(f"the connection ended after {have} of {total} bytes")


def _check(part: Path, checksum: str, url: str) -> None:
    kind, _, _ = checksum.partition(":")
    got = checksum_of(part, kind)
    if got != checksum:
        part.unlink()
        raise BadFile(
            f"{url} must have the checksum {checksum}",
            f"{got}; the download was removed",
            "run it again; if it stays so, get the file from another place or set QBAYES_MIRROR",
        )
