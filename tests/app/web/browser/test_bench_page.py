"""The bench page in a real browser: a measurement to its advice, cancelling, kept runs, small and dark screens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ..conftest import Running, serving
from ..models import mini_source, source_of, tiny_served
from .conftest import shot
from .kept import arm, keep, record

MEASURED_MS = 300_000  # loading and compiling the pair included, on a busy machine
PHONE = {"width": 380, "height": 740}


@pytest.fixture(scope="module")
def benching() -> Iterator[Running]:
    mini = mini_source(max_tokens=48, temperature=0)
    with serving(mini, source_of(tiny_served()), source_of(tiny_served("plain", drafts=False))) as server:
        yield server


def fill(page: Page, **values: str) -> None:
    for label, value in values.items():
        page.get_by_label(label.replace("_", " ").capitalize(), exact=True).fill(value)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_measurement_to_its_table_and_advice(page: Page, benching: Running, home: Path) -> None:
    page.goto(f"{benching.url}/#/bench")
    expect(page.get_by_text("No measurements yet")).to_be_visible()
    fill(page, samples="2", repeats="1", max_tokens="12", widths="1, 4")
    page.get_by_role("button", name="Start").press("Enter")
    expect(page.get_by_role("heading", name="Measuring mini")).to_be_focused()
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    expect(page.get_by_role("heading", name="Advice:")).to_be_visible(timeout=MEASURED_MS)
    expect(page.get_by_text("all 2 drafted replies that had to equal plain decoding's do")).to_be_visible()
    rows = page.get_by_role("region", name="temperature 0, depth 0").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("plain")
    expect(rows.nth(2)).to_contain_text("2/2")
    for plot in ("Speed by width", "Acceptance by position", "Phases of a round"):
        expect(page.get_by_role("img", name=plot)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(download.value.path()).read_text())
    (kept,) = (home / "settings" / "bench").glob("*.json")
    assert saved == json.loads(kept.read_text())["record"] and saved["kind"] == "pair"
    shot(page, "bench-result")
    page.get_by_role("region", name="Kept measurements", exact=True).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Advice:")).to_be_visible()
    benching.settle()


def test_cancelling_shows_what_was_measured_until_then(page: Page, benching: Running) -> None:
    page.goto(f"{benching.url}/#/bench")
    page.get_by_label("Model", exact=True).select_option("tiny")
    page.get_by_label("Prompts", exact=True).select_option("own")
    fill(page, own_prompts="one\ntwo", repeats="1000", max_tokens="48", widths="1,3")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("region", name="temperature 0, depth 0").get_by_role("row").nth(1)).to_be_visible(
        timeout=MEASURED_MS
    )
    page.reload()  # the measurement goes on, and is found again
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled: this is what was measured until then.")).to_be_visible(timeout=MEASURED_MS)
    expect(page.get_by_text("of 4000 requests were measured.")).to_be_visible()
    expect(page.get_by_text("unfinished, ")).to_be_visible()
    benching.settle()


def test_what_cannot_be_measured_is_told_at_its_field(
    page: Page, benching: Running, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    page.goto(f"{benching.url}/#/bench")
    fill(page, widths="1,1")
    page.get_by_role("button", name="Start").click()
    told = page.get_by_role("alert").filter(has_text="widths: got [1, 1], expected a list of different integers")
    expect(told).to_be_visible()
    expect(page.get_by_label("Widths", exact=True)).to_be_focused()
    page.get_by_label("Model", exact=True).select_option("plain")
    fill(page, widths="1,3")
    page.get_by_role("button", name="Start").click()
    told = page.get_by_role("alert").filter(has_text="widths: got 3, expected integers in 1..1: there is no drafter")
    expect(told.first).to_be_visible(timeout=MEASURED_MS)
    benching.settle()


def test_kept_measurements_are_read_applied_compared_and_deleted(page: Page, benching: Running, home: Path) -> None:
    base = home / "settings"
    keep(base, "20260102-030405", record())
    odd = {"compared": 24, "identical": 23, "differences": [{"prompt": 3, "turn": 0, "repeat": 0, "index": 7,
           "plain_token": 1, "dflash2_token": 2, "logit_gap": 0.00012}]}  # fmt: skip
    other = record(speed=44.0, temperatures=(0.0,), repeats=1, complete=False, requests=50,
                   busy="9.0 processes want to run on 2 cores", notices=["a note"])  # fmt: skip
    other["settings"][0]["arms"][2] = arm(5, 44.0, texts=odd)
    keep(base, "20260102-030406", other, model="<b>mini</b>")
    page.goto(f"{benching.url}/#/bench")
    boxes = page.get_by_role("checkbox", name="Compare ")
    expect(boxes).to_have_count(2)
    for at in (0, 1):
        boxes.nth(at).check()
    page.get_by_role("button", name="Compare two").click()
    expect(page.get_by_text("Not measured alike")).to_be_visible()
    expect(page.get_by_role("region", name="Measurement A")).to_contain_text("<b>mini</b>")
    shot(page, "bench-compare")
    page.goto(f"{benching.url}/#/bench/run/20260102-030406")
    expect(page.get_by_text("width 5, prompt 3: from token 7 on, logit gap 0.00012")).to_be_visible()
    expect(page.get_by_text("Caution: 9.0 processes")).to_be_visible()
    expect(page.get_by_text("Unfinished: 50 of 96 requests were measured.")).to_be_visible()
    page.goto(f"{benching.url}/#/bench/run/20260102-030405")
    page.get_by_role("button", name="Apply: Runtime block size 5").click()
    expect(page.get_by_text("Runtime block size 5 is now set for mini")).to_be_visible()
    assert '"dflash_block_size": 5' in (base / "model_settings.json").read_text()
    page.goto(f"{benching.url}/#/bench")
    page.get_by_role("button", name="Delete <b>mini</b>").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("checkbox", name="Compare ")).to_have_count(1)
    expect(page.get_by_role("heading", name="Kept measurements")).to_be_focused()
    assert [file.stem for file in (base / "bench").glob("*.json")] == ["20260102-030405"]


def test_a_phone_and_the_dark(page: Page, benching: Running, home: Path) -> None:
    keep(home / "settings", "20260102-030405", record())
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="dark")
    for path, words in (("bench", "Kept measurements"), ("bench/run/20260102-030405", "Advice:")):
        page.goto(f"{benching.url}/#/{path}")
        expect(page.get_by_role("heading", name=words)).to_be_visible()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert fits(page), path
        shot(page, f"phone-dark-{path}")
