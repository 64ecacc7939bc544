"""The status page in a real browser: models with the API's words, the log, examples, small and dark screens."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from dflash2_mlx.tuning import TuneFolder
from tests.tuning.test_record import RECORD

from ..conftest import HELLO, Running, serving
from ..models import scripted, source_of, tiny_served
from .conftest import shot

PHONE = {"width": 380, "height": 740}
log = logging.getLogger("dflash2.serve")


@pytest.fixture(scope="module")
def watched() -> Iterator[Running]:
    before = log.level
    log.setLevel(logging.DEBUG)
    try:
        with serving(source_of(scripted("fine")), source_of(tiny_served("plain", drafts=False))) as server:
            yield server
    finally:
        log.setLevel(before)


def test_models_sums_log_and_examples(page: Page, watched: Running) -> None:
    for model in ("scripted", "plain"):
        body = {"model": model, "messages": HELLO, "max_tokens": 4}
        assert watched.http.post("/v1/chat/completions", json=body).status_code == 200
    page.goto(f"{watched.url}/#/status")
    models = page.get_by_role("region", name="Models", exact=True)
    expect(models.get_by_role("row", name="scripted")).to_contain_text("active")
    status = watched.http.get("/v1/models/status").json()["models"][1]
    expect(models.get_by_role("row", name="plain")).to_contain_text(status["dflash_fallback_reason"])
    expect(page.get_by_role("region", name="Sums by model").get_by_role("row", name="scripted")).to_be_visible()
    expect(page.get_by_role("region", name="Kernels", exact=True)).to_contain_text("select_walk")
    lines = page.get_by_role("log")
    expect(lines).to_contain_text("POST /v1/chat/completions 200")
    log.warning("\x1b[31mred <img src=x> \u009b2J")
    expect(lines).to_contain_text("␛[31mred <img src=x> �2J")
    lines.press("PageUp")
    expect(page.get_by_label("Follow")).not_to_be_checked()
    page.get_by_label("Level").select_option("warning")
    expect(lines).not_to_contain_text("POST /v1/chat/completions 200")
    expect(lines).to_contain_text("red <img")
    examples = page.get_by_role("region", name="Interfaces")
    expect(examples).to_contain_text(f"curl {watched.url}/v1/chat/completions")
    examples.get_by_label("Model").select_option("plain")
    expect(examples.get_by_label("Python, openai", exact=True)).to_contain_text('model="plain"')
    expect(page.get_by_role("region", name="About")).to_contain_text("Apache-2.0")
    shot(page, "status")


def test_what_was_tuned_here(page: Page, watched: Running) -> None:
    kernels = page.get_by_role("region", name="Kernels", exact=True)
    page.goto(f"{watched.url}/#/status")
    expect(kernels).to_contain_text("Nothing yet: kernels run by default")
    TuneFolder(watched.service.base().tune).save(RECORD)
    page.reload()
    expect(kernels.get_by_role("listitem")).to_have_text(
        f"target + drafter · {RECORD.at} · 1 of 1 races won by our kernels · of another chip or version: not used"
    )


def test_measuring_keeps_the_focus_and_does_not_count_seconds_aloud(page: Page, watched: Running) -> None:
    now: dict[str, object] = {"state": "measuring", "model": "scripted", "stage": "timing passes", "seconds": 0.0}

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(json={})
        else:
            now["seconds"] = float(str(now["seconds"])) + 1
            route.fulfill(json={**watched.http.get("/api/doctor").json(), "examination": now})

    page.goto(f"{watched.url}/#/status")
    passes = page.get_by_role("region", name="Passes", exact=True)
    expect(passes.get_by_role("button", name="Measure")).to_be_enabled()
    page.route("**/api/doctor", answer)
    passes.get_by_role("button", name="Measure").press("Enter")
    expect(passes.get_by_text("scripted: timing passes (")).to_be_visible()
    expect(passes.get_by_role("status")).to_have_text("timing passes")
    assert page.evaluate("document.activeElement.contains(document.querySelector('progress[aria-label=Measuring]'))")
    assert page.evaluate("document.activeElement !== document.body")


def test_what_is_tuned_now_is_followed_to_its_end(
    page: Page, watched: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"pair": "target + drafter", "state": "waiting", "done": None, "total": None, "what": None, "problem": None}
    monkeypatch.setattr(watched.service.pool, "tuning", lambda: [now])
    kernels = page.get_by_role("region", name="Kernels", exact=True)
    page.goto(f"{watched.url}/#/status")
    expect(kernels).to_contain_text("target + drafter: is tuned once nobody asks for anything")
    now |= {"state": "running", "done": 0, "total": 68, "what": "passes by rows"}
    expect(kernels).to_contain_text("is tuned while nobody asks for anything, 0 of 68 · passes by rows", timeout=20_000)
    now |= {"state": "failed", "problem": "No space left on device"}
    expect(kernels).to_contain_text("tuning failed: No space left on device", timeout=20_000)


def test_a_phone_and_the_dark(page: Page, watched: Running) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="dark")
    page.goto(f"{watched.url}/#/status")
    expect(page.get_by_role("heading", name="About")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, "phone-dark-status")
