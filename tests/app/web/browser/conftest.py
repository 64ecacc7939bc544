"""A real browser for the tests of the web app: Debian's chromium, or another one of its kind, driven by Playwright.

Every page is watched: an error on its console, an uncaught exception, or a request to another host fails the test that
opened it. Screenshots are kept in the folder that `DFLASH2_ARTIFACTS` names, those of failed tests too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ON_A_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE_MS = 90_000
OWN_HOSTS = ("127.0.0.1", "localhost", "")  # data: and blob: addresses have no host
WIDE = {"width": 1280, "height": 800}
_failed = pytest.StashKey[bool]()


def _executable() -> str:
    named = os.environ.get("DFLASH2_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None) or (str(ON_A_MAC) if ON_A_MAC.exists() else "")
    if not found:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed, and DFLASH2_CHROMIUM names none")
    return found


# Not for the whole session: while Playwright runs, its event loop is this thread's, and tests that follow elsewhere and
# call asyncio.run would fail.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = _executable()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, timeout=4 * PATIENCE_MS)
        yield started
        started.close()


@pytest.fixture
def expected_errors() -> list[str]:
    """Patterns of console errors that a test provokes on purpose; it appends to this list."""
    return []


@pytest.fixture
def page(browser: Browser, expected_errors: list[str], request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page with an empty storage, checked at its end."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce", accept_downloads=True)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    faults = _watch(opened)
    yield opened
    if request.node.stash.get(_failed, False):
        shot(opened, f"failed-{request.node.name}")
    context.close()
    left = [fault for fault in faults if not any(re.search(pattern, fault) for pattern in expected_errors)]
    assert left == [], "the page has complained"


def _watch(page: Page) -> list[str]:
    """A list that grows with what goes wrong on a page."""
    faults: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def asked(request: Request) -> None:
        if urlsplit(request.url).hostname not in (*OWN_HOSTS, None):
            faults.append(f"request to another host: {request.url}")

    page.on("console", said)
    page.on("pageerror", lambda error: faults.append(f"uncaught: {error}"))
    page.on("request", asked)
    return faults


def shot(page: Page, name: str) -> None:
    """Keep a picture of the whole page as `name`.png, when somebody wants pictures."""
    folder = os.environ.get("DFLASH2_ARTIFACTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.png", full_page=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report
