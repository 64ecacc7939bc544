"""No page of the web app has a grave fault for people with other eyes or hands: light, dark, wide and narrow."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from ..conftest import Running
from .axe import assert_accessible, faults
from .conftest import shot

PHONE = {"width": 380, "height": 800}


def addresses(page: Page, server: Running) -> list[str]:
    """The hash address of every page, from the app's own tabs."""
    page.goto(server.url)
    expect(page.locator("main h1")).to_be_visible()
    return [link.get_attribute("href") or "" for link in page.locator("nav a").all()]


def visit(page: Page, server: Running, address: str, theme: str) -> None:
    page.goto(f"{server.url}/{address}")
    page.evaluate("theme => localStorage.setItem('dflash2.theme', theme)", theme)
    page.reload()
    expect(page.locator(f":root[data-theme={theme}]")).to_be_attached()
    expect(page.locator("main h1").first).to_be_visible()
    page.wait_for_timeout(400)  # what a page fetches first


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_grave_fault_on_any_page(page: Page, server: Running, theme: str) -> None:
    found = addresses(page, server)
    assert len(found) >= 5
    complaints = []
    for address in found:
        visit(page, server, address, theme)
        shot(page, f"{address.strip('#/')}-{theme}")
        try:
            assert_accessible(page)
        except AssertionError as error:
            complaints.append(str(error))
    assert not complaints, "\n\n".join(complaints)


def test_no_page_is_wider_than_a_phone_and_all_are_reached_by_keyboard(page: Page, server: Running) -> None:
    found = addresses(page, server)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    for address in found:
        visit(page, server, address, "light")
        shot(page, f"{address.strip('#/')}-phone")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
        page.set_viewport_size({**PHONE, "width": 300})  # type: ignore[arg-type]
        page.reload()
        expect(page.locator(".tabs a[aria-current=page]")).to_be_in_viewport(ratio=0.99)
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{server.url}/{found[0]}")
    expect(page.locator("main h1").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    for _ in range(2):  # the brand, then the first tab
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", found[1])


def test_a_dark_page_is_never_painted_light(page: Page, server: Running) -> None:
    page.emulate_media(color_scheme="dark")
    page.add_init_script("""
      window.times = {};
      new MutationObserver(() => {
        if (document.documentElement?.dataset.theme) window.times["theme"] ??= performance.now();
      }).observe(document, { subtree: true, childList: true, attributes: true });
      new PerformanceObserver((list) => {
        for (const one of list.getEntries()) window.times[one.name] = one.startTime;
      }).observe({ type: "paint", buffered: true });
    """)
    page.route("**/js/theme.js", lambda route: (time.sleep(0.5), route.continue_()))  # a slow one
    page.goto(server.url)
    expect(page.locator("main h1")).to_be_visible()
    page.wait_for_function("window.times['first-paint']")
    assert page.evaluate("window.times['theme'] <= window.times['first-paint']")
    page.get_by_role("button", name="Colours: system").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.get_by_role("button", name="Colours: light")).to_be_focused()


def test_a_wrong_address_and_a_page_that_cannot_be_read(
    page: Page, server: Running, expected_errors: list[str]
) -> None:
    expected_errors.append("Failed to load resource")
    page.goto(f"{server.url}/#/models/%E0%A4%A")
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()
    page.goto(f"{server.url}/#/race?prompt=What?&seed=7")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("What?")
    page.route("**/js/pages/bench.js", lambda route: route.abort())
    page.get_by_role("link", name="Bench").click()
    expect(page.get_by_text("This page cannot be shown: one of its files could not be read")).to_be_visible()
    page.unroute("**/js/pages/bench.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Bench", level=1)).to_be_visible()
    told = page.evaluate("""async () => {
      const { stream } = await import("/static/js/api.js");
      const broken = new ReadableStream({ start: (to) => to.error(new TypeError("network error")) });
      window.fetch = async () => new Response(broken);
      return stream("/x", {}, { onEvent() {} }).catch((error) => `${error.name} ${error.status}: ${error.message}`);
    }""")
    assert told == "Error 0: the connection was lost: is the server still running?"


def test_the_check_sees_a_fault(page: Page, server: Running) -> None:
    page.goto(server.url)
    expect(page.locator("main h1")).to_be_visible()
    page.evaluate("""() => {
      const image = document.createElement("img"), field = document.createElement("input");
      const pale = document.createElement("p");
      pale.textContent = "hardly seen";
      pale.style.color = "#ccc"; pale.style.background = "#fff";
      image.src = "/static/icon.svg";
      document.querySelector("main").append(image, field, pale);
    }""")
    assert {fault["id"] for fault in faults(page)} >= {"image-alt", "label", "color-contrast"}
    with pytest.raises(AssertionError, match=r"critical: .*image-alt"):
        assert_accessible(page)
