"""A stand-in for the Hub: `server.Hub`, and the fixture `hub` that points this process and its children at one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Hub]:
    """A running stand-in; the cache is below the test's own home, empty and online."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    with Hub() as server:
        cache = home / "hf" / "hub"
        for name, value in {
            "HF_ENDPOINT": server.endpoint, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", "no_proxy": "*",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        # This process may have read the variables long ago.
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "hf" / "token"))
        close_session()
        yield server
        close_session()


__all__ = ["Hub", "hub"]
