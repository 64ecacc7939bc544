"""The chat page in a real browser, on the embedded pair and on models that write what they are told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Locator, Page, expect

from dflash2_app.chat.record import Chat, Message
from dflash2_app.chat.store import ChatStore

from ..conftest import Running, serving, until
from ..models import defaults, mini_source, scripted, source_of, tiny_served
from .conftest import shot
from .hostile import HOSTILE, LONG

MARKUP = '<img src=x onerror="window.hurt=9">'  # a folder may have any name, so a model may
REPLY_MS = 180_000  # for a whole reply on a machine that does much else
NARROW = {"width": 380, "height": 740}


@pytest.fixture(scope="module")
def chats() -> Iterator[Running]:
    """The embedded pair, and models that write what they are told."""
    mini = mini_source(max_tokens=12, temperature=0)
    length = defaults(max_tokens=8000)
    slow = replace(scripted(LONG, "slow", per_round=8, round_s=0.5), config=length)
    hostile = replace(scripted(HOSTILE, "hostile"), config=length)
    plain = source_of(tiny_served("plain", drafts=False))
    with serving(mini, source_of(slow), source_of(hostile), source_of(scripted("Fine.", MARKUP)), plain) as server:
        httpx2.post(f"{server.url}/v1/models/mini/load", timeout=600).raise_for_status()
        yield server


@pytest.fixture
def store(home: Path) -> ChatStore:
    """The folder that the server keeps chats in."""
    return ChatStore(home / "settings")


def open_chat(page: Page, server: Running, model: str = "mini", path: str = "chat") -> None:
    page.goto(f"{server.url}/#/{path}")
    expect(page.get_by_label("Model", exact=True)).to_contain_text("mini")
    if path == "chat":
        page.get_by_label("Model", exact=True).select_option(model)


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your question", exact=True).fill(text)
    page.keyboard.press("Enter")


def replies(page: Page) -> Locator:
    return page.locator(".message.assistant")


def done(page: Page, count: int) -> None:
    """Wait until so many replies are complete and nothing runs."""
    expect(replies(page)).to_have_count(count)  # first: before a reply begins, Send is there too
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=REPLY_MS)


def test_ask_edit_regenerate_delete(page: Page, chats: Running, store: ChatStore) -> None:
    open_chat(page, chats)
    ask(page, "def add(a, b):")
    done(page, 1)
    expect(page).to_have_url(re.compile(r"#/chat/\d{4}-\d\d-\d\d-\d+"))
    (name,) = store.names()
    until(lambda: len(store.load(name).messages) == 2)
    chat = store.load(name)
    first = chat.messages[1]
    assert (first.content or first.thinking) and first.numbers["mode"] == "dflash2" and first.numbers["ttft_s"] > 0
    assert first.finish_reason == "length" and chat.model == "mini"
    expect(page.locator(".numbers summary")).to_contain_text("tokens/s · first after")
    page.locator(".numbers summary").click()
    expect(page.get_by_role("img", name=re.compile("Acceptance by position"))).to_be_visible()
    shot(page, "chat")

    page.get_by_role("button", name="Continue").click()
    done(page, 2)
    assert [message.content for message in store.load(name).messages][2] == "Continue."

    page.get_by_role("button", name="Edit question").first.click()
    area = page.locator(".editor textarea")
    area.press("Escape")
    expect(page.get_by_role("button", name="Edit question").first).to_be_focused()
    page.keyboard.press("Enter")
    area.fill("def sub(a, b):")
    area.press("Enter")
    page.get_by_role("button", name="Ask again").click()
    done(page, 1)
    expect(page.locator(".message.user .text")).to_have_text("def sub(a, b):")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".message.user .text").first).to_have_text("def add(a, b):")
    expect(replies(page)).to_have_count(2)
    expect(page.get_by_role("region", name="Conversation")).to_be_focused()

    page.get_by_role("button", name="Delete question").last.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(replies(page)).to_have_count(1)
    page.get_by_role("button", name="Regenerate reply").click()
    done(page, 1)
    expect(page.get_by_text("The reply was made anew.")).to_be_visible()
    page.reload()
    expect(page.locator(".message.user .text")).to_have_text("def add(a, b):")
    done(page, 1)
    again = store.load(name).messages[1]
    assert (again.content, again.thinking) == (first.content, first.thinking), "greedy decoding writes it again"


def test_stop_and_a_reply_stays_in_its_chat(page: Page, chats: Running, store: ChatStore) -> None:
    store.save("other", Chat([Message("user", "Other question"), Message("assistant", "Other reply")], title="Other"))
    open_chat(page, chats, "slow")
    ask(page, "Write long")
    expect(page.locator(".message.assistant .markdown h3").first).to_be_visible()
    page.get_by_role("link", name="Other").click()
    expect(page.locator(".message.user .text")).to_have_text("Other question")
    expect(replies(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_role("link", name="Status").click()
    page.go_back()
    expect(page.locator(".message.user .text")).to_have_text("Other question")
    page.get_by_role("link", name=re.compile("Write long")).click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_label("Your question", exact=True).fill("a draft")
    page.keyboard.press("Escape")
    done(page, 1)
    expect(page.get_by_text("stopped", exact=True)).to_be_visible()
    chats.settle()
    expect(page.get_by_text("The reply was stopped.")).to_be_attached()
    name = next(name for name in store.names() if name != "other")
    reply = store.load(name).messages[1]
    assert reply.partial and LONG.startswith(reply.content) and reply.numbers["generated_tokens"] > 0
    assert store.load("other").messages[1].content == "Other reply"
    page.reload()
    expect(page.get_by_label("Your question", exact=True)).to_have_value("a draft")
    expect(page.get_by_text("stopped", exact=True)).to_be_visible()


def test_rename_search_export_delete_and_a_newer_version(
    page: Page, chats: Running, store: ChatStore, expected_errors: list[str]
) -> None:
    expected_errors.append("409")
    turns = [Message("user", "Why is the sky blue?"), Message("assistant", "Light *scatters*.")]
    store.save("sky", Chat(turns, model="mini"))
    store.save("primes", Chat([Message("user", "Prime numbers")]))
    open_chat(page, chats, path="chat/sky")
    expect(page.locator(".markdown em")).to_have_text("scatters")
    page.get_by_label("Search chats").fill("blue sky")
    expect(page.locator(".chats li")).to_have_count(1)
    page.get_by_role("button", name="More for").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("<b>Weather</b>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("<b>Weather</b>")
    assert store.load("sky").title == "<b>Weather</b>"
    for form, ending in (("Markdown", "md"), ("JSON", "json")):
        page.get_by_role("button", name="More for").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Export as {form}").click()
        text = Path(download.value.path()).read_text(encoding="utf-8")
        assert download.value.suggested_filename == f"sky.{ending}" and "Light *scatters*." in text
    assert json.loads(text)["title"] == "<b>Weather</b>"

    theirs = store.load("sky")
    theirs.messages += [Message("user", "And at night?"), Message("assistant", "Black.")]
    store.save("sky", theirs)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    expect(page.get_by_text("Nothing was overwritten.")).to_be_visible()
    page.get_by_role("button", name="Show the newer version").click()
    expect(page.locator(".message.user")).to_have_count(2)
    assert store.load("sky").turns == 2 and store.load("sky").system == ""

    page.get_by_role("button", name="More for").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    assert store.names() == ["primes"]
    expect(page.get_by_label("Your question", exact=True)).to_be_focused()
    page.get_by_label("Search chats").fill("")
    page.get_by_role("button", name="More for").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="New chat")).to_be_focused()


def test_what_a_model_writes_stays_text(page: Page, chats: Running) -> None:
    open_chat(page, chats, MARKUP)
    ask(page, "<script>window.hurt = 'question'</script>")
    done(page, 1)
    page.get_by_label("Model", exact=True).select_option("hostile")
    ask(page, "More")
    done(page, 2)
    reply = replies(page).last
    expect(reply.get_by_text("<script>window.hurt = 'script'</script>")).to_be_visible()
    assert page.evaluate("window.hurt") is None
    expect(page.locator("main").locator("img, iframe, script, svg:not(.chart)")).to_have_count(0)
    links = reply.locator(".markdown a").evaluate_all("all => all.map(a => [a.getAttribute('href'), a.rel, a.target])")
    assert [link[0] for link in links] == ["https://example.com/a?b=c", "https://example.com/track.png"]
    assert all("noopener" in rel and target == "_blank" for _, rel, target in links)
    attributes = page.evaluate("[...document.querySelectorAll('main *')].flatMap(e => e.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on")]
    expect(reply.locator("td b, td i")).to_have_count(0)
    expect(reply.locator("pre code span").first).to_have_class(re.compile("hljs-"))
    expect(reply.locator(".thinking")).not_to_have_attribute("open", "")
    shot(page, "chat-hostile")


def test_settings_reach_the_request(page: Page, chats: Running, store: ChatStore) -> None:
    page.goto(f"{chats.url}/#/chat?model=slow")  # as the Models page leads here
    expect(page.get_by_label("Model", exact=True)).to_have_value("slow")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("3")
    expect(page.get_by_text("At most 2.")).to_be_visible()
    ask(page, "x")
    expect(page.get_by_text("One of the settings cannot be used.")).to_be_visible()
    expect(replies(page)).to_have_count(0)
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("20")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Thinking", exact=True).select_option("off")
    page.get_by_label("Stop texts").fill("END\n\\n\\n")
    expect(page.get_by_role("button", name="Settings (6 changed)")).to_be_visible()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "x")
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 20, 7) and "top_p" not in body
    assert body["stop"] == ["END", "\n\n"] and body["chat_template_kwargs"] == {"enable_thinking": False}
    done(page, 1)
    expect(page.get_by_text("Cut: the limit of tokens was reached.")).to_be_visible()
    chat = store.load(store.names()[0])
    assert chat.settings == {"temperature": 0.5, "max_tokens": 20, "seed": 7}
    assert chat.server == {"stop": ["END", "\n\n"]} and chat.template == {"enable_thinking": False}


def test_dark_and_narrow(page: Page, chats: Running, store: ChatStore) -> None:
    word = "long" * 60
    reply = f"{LONG}\n\n{word}\n\n| {word} | b |\n|-|-|\n"
    store.save("long", Chat([Message("user", word), Message("assistant", reply)]))
    page.set_viewport_size(NARROW)
    page.emulate_media(color_scheme="dark")
    open_chat(page, chats, path="chat/long")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(replies(page)).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    assert page.evaluate("(s => s.scrollWidth <= s.clientWidth)(document.querySelector('.scroller'))")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the page stands still"
    shot(page, "chat-phone-dark")
    page.get_by_role("button", name="Chats", exact=True).click()
    expect(page.get_by_label("Search chats")).to_be_focused()
    shot(page, "chat-phone-list")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Chats", exact=True)).to_be_focused()
    expect(page.get_by_label("Search chats")).not_to_be_visible()
    page.get_by_label("Model", exact=True).select_option("plain")
    ask(page, "hi")
    done(page, 2)
    expect(replies(page).last.get_by_text("DFlash not active: no drafter given")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("System prompt")).to_be_focused()
    shot(page, "chat-phone-settings")
    page.get_by_label("System prompt").press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.closest('.middle')") is None, "what is covered is out of reach"
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()


def test_scripts_formulas_and_wide_tables(page: Page, chats: Running, store: ChatStore) -> None:
    formula = "\\(a_1 * b * \\frac{1}{2}\\) and \\[c*d*e\\] and $$x*y*z\n= 1$$ but 3 $ * 4 $"
    row = "| alpha | 1.0 |" + " something |" * 12
    reply = f"שלום, hello\n\nhello, שלום\n\n{formula}\n\n{row}\n{'|-' * 14}|\n{row}\n"
    store.save("words", Chat([Message("user", "مرحبا hello"), Message("assistant", reply)]))
    open_chat(page, chats, path="chat/words")
    direction = "all => all.map(node => getComputedStyle(node).direction)"
    assert page.locator(".message.user .text").evaluate_all(direction) == ["rtl"]
    assert page.locator(".markdown > p").evaluate_all(direction) == ["rtl", "ltr", "ltr"]
    expect(page.locator(".formula")).to_have_text(["\\(a_1 * b * \\frac{1}{2}\\)", "\\[c*d*e\\]", "$$x*y*z\n= 1$$"])
    expect(page.locator(".markdown em")).to_have_count(0)
    heights = page.locator(".markdown td").evaluate_all("all => all.map(node => node.clientHeight)")
    assert max(heights) < 1.5 * 24 + 12, "no word is cut in two: the table scrolls"


def test_a_growing_text_is_drawn_like_the_whole(page: Page, chats: Running) -> None:
    page.goto(f"{chats.url}/#/chat")
    begin = "A setext heading\n===\n\n1. one\n\n   more of it\n2. two\n\n> quoted\nlazily\n\nwords\n#no heading\n\n"
    source = f"{begin}{LONG[:600]}\n\n{HOSTILE}\nthe end"
    drawn = page.evaluate(
        """async (source) => {
          const { LiveMarkdown, render } = await import("/static/js/chat/markdown.js");
          const [whole, root] = [document.createElement("div"), document.createElement("div")];
          whole.append(render(source));
          const live = new LiveMarkdown(root);
          const settled = [];
          for (let end = 1; end <= source.length; end += 1) {
            live.source = source.slice(0, end);
            live.draw();
            settled.push(live.settled);
          }
          const tail = root.querySelector(".tail");
          tail.replaceWith(...tail.childNodes);
          return { whole: whole.innerHTML, live: root.innerHTML, settled };
        }""",
        source,
    )
    assert drawn["live"] == drawn["whole"]
    assert drawn["settled"] == sorted(drawn["settled"]) and drawn["settled"][-1] > len(source) * 0.8, "most is kept"
