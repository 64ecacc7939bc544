"""The model manager in a real browser: settings that end in oMLX's file, downloads, wrong pairs, hostile names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from dflash2_app.models import registry as suggestions
from dflash2_app.models.registry import SuggestedDrafter
from tests.tiny import save_drafter

from ...hub import Hub
from ...hub.conftest import DRAFTER, TARGET, Published, folders, pair, short_waits
from ...settings.pairs import save_pair
from ..conftest import Running, serving
from ..models import scripted, source_of
from .conftest import shot

__all__ = ["folders", "pair", "short_waits"]  # fixtures of the Hub's own tests

NAME = "Tiny-27B-4bit"
HOSTILE = '<img src=x onerror="document.title=1"><script>alert(1)</script>'
PHONE = {"width": 380, "height": 800}


@dataclass
class Place:
    """A server, and the folder of its settings."""

    url: str
    settings: Path
    target: Path
    drafter: Path

    @property
    def record(self) -> dict[str, object]:
        return json.loads((self.settings / "model_settings.json").read_text(encoding="utf-8"))["models"][NAME]


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    with serving(source_of(scripted("fine", NAME)), source_of(scripted("x", HOSTILE))) as running:
        yield running


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("published"))


@pytest.fixture
def place(up: Running, hub: Hub, home: Path, published: tuple[Path, Path]) -> Place:
    models = home / "settings" / "models"
    models.mkdir(parents=True)
    target, drafter = (Path(shutil.copytree(folder, models / folder.name)) for folder in published)
    return Place(up.url, home / "settings", target, drafter)


def no_sideways_scroll(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def card(page: Page, name: str) -> Locator:
    return page.locator(".model-card", has=page.get_by_role("heading", name=name, exact=True))


def open_settings(page: Page, place: Place) -> Locator:
    page.goto(f"{place.url}/#/models")
    card(page, NAME).get_by_role("button", name="Settings").click()
    window = page.get_by_role("dialog", name=f"Settings of {NAME}")
    expect(window).to_be_visible()
    return window


def test_the_announced_settings_are_saved_in_omlx_s_file(page: Page, place: Place) -> None:
    window = open_settings(page, place)
    expect(window.get_by_text("DFlash is off: replies are decoded plainly")).to_be_visible()
    window.get_by_label("DFlash", exact=True).check()
    expect(window.get_by_text("DFlash will not be active: DFlash is on, and no Draft Model is set")).to_be_visible()
    window.get_by_label("Draft Model", exact=True).select_option(str(place.drafter))
    expect(window.get_by_text("Target and drafter: hidden size, vocabulary, taps and layers fit")).to_be_visible()
    for group in ("Draft quantization", "Long-context tuning"):
        window.locator("summary", has_text=group).click()
    window.get_by_label("Quantization", exact=True).check()
    window.get_by_label("Runtime block size", exact=True).fill("five")
    expect(window.get_by_text("got 'five', expected an integer >= 1")).to_be_visible()
    expect(window.get_by_role("button", name="Save")).to_be_disabled()
    window.get_by_label("Runtime block size", exact=True).fill("5")
    window.get_by_label("Verify mode", exact=True).select_option("dflash")
    expect(window.get_by_text(f"Replies are drafted by {place.drafter}")).to_be_visible()
    shot(page, "models-settings")
    window.get_by_role("button", name="Save").click()
    # Said in the window: what is outside of it no screen reader tells.
    expect(window.get_by_text("Saved. It takes effect when the model is loaded the next time.")).to_be_visible()
    assert place.record == {
        "dflash_enabled": True, "dflash_draft_model": str(place.drafter), "dflash_draft_quant_enabled": True,
        "dflash_block_size": 5, "dflash_verify_mode": "dflash", "dflash_draft_sink_size": 0,
    }  # fmt: skip
    window.get_by_role("button", name="Reset Runtime block size").click()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Close without saving?").get_by_role("button", name="Cancel").click()
    window.get_by_role("button", name="Save").click()
    expect(window.get_by_role("button", name="Undo changes")).to_be_disabled()
    assert "dflash_block_size" not in place.record
    window.get_by_role("button", name="Close").click()
    expect(window).to_be_hidden()
    expect(page.locator("body > #toasts")).to_be_attached()
    expect(card(page, NAME).get_by_text(str(place.drafter))).to_be_visible()


def test_a_wrong_pair_is_refused_before_it_is_saved(page: Page, place: Place) -> None:
    save_drafter(place.settings / "models" / "Other-DFlash2", hidden_size=128)
    window = open_settings(page, place)
    window.get_by_label("DFlash", exact=True).check()
    chosen = window.get_by_label("Draft Model", exact=True)
    expect(chosen.locator("option", has_text="Other-DFlash2")).to_contain_text("does not fit")
    chosen.select_option(str(place.settings / "models" / "Other-DFlash2"))
    expect(
        window.locator(".error", has_text="hidden_size: got 128 in the drafter, expected the target's 64")
    ).to_be_visible()
    expect(window.get_by_role("button", name="Save")).to_be_disabled()
    window.get_by_role("button", name="Undo changes").click()
    window.get_by_label("Draft Model", exact=True).select_option("Another folder or Hub id…")
    window.get_by_label("Folder or Hub id", exact=True).fill("no such thing")
    expect(window.get_by_text("expected an existing folder or a full Hub id like owner/name").first).to_be_visible()
    assert not (place.settings / "model_settings.json").exists()


def test_going_back_asks_before_changes_are_lost(page: Page, place: Place) -> None:
    page.goto(f"{place.url}/#/status")
    expect(page).to_have_title(re.compile("^Status"))
    window = open_settings(page, place)
    window.get_by_label("DFlash", exact=True).check()
    question = page.get_by_role("dialog", name="Close without saving?")
    page.go_back()
    question.get_by_role("button", name="Cancel").click()
    expect(window.get_by_label("DFlash", exact=True)).to_be_checked()
    assert page.url.endswith("#/models")
    page.go_back()
    question.get_by_role("button", name="Lose them").click()
    expect(page).to_have_title(re.compile("^Status"))
    expect(window).to_be_hidden()


def test_profiles_and_states(page: Page, place: Place) -> None:
    page.goto(f"{place.url}/#/models")
    mine = card(page, NAME)
    mine.get_by_role("button", name="Load").click()
    expect(mine.get_by_text("in memory")).to_be_visible()
    mine.get_by_role("button", name="Pin").press("Enter")
    expect(mine.get_by_text("pinned")).to_be_visible()
    expect(mine.get_by_role("button", name="Unpin")).to_be_focused()
    page.keyboard.press("Enter")
    expect(mine.get_by_role("button", name="Pin", exact=True)).to_be_focused()
    mine.get_by_role("button", name="Unload").click()
    expect(mine.get_by_text("in memory")).to_be_hidden()
    mine.get_by_role("button", name="Settings").click()
    window = page.get_by_role("dialog", name=f"Settings of {NAME}")
    window.get_by_label("Temperature", exact=True).fill("0.5")
    window.get_by_role("button", name="Save").click()
    expect(window.get_by_role("button", name="Undo changes")).to_be_disabled()
    window.locator("summary", has_text="Profiles").click()
    window.get_by_role("button", name="Keep as a profile…").click()
    page.get_by_role("dialog", name="Keep these settings as a profile").get_by_label("Name", exact=True).fill("calm")
    page.keyboard.press("Enter")
    expect(window.get_by_text("active", exact=True)).to_be_visible()
    window.get_by_role("button", name="Offer as a model…").click()
    page.get_by_role("dialog", name="Offer the profile as a model").get_by_role("button", name="Offer").click()
    expect(window.get_by_text(f"offered as {NAME}:calm")).to_be_visible()
    stored = json.loads((place.settings / "model_profiles.json").read_text())["profiles"][NAME]["calm"]
    assert stored["expose_as_model"] is True and stored["settings"] == {"temperature": 0.5}


def test_a_download_with_cancel_and_retry(
    page: Page, place: Place, hub: Hub, pair: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        suggestions, "drafter_for",
        lambda name, config=None: SuggestedDrafter(DRAFTER, "made for it") if "target" in name else None,
    )  # fmt: skip
    released = hub.hold("model.safetensors", after=4000)
    page.goto(f"{place.url}/#/models?tab=downloader")
    page.get_by_label("Search", exact=True).fill("target")
    page.get_by_role("button", name="Search").click()
    found = card(page, TARGET)
    expect(found.get_by_text("4-bit group 32")).to_be_visible()
    found.get_by_role("button", name=f"Download {TARGET}").click()
    ask = page.get_by_role("dialog", name=f"Download {TARGET}")
    expect(ask.get_by_text(f"{DRAFTER}: its licence is cc-by-nc-4.0: not for commercial use")).to_be_visible()
    expect(ask.get_by_text("free on the disk")).to_be_visible()
    shot(page, "models-download")
    ask.get_by_role("button", name="Download").click()
    task = page.locator(".task")
    expect(task.get_by_text("downloading")).to_be_visible()
    expect(task.locator("summary", has_text="Files")).to_be_visible()
    task.get_by_role("button", name=f"Cancel {TARGET}").click()
    expect(task.get_by_text("cancelled")).to_be_visible()
    released.set()
    page.reload()
    page.locator(".task").get_by_role("button", name=f"Retry {TARGET}").click()
    expect(page.locator(".task").get_by_text("completed")).to_be_visible()
    shot(page, "models-downloader")
    page.get_by_role("link", name="Manager").click()
    mine = card(page, "tiny--target-4bit")
    expect(mine).to_be_visible()
    mine.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog", name="Remove this model?").get_by_role("button", name="Remove").click()
    expect(mine).to_have_count(0)
    assert not any(
        path.name == "config.json"
        for path in (place.settings.parent / "hf").glob("hub/models--tiny--target*/snapshots/*/*")
    )


def test_hostile_names_are_text_dark_mode_and_a_phone(page: Page, place: Place) -> None:
    record = {"display_name": HOSTILE, "description": HOSTILE, "model_alias": "a" * 150}
    (place.settings / "model_settings.json").write_text(json.dumps({"version": 1, "models": {NAME: record}}))
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{place.url}/#/models")
    page.evaluate("localStorage.setItem('dflash2.theme', 'dark')")
    page.reload()
    expect(page.get_by_role("heading", name=HOSTILE)).to_have_count(2)
    assert page.locator("main img, main script").count() == 0 and page.title() != "1"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    no_sideways_scroll(page)
    shot(page, "models-phone-dark")
    card(page, HOSTILE).first.get_by_role("button", name="Settings").click()
    window = page.locator("dialog.settings")
    expect(window).to_be_visible()
    expect(window.get_by_label("Display name", exact=True)).to_have_value(HOSTILE)
    no_sideways_scroll(page)
    shot(page, "models-settings-phone-dark")
    page.keyboard.press("Escape")
    expect(window).to_have_count(0)
    page.goto(f"{place.url}/#/models?tab=downloader")
    expect(page.get_by_label("Search", exact=True)).to_be_visible()
    no_sideways_scroll(page)
