"""One file from the Hub to its place among the blobs: in pieces, across interruptions, checked.

Owns: ranges, retries and hashes. huggingface_hub begins a file anew after every interruption and does not compare
hashes of plain downloads, so bytes are moved here; its client, login and error types are used. Invariant: a file gets
its final name only when its size and hash are those of the repository's page; until then it is `<hash>.incomplete`,
which goes on only for a file with this very hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import AppError
from .hub import ATTEMPTS, HubError, RemoteFile, explained, is_network, is_passing, wait_before

_READ_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_TELL_S = 0.25
_SHA256_DIGITS = 64


class Stopped(Exception):
    """The pull was called off; what has come is kept."""


class Listener(Protocol):
    """Whoever wants to see how a file comes along; called from the thread that moves it."""

    def reached(self, job: Job, size: int) -> None:
        """So many bytes of the file are here."""

    def waits(self, job: Job, seconds: float, reason: str) -> None:
        """The connection was lost or refused, and is tried again."""


@dataclass(frozen=True)
class Job:
    """One file to be fetched."""

    repo_id: str
    file: RemoteFile
    url: str
    blob: Path
    partial: Path


def present(job: Job) -> int:
    """Bytes of a job that an earlier pull left."""
    size = job.partial.stat().st_size if job.partial.is_file() else 0
    return size if size <= job.file.size else 0


def fetch(job: Job, listener: Listener, stop: threading.Event) -> None:
    """Bring one file here.

    Raises:
        Stopped: `stop` was set.
        AppError: one line; what has come is kept for the next try, unless it was wrong.
    """
    found_some = present(job) > 0
    try:
        _fetch_once(job, listener, stop)
    except _WrongContent:
        if not found_some:
            raise
        # What an earlier run left may be to blame; the second time it is not.
        _fetch_once(job, listener, stop)


class _WrongContent(AppError):
    """All bytes are here, and they are not the file's."""


def _fetch_once(job: Job, listener: Listener, stop: threading.Event) -> None:
    from huggingface_hub.errors import HTTPError

    attempt = 0
    while (have := present(job)) < job.file.size:
        if stop.is_set():
            raise Stopped
        try:
            _read_on(job, have, listener, stop)
        except (HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise _local(error, job) from None
            attempt = 1 if present(job) > have else attempt + 1
            hopeful = is_passing(error) or (is_network(error) and present(job) > 0)
            if attempt >= ATTEMPTS or not hopeful:
                raise explained(error, job.repo_id) from None
            seconds = wait_before(attempt, error)
            listener.waits(job, seconds, str(explained(error, job.file.name)))
            if stop.wait(seconds):
                raise Stopped from None
    _finish(job, listener)


def _read_on(job: Job, have: int, listener: Listener, stop: threading.Event) -> None:
    """Open one connection and write what it brings behind the bytes that are here."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}  # else sizes would be those of packed bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    client: Any = get_session()
    with client.stream("GET", job.url, headers=headers, timeout=_READ_TIMEOUT_S, follow_redirects=True) as answer:
        if answer.status_code == 416:  # nothing behind these bytes: they are not this file's
            job.partial.unlink(missing_ok=True)
            raise _WrongContent(f"{job.repo_id}: {job.file.name}: got no bytes past {have}, expected {job.file.size}")
        hf_raise_for_status(answer)
        _check_answer(job, answer, have)
        mode, size = ("ab", have) if answer.status_code == 206 else ("wb", 0)
        # Unbuffered, and nothing is written after a stop: a worker that was left behind must not touch the file.
        with job.partial.open(mode, buffering=0) as out:
            told, told_at = size, time.monotonic()
            listener.reached(job, size)
            for chunk in answer.iter_bytes():  # as it comes: whole pieces would be lost with the connection
                if stop.is_set():
                    raise Stopped
                size += len(chunk)
                if size > job.file.size:
                    raise _wrong_size(job, f"more than {job.file.size}")
                _write_all(out, chunk)
                if size - told >= _CHUNK_BYTES or time.monotonic() - told_at > _TELL_S:
                    told, told_at = size, time.monotonic()
                    listener.reached(job, size)


def _write_all(out: Any, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[out.write(left) :]


def _check_answer(job: Job, answer: Any, have: int) -> None:
    """Refuse an answer that is not about the file on the page, before its bytes touch anything."""
    # A redirect's own ETag, and that of the storage behind it, say nothing about the file.
    linked = [hop.headers["X-Linked-ETag"] for hop in (*answer.history, answer) if "X-Linked-ETag" in hop.headers]
    etag = linked[0] if linked else (None if answer.history else answer.headers.get("ETag"))
    if etag is not None and (etag := etag.removeprefix("W/").strip('"')) != job.file.etag:
        raise HubError(
            f"{job.repo_id}: {job.file.name}: got ETag {etag}, expected {job.file.etag}: it changed on the Hub",
            hint="run the command again",
        )
    if answer.status_code == 206:
        span = answer.headers.get("Content-Range", "")
        if not span.startswith(f"bytes {have}-"):
            raise HubError(f"{job.repo_id}: {job.file.name}: got range {span!r}, expected one from {have}")
        total = span.rpartition("/")[2]
    else:
        total = answer.headers.get("Content-Length", "")
    if total.isdigit() and int(total) != job.file.size:
        raise _wrong_size(job, total)


def _wrong_size(job: Job, got: str) -> AppError:
    job.partial.unlink(missing_ok=True)
    return _WrongContent(
        f"{job.repo_id}: {job.file.name}: got {got} bytes, expected {job.file.size} as the Hub's page says",
        hint="nothing was kept of it; try again later, or without a mirror (HF_ENDPOINT)",
    )


def _finish(job: Job, listener: Listener) -> None:
    """Compare the hash, then give the file its name."""
    if not job.partial.exists():
        job.partial.touch()  # an empty file
    listener.reached(job, job.file.size)
    with job.partial.open("rb") as file:
        got = file_hash(file, job.file.size, job.file.etag)
        os.fsync(file.fileno())
    if got != job.file.etag:
        job.partial.unlink()
        raise _WrongContent(
            f"{job.repo_id}: {job.file.name}: got checksum {got}, expected {job.file.etag}",
            hint="nothing was kept of it; try again later, or without a mirror (HF_ENDPOINT)",
        )
    job.partial.replace(job.blob)


def file_hash(file: Any, size: int, like: str, watch: Callable[[int], None] | None = None) -> str:
    """The hash of an open file, of the kind `like` is: sha256, or Git's hash of a blob of `size` bytes."""
    hasher = hashlib.sha256() if len(like) == _SHA256_DIGITS else hashlib.sha1(b"blob %d\0" % size)
    done = 0
    while chunk := file.read(8 * _CHUNK_BYTES):
        hasher.update(chunk)
        done += len(chunk)
        if watch is not None:
            watch(done)
    return hasher.hexdigest()


def _local(error: OSError, job: Job) -> AppError:
    """What this machine's disk has to say."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AppError(
            f"{job.blob.parent}: the disk is full at {present(job)} of {job.file.size} bytes of {job.file.name}",
            hint="free some space (`dflash2-mlx models remove`), then run the command again: it goes on from there",
        )
    return AppError(f"{error.filename or job.partial}: {(error.strerror or str(error)).lower()}")
