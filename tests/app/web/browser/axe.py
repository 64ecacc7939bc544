"""Asks axe-core what a page does to people who cannot see it well, or use no mouse."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

GRAVE = ("serious", "critical")
RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.map(({id, impact, help, nodes}) =>
    ({id, impact, help, nodes: nodes.map((node) => [node.target.join(" "), node.failureSummary])}));
}"""


@functools.cache
def _source() -> str:
    # The package is a wrapper with a copy of axe-core inside; only the copy is used.
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def faults(page: Page) -> list[dict[str, Any]]:
    """The grave faults of a page as it stands."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_source())
    return [fault for fault in page.evaluate(RUN) if fault["impact"] in GRAVE]


def assert_accessible(page: Page) -> None:
    """Fail with every grave fault of a page, and where it is."""
    lines = []
    for fault in faults(page):
        lines.append(f"{fault['impact']}: {fault['help']} ({fault['id']})")
        lines += [f"    {target}: {' '.join(why.split())}" for target, why in fault["nodes"][:8]]
    assert not lines, f"{page.url}:\n" + "\n".join(lines)
