"""The side-by-side page in a real browser: a race to its verdict, a block by keyboard, files, colours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.app.web.conftest import Running, serving
from tests.app.web.models import source_of, tiny_served

from .conftest import shot

PROMPT = "Write <script>alert(1)</script> & a haiku"
PATIENCE_MS = 120_000  # two warm-ups and two lanes, on a machine that others use as well


@pytest.fixture(scope="module")
def racing() -> Iterator[Running]:
    with serving(source_of(tiny_served()), source_of(tiny_served("plain", drafts=False))) as server:
        yield server


def open_race(page: Page, server: Running, query: str = "") -> None:
    page.goto(f"{server.url}/#/race{query}")
    expect(page.get_by_role("button", name="Race", exact=True)).to_be_visible()


def run_race(page: Page) -> Locator:
    """Press the button and wait for the outcome."""
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Most tokens").fill("24")
    page.get_by_role("button", name="Race", exact=True).click()
    outcome = page.get_by_role("region", name="Outcome")
    expect(outcome).to_be_visible(timeout=PATIENCE_MS)
    return outcome


def saved(page: Page, button: Locator) -> Path:
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path())


def test_a_race_runs_to_its_verdict_and_is_kept(page: Page, racing: Running) -> None:
    open_race(page, racing)
    expect(page.get_by_text("Choose a prompt and press Race")).to_be_visible()
    outcome = run_race(page)
    expect(outcome.get_by_text("Identical: all 24 tokens are equal.")).to_be_visible()
    expect(outcome.locator(".outcome-speed strong")).to_have_text(re.compile(r"^\d+\.\d\d×$"))
    texts = [page.locator(f"[data-lane={lane}] .lane-text").inner_text() for lane in ("plain", "dflash2")]
    assert texts[0] == texts[1] != ""
    expect(page.locator(".raced")).to_have_text(PROMPT)
    expect(page.get_by_role("img", name=re.compile("Share accepted by position"))).to_be_visible()
    shot(page, "race-done")
    # At the beginning of the replay only the first token is there.
    scrub = page.get_by_role("slider", name="Time of the replay")
    scrub.focus()
    scrub.press("Home")
    expect(page.locator("[data-lane=dflash2] .block:not(.later)")).to_have_count(1)
    scrub.press("End")
    expect(page.locator("[data-lane=dflash2] .block.later")).to_have_count(0)
    page.reload()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(PROMPT)
    assert page.get_by_label("Most tokens").input_value() == "24"
    kept = page.get_by_role("region", name="List of kept races")
    expect(kept.get_by_role("row")).to_have_count(2)
    kept.get_by_role("button", name=PROMPT, exact=True).click()
    expect(page.get_by_role("region", name="Outcome")).to_be_visible()
    kept.get_by_role("button", name=f"Delete: {PROMPT}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Finished races are kept here")).to_be_visible()
    expect(page.get_by_role("heading", name="Kept races")).to_be_focused()


def test_a_race_is_stopped_where_it_is_watched(page: Page, racing: Running) -> None:
    # A race that is never answered.
    page.route("**/api/race", lambda route: route.continue_() if route.request.method == "GET" else None)
    open_race(page, racing)
    start = page.get_by_role("button", name="Race", exact=True)
    start.press("Enter")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_focused()
    expect(stop).to_be_in_viewport()
    expect(page.get_by_text("Loading and checking")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(start).to_be_focused()


def test_a_block_is_taken_apart_by_keyboard(page: Page, racing: Running) -> None:
    open_race(page, racing)
    run_race(page)
    first = page.locator("[data-lane=dflash2] .block[tabindex='0']")
    expect(first).to_have_count(1)
    first.focus()
    first.press("ArrowRight")
    expect(page.locator("[data-lane=dflash2] .block:focus")).to_have_attribute("data-at", "2")
    page.keyboard.press("Enter")
    view = page.get_by_role("dialog", name="One block, taken apart")
    expect(view.locator(".candidates tbody tr")).to_have_count(6, timeout=PATIENCE_MS)  # the tiny drafter's top k
    expect(view.locator(".candidates td.chosen")).to_have_count(4)
    expect(view.locator(".with-path polyline")).to_have_count(1)
    expect(view.locator(".summary tbody tr")).to_have_count(3)
    assert view.get_by_text("differs from what was run").count() == 0
    shot(page, "race-block")
    page.keyboard.press("ArrowLeft")
    expect(view.get_by_text(re.compile("^Block 1 of"))).to_be_visible()
    page.keyboard.press("Escape")
    expect(view).to_have_count(0)
    expect(page.locator("[data-lane=dflash2] .block:focus")).to_have_attribute("data-at", "2")


def test_a_race_goes_out_as_files_and_comes_back(page: Page, racing: Running, tmp_path: Path) -> None:
    open_race(page, racing)
    outcome = run_race(page)
    picture = saved(page, outcome.get_by_role("button", name="Save as PNG"))
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    record: dict[str, Any] = json.loads(
        saved(page, outcome.get_by_role("button", name="Save as JSON")).read_text(encoding="utf-8")
    )
    assert (record["schema"], record["version"]) == ("dflash2-race", 1)
    assert record["run"]["request"]["prompt"] == PROMPT
    # What another machine measured: slower, and parted at a near-tie.
    record["run"]["id"] = "ab12"
    record["verdict"] |= {
        "identical": False, "speedup": 0.8, "difference": "from token 3 on: plain 'a', DFlash 2 'b', logit gap 0.001",
        "first_difference": {"index": 3, "plain_token": 97, "dflash2_token": 98, "logit_gap": 0.001},
    }  # fmt: skip
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    page.locator("#race-file").set_input_files(file)
    expect(outcome.get_by_text("0.80×")).to_be_visible()
    expect(outcome.get_by_text("DFlash 2 was slower:")).to_be_visible()
    expect(outcome.get_by_text("That is a near-tie")).to_be_visible()
    outcome.get_by_role("button", name="Keep in this browser").click()
    boxes = page.get_by_role("checkbox", name=f"Compare: {PROMPT}")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        box.check()
    page.get_by_role("button", name="Compare two").click()
    two = page.get_by_role("dialog", name="Two races")
    expect(two.get_by_role("row", name=re.compile("^Speed-up"))).to_contain_text("0.80×")
    expect(two.get_by_role("img", name=re.compile("tokens over time"))).to_be_visible()
    two.get_by_role("button", name="Close").click()
    file.write_text(json.dumps({**record, "version": 99}), encoding="utf-8")
    page.locator("#race-file").set_input_files(file)
    expect(page.get_by_text("slow.json cannot be opened. version: got 99, expected 1.")).to_be_visible()


def test_dark_colours_and_a_narrow_screen(page: Page, racing: Running) -> None:
    page.set_viewport_size({"width": 380, "height": 800})
    page.emulate_media(color_scheme="dark")
    open_race(page, racing, "?prompt=hi&max_tokens=12&start=1")  # as `demo --web` opens it
    outcome = page.get_by_role("region", name="Outcome")
    expect(outcome).to_be_visible(timeout=PATIENCE_MS)
    assert "start" not in page.url
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    shot(page, "race-phone-dark")
    page.emulate_media(forced_colors="active")  # the tints are the message
    tints = "all => new Set(all.map(node => getComputedStyle(node).backgroundColor)).size"
    assert page.locator(".swatch:is(.first, .accepted, .bonus)").evaluate_all(tints) == 3
    assert page.locator("[data-lane=dflash2] .block > :is(.first, .accepted, .bonus)").evaluate_all(tints) >= 2


def test_a_refusal_stands_where_it_belongs(page: Page, racing: Running, expected_errors: list[str]) -> None:
    expected_errors.append("status of 400")
    open_race(page, racing)
    page.get_by_label("Model").select_option("plain")
    page.get_by_role("button", name="Race", exact=True).click()
    expect(page.get_by_text("model: got 'plain', expected one that drafts: no drafter given")).to_be_visible(
        timeout=PATIENCE_MS
    )
