"""What the Hub says: search, a repository's page, and its errors in one line each.

Owns: every call to the Hub's API (files are `transfer.py`'s), retrying, and the wording of what goes wrong. Knows
nothing of the cache.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import AppError, one_line

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

ATTEMPTS = 5
BUSY = (408, 429, 500, 502, 503, 504)
FIRST_WAIT_S = 1.0  # doubled with every attempt
_LONGEST_WAIT_S = 30.0
_PAGE_TIMEOUT_S = 20.0
# These become names of files, so nothing else may pass.
COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SORTS = {
    "trending": "trendingScore",
    "downloads": "downloads",
    "likes": "likes",
    "created": "createdAt",
    "updated": "lastModified",
}

Result = TypeVar("Result")


class HubError(AppError):
    """The Hub refused, or could not be reached."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a repository; `etag` is its sha256 (large files) or its Git hash."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True)
class Page:
    """One repository at one commit."""

    repo_id: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool
    license: str | None
    tags: tuple[str, ...]
    downloads: int | None
    likes: int | None
    updated: str | None


@dataclass(frozen=True)
class Found:
    """One line of a search."""

    repo_id: str
    downloads: int | None
    likes: int | None
    updated: str | None
    license: str | None
    gated: bool
    tags: tuple[str, ...]


def endpoint() -> str:
    """The Hub's address, or that of a mirror (`HF_ENDPOINT`)."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def search(text: str | None, *, author: str | None, tags: list[str], sort: str, limit: int) -> list[Found]:
    """Repositories that match, best first by `sort` (a key of SORTS); at most 1000."""
    asked = {
        "search": text,
        "author": author,
        "filter": tags or None,
        "sort": SORTS[sort],
        "limit": limit,
        "full": True,
    }

    def ask() -> list[ModelInfo]:
        from huggingface_hub.hf_api import ModelInfo

        # Not list_models: it would wait for a silent Hub for ever.
        items = _get_json(f"{endpoint()}/api/models", {name: value for name, value in asked.items() if value})
        return [ModelInfo(**{**item, "siblings": None}) for item in items]

    try:
        found = retried(ask, "the Hub")
    except (ValueError, TypeError, LookupError) as error:
        raise HubError(f"the Hub: got an unreadable answer ({error}), expected a list; is HF_ENDPOINT a Hub?") from None
    return [
        Found(info.id, info.downloads, info.likes, _day(info), _license(info), bool(info.gated), tuple(info.tags or ()))
        for info in found
    ]


def read_page(repo_id: str) -> Page:
    """A repository's newest commit and its files, with sizes and hashes."""
    info = retried(lambda: _api().model_info(repo_id, files_metadata=True, timeout=_PAGE_TIMEOUT_S), repo_id)
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise HubError(f"{repo_id}: got a page without a commit, expected one; is HF_ENDPOINT a Hub?")
    return Page(
        repo_id=repo_id,
        commit=info.sha,
        files=tuple(_files(repo_id, info)),
        gated=bool(info.gated),
        license=_license(info),
        tags=tuple(info.tags or ()),
        downloads=info.downloads,
        likes=info.likes,
        updated=_day(info),
    )


def read_config(page: Page) -> dict[str, Any] | None:
    """The repository's `config.json` of that commit; None when it has none."""
    if all(file.name != "config.json" for file in page.files):
        return None

    try:
        config = retried(lambda: _get_json(file_url(page, "config.json")), page.repo_id)
    except ValueError as error:
        raise HubError(f"{page.repo_id}: got an unreadable config.json ({error}), expected JSON") from None
    if not isinstance(config, dict):
        raise HubError(f"{page.repo_id}: got a config.json of type {type(config).__name__}, expected a JSON object")
    return config


def file_url(page: Page, name: str) -> str:
    """Where one file of a page's commit is."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(page.repo_id, name, revision=page.commit, endpoint=endpoint())


def retried(call: Callable[[], Result], what: str, *, sleep: Callable[[float], None] = time.sleep) -> Result:
    """The call's result; a busy Hub is asked again, at longer and longer intervals.

    Raises:
        HubError: one line that begins with `what`.
    """
    from huggingface_hub.errors import HTTPError

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except (HTTPError, OSError) as error:
            if attempt == ATTEMPTS or not is_passing(error):
                raise explained(error, what) from None
            sleep(wait_before(attempt, error))
    raise AssertionError("the last attempt returns or raises")


def is_passing(error: Exception) -> bool:
    """Whether trying again may help: the network stumbled, or the Hub is busy."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    if isinstance(error, OfflineModeIsEnabled):
        return False
    return is_network(error) and "connect" not in type(error).__name__.lower()


def wait_before(attempt: int, error: Exception) -> float:
    """Seconds to wait before attempt `attempt + 1`; what the Hub asks for, if it does, within reason."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        asked = error.response.headers.get("Retry-After", "")
        if asked.isdigit():
            return min(float(asked), _LONGEST_WAIT_S)
    return min(FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S)


def explained(error: Exception, what: str) -> HubError:
    """One line, and what can be done."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, OfflineModeIsEnabled):
        return HubError(f"{what}: the network is switched off by HF_HUB_OFFLINE", hint="unset HF_HUB_OFFLINE")
    if isinstance(error, GatedRepoError):
        return HubError(
            f"{what}: its owner asks for an agreement before download",
            hint=f"agree at {endpoint()}/{what}, then log in with `hf auth login`",
        )
    if isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"{what}: the Hub has no such repository, or it is private",
            hint="`dflash2-mlx models search` finds names; a private one needs `hf auth login`",
        )
    if isinstance(error, RevisionNotFoundError):
        return HubError(f"{what}: the Hub has no such commit any more", hint="run the command again")
    if isinstance(error, HfHubHTTPError):
        return HubError(f"{what}: the Hub answered {error.response.status_code} {error.response.reason_phrase}".strip())
    if is_network(error):
        reason = one_line(str(error)) or type(error).__name__
        state = "broke off the connection" if is_passing(error) else "cannot be reached"
        return HubError(f"{what}: {endpoint()} {state} ({reason})", hint="is this machine online?")
    return HubError(f"{what}: {one_line(str(error)) or type(error).__name__}")


def is_network(error: Exception) -> bool:
    """Whether the connection failed, rather than what was asked for."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    # Everything the HTTP client raises, except answers with an error status.
    return isinstance(error, HTTPError) and not isinstance(error, HfHubHTTPError)


def _get_json(url: str, parameters: Mapping[str, Any] | None = None) -> Any:
    """Parsed JSON from the Hub; ValueError when it is none."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    answer = get_session().get(
        url, params=parameters, headers=build_hf_headers(), timeout=_PAGE_TIMEOUT_S, follow_redirects=True
    )
    hf_raise_for_status(answer)
    return json.loads(answer.content)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint())


def _files(repo_id: str, info: ModelInfo) -> Iterator[RemoteFile]:
    for file in info.siblings or ():
        etag = file.lfs.sha256 if file.lfs is not None else file.blob_id
        if file.size is None or etag is None or not HASH.fullmatch(etag):
            raise HubError(f"{repo_id}: got {file.rfilename} without size and hash, expected both from {endpoint()}")
        yield RemoteFile(file.rfilename, file.size, etag)


def _license(info: ModelInfo) -> str | None:
    for tag in info.tags or ():
        if tag.startswith("license:"):
            return tag.removeprefix("license:")
    card = info.card_data
    named = card.get("license") if card is not None else None
    return named if isinstance(named, str) else None


def _day(info: ModelInfo) -> str | None:
    return None if info.last_modified is None else info.last_modified.strftime("%Y-%m-%d")
