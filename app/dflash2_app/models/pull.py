"""From the Hub into the cache: several repositories together, all or nothing for each.

Owns: which files MLX needs, what is still missing, the check of the disk, the workers, and the order of finishing.
Prints nothing. Invariant: whatever happens, what is in the cache works as before; a pull that was cut off goes on
where it stood.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ..errors import AppError
from .cache import CachedRepo, cached_repo
from .hub import Page, RemoteFile, file_url
from .transfer import Job, Listener, Stopped, fetch, present

WORKERS = 4
POLL_S = 0.1
PARTING_S = 1.0  # for workers to notice a stop
SPARE_BYTES = 256 * 2**20  # left free for everybody else
# What loading reads (the library's own list), and what a person wants to find beside it.
WANTED = (
    *("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken"),
    *("LICENSE*", "NOTICE*", "README.md", "USE_POLICY*"),
)
_UNWANTED = ("consolidated*.safetensors",)  # the same weights once more, in another layout


@dataclass(frozen=True)
class RepoPlan:
    """What one repository still needs: `jobs` are its missing files."""

    page: Page
    repo: CachedRepo
    files: tuple[RemoteFile, ...]
    jobs: tuple[Job, ...]

    @property
    def size(self) -> int:
        """Bytes of all wanted files."""
        return sum(file.size for file in self.files)

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return sum(job.file.size - present(job) for job in self.jobs)


def wanted(page: Page) -> tuple[RemoteFile, ...]:
    """The files of a repository that MLX needs.

    Raises:
        AppError: it has no weights in the safetensors format, or no config.
    """
    files = tuple(
        file for file in page.files
        if "/" not in file.name
        and any(fnmatch(file.name, pattern) for pattern in WANTED)
        and not any(fnmatch(file.name, pattern) for pattern in _UNWANTED)
    )  # fmt: skip
    names = {file.name for file in files}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        others = sorted({Path(file.name).suffix for file in page.files if Path(file.name).suffix} - {".md", ".json"})
        raise AppError(
            f"{page.repo_id}: got {', '.join(others) or 'no weights'}, expected config.json and safetensors files",
            hint="`dflash2-mlx models search` shows repositories in a form MLX reads",
        )
    return files


def plan(page: Page) -> RepoPlan:
    """Find out what is missing; asks the disk only."""
    files, repo = wanted(page), cached_repo(page.repo_id)
    jobs: dict[str, Job] = {}  # one per content: some files are there twice under two names
    for file in files:
        if not repo.has(page.commit, file.name, file.size, file.etag):
            url = file_url(page, file.name)
            jobs[file.etag] = Job(page.repo_id, file, url, repo.blob(file.etag), repo.partial(file.etag))
    return RepoPlan(page, repo, files, tuple(jobs.values()))


def free_bytes(folder: Path) -> int:
    """Free space where a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_disk(plans: Sequence[RepoPlan]) -> None:
    """Refuse what cannot fit, before the first byte.

    Raises:
        AppError: with both numbers.
    """
    needed = sum(one.missing for one in plans)
    if not needed:
        return
    folder = plans[0].repo.folder.parent
    free = free_bytes(folder)
    if free < needed + SPARE_BYTES:
        raise AppError(
            f"disk: got {gigabytes(free)} free at {folder}, expected {gigabytes(needed + SPARE_BYTES)} for "
            + " and ".join(one.page.repo_id for one in plans),
            hint="`dflash2-mlx models list` shows what is there, `models remove` frees it; HF_HOME names another disk",
        )


def pull(plans: Sequence[RepoPlan], listener: Listener, stop: threading.Event) -> list[Path]:
    """Fetch what is missing, then make the snapshots; returns their folders.

    Ctrl-C in the calling thread stops the workers and is passed on.

    Raises:
        AppError: the first thing that went wrong; the other files were stopped and are kept as far as they came.
        KeyboardInterrupt: after the workers were told.
    """
    with ExitStack() as held:
        for one in plans:
            held.enter_context(one.repo.locked())
            one.repo.blobs.mkdir(parents=True, exist_ok=True)
            one.repo.snapshots.mkdir(exist_ok=True)  # without it huggingface_hub calls the repository damaged
        _run([job for one in plans for job in one.jobs], listener, stop)
        return [one.repo.publish(one.page.commit, {file.name: file.etag for file in one.files}) for one in plans]


def _run(jobs: Sequence[Job], listener: Listener, stop: threading.Event) -> None:
    """Small files first, so that configs and tokenizers never wait behind shards."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in sorted(jobs, key=lambda job: job.file.size):
        waiting.put(job)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            while not stop.is_set():
                fetch(waiting.get_nowait(), listener, stop)
        except queue.Empty:
            ended.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            ended.put(error)
        else:
            ended.put(None)

    # Daemons: a worker that waits for the network must not keep an interrupted program alive.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(WORKERS, len(jobs)))]
    for worker in workers:
        worker.start()
    failure: BaseException | None = None
    try:
        for error in _endings(ended, len(workers), stop):
            if error is not None and not isinstance(error, Stopped):
                failure = failure or error
                stop.set()
    except KeyboardInterrupt:
        stop.set()
        for worker in workers:
            worker.join(timeout=0.5)
        raise
    if failure is not None:
        raise failure
    if stop.is_set():
        raise Stopped


def _endings(
    ended: queue.SimpleQueue[BaseException | None], workers: int, stop: threading.Event
) -> Iterator[BaseException | None]:
    """How each worker ended; one that still waits for the network a moment after a stop is left behind."""
    left_at = None
    for _ in range(workers):
        while True:
            try:
                yield ended.get(timeout=POLL_S)
                break
            except queue.Empty:
                if stop.is_set():
                    left_at = left_at or time.monotonic() + PARTING_S
                    if time.monotonic() > left_at:
                        return


def gigabytes(size: int) -> str:
    """A size for people; GB are 10^9 bytes."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
