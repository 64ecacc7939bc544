"""Requests under settings: field over setting over default, routing by length, what is forced, what is cached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.settings.paths import Base
from dflash2_app.web.serving.catalogue import Catalogue, Wanted

from ..settings.pairs import save_pair
from .conftest import HELLO, Running, serving
from .machine import GREEDY, ON, Machine, machine
from .models import plain_text, scripted, source_of, tiny_engine, tiny_served

__all__ = ["machine"]
CHAT = "/v1/chat/completions"
PROMPT = 8  # tokens of HELLO: three of roles and ends, five letters
OPEN = 10  # with thinking opened


@pytest.fixture
def served(machine: Machine) -> Iterator[Running]:
    """A machine with one configured pair."""
    machine.model("o/A")
    machine.configure(A=record(machine, "D"))
    with serving(catalogue=machine.catalogue()) as running:
        yield running


def record(machine: Machine, drafter: str | None = None, **more: Any) -> dict[str, Any]:
    if drafter is not None:
        machine.drafter(drafter)
    return {**ON, **GREEDY, "dflash_draft_model": str(machine.models / "D"), "model_alias": "Al", **more}


def ask(running: Running, model: str = "A", **fields: Any) -> dict[str, Any]:
    answer = running.http.post(CHAT, json={"model": model, "messages": HELLO, **fields})
    return {"status": answer.status_code, **answer.json()}


def reply(running: Running, model: str = "A", **fields: Any) -> tuple[str, dict[str, Any]]:
    answer = ask(running, model, **fields)
    assert answer["status"] == 200, answer
    return answer["choices"][0]["message"]["content"], answer["usage"]


def refusal(running: Running, model: str = "A", **fields: Any) -> str:
    answer = ask(running, model, **fields)
    assert answer["status"] == 400, answer
    return str(answer["error"]["message"])


def test_field_over_setting_over_default(machine: Machine, served: Running) -> None:
    text, usage = reply(served)
    assert text == plain_text(tiny_engine(), HELLO, max_tokens=8) and usage["completion_tokens"] == 8
    assert usage["dflash2"]["mode"] == "dflash2" and usage["dflash2"]["width"] == 5
    assert reply(served, "al", max_tokens=3)[1]["completion_tokens"] == 3
    machine.configure(A=record(machine, dflash_block_size=3, max_tokens=5))
    _, usage = reply(served)
    assert (usage["completion_tokens"], usage["dflash2"]["width"]) == (5, 3)
    assert reply(served, dflash2={"block_size": 4})[1]["dflash2"]["width"] == 4
    machine.configure(A=record(machine, dflash_verify_mode="adaptive"))
    assert reply(served)[1]["dflash2"]["verify_mode"] == "adaptive" and len(machine.loads) == 1
    machine.configure(A=record(machine, dflash_verify_mode="off"))
    ours = reply(served)[1]["dflash2"]
    assert (ours["mode"], ours["fallback_reason"]) == ("plain", "Verify mode is off, which is plain decoding here")
    assert len(machine.loads) == 2


def test_max_context_holds_for_one_prompt_and_no_longer(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, dflash_max_ctx=PROMPT + 1, dflash_in_memory_cache=False))
    long = [{"role": "user", "content": "hello!"}]
    short_text, short = reply(served)
    long_text, routed = reply(served, messages=long)
    assert short["dflash2"]["mode"] == "dflash2" and routed["dflash2"]["mode"] == "plain"
    assert routed["dflash2"]["fallback_reason"] == (
        f"Max Context: the prompt has {PROMPT + 1} tokens, drafting is for fewer than {PROMPT + 1}"
    )
    assert long_text == plain_text(tiny_engine(), long, max_tokens=8)
    again, usage = reply(served)
    assert again == short_text and usage["dflash2"]["mode"] == "dflash2" and usage["dflash2"]["fallback_reason"] is None
    assert reply(served, messages=long, dflash2={"mode": "dflash2"})[1]["dflash2"]["mode"] == "dflash2", "it insists"


def test_max_context_window_refuses_and_cuts(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, max_context_window=PROMPT + 3))
    usage = reply(served, max_tokens=8)[1]
    assert usage["completion_tokens"] == 3
    assert "max_tokens: 8 was cut to 3, what Max context window leaves" in usage["dflash2"]["notices"]
    usage = reply(served)[1]
    assert usage["completion_tokens"] == 3
    assert not usage["dflash2"]["notices"], "nobody named a length, so nothing that was asked for was cut"
    long = [{"role": "user", "content": "hello you"}]
    told = f"prompt: got {PROMPT + 4} tokens, expected fewer than Max context window ({PROMPT + 3})"
    assert refusal(served, messages=long) == told
    counted = served.http.post("/v1/messages/count_tokens", json={"model": "A", "messages": long})
    in_its_words = told.replace("prompt:", "prompt is too long:")
    assert counted.status_code == 400 and counted.json()["error"]["message"] == in_its_words


def test_what_is_forced(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, force_sampling=True, top_k=1, temperature=0.7))
    text, usage = reply(served, temperature=1.5, top_p=0.5, top_k=50, seed=1)
    assert text == plain_text(tiny_engine(), HELLO, max_tokens=8), "top_k 1 takes the likeliest"
    notices = usage["dflash2"]["notices"]
    assert "temperature: 1.5 was asked for, the settings' 0.7 counts (Force sampling)" in notices
    assert "top_k: 50 was asked for, the settings' 1 counts (Force sampling)" in notices
    assert not [notice for notice in notices if notice.startswith("top_p")], "top_p is not configured"
    assert not [notice for notice in reply(served, temperature=0.7)[1]["dflash2"]["notices"] if "Force" in notice]
    assert refusal(served, temperature=9).startswith("temperature: got 9")
    assert reply(served, max_tokens=2)[1]["completion_tokens"] == 2, "the length is always the request's"


def test_what_the_template_is_told(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, enable_thinking=True, chat_template_kwargs={"open_thinking": True},
                               forced_ct_kwargs=["enable_thinking", "mood"]))  # fmt: skip
    assert reply(served)[1]["prompt_tokens"] == OPEN
    assert reply(served, chat_template_kwargs={"open_thinking": False})[1]["prompt_tokens"] == OPEN - 2
    assert reply(served, enable_thinking=True)[1]["prompt_tokens"] == OPEN, "what is fixed may be said"
    fixed = "got False, expected True or nothing: the model's settings fix enable_thinking"
    assert refusal(served, enable_thinking=False) == f"enable_thinking: {fixed}"
    assert refusal(served, chat_template_kwargs={"enable_thinking": False}).endswith(fixed)
    assert refusal(served, reasoning_effort="none") == f"reasoning_effort: {fixed}"
    assert ask(served, chat_template_kwargs={"mood": "good"})["status"] == 200, "nothing is configured for it"
    plain = served.http.post("/v1/completions", json={"model": "A", "prompt": "ab", "max_tokens": 2})
    assert plain.json()["usage"]["prompt_tokens"] == 2, "no template, no variables"
    configured = served.http.post("/v1/completions", json={"model": "A", "prompt": "ab"})
    assert configured.json()["usage"]["completion_tokens"] == 8, "not OpenAI's 16, which is for those who set nothing"


def test_what_was_read_is_not_read_again(machine: Machine, served: Running) -> None:
    first, usage = reply(served)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    again, usage = reply(served)
    assert again == first and 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    more = [*HELLO, {"role": "assistant", "content": first}, {"role": "user", "content": "and?"}]
    text, usage = reply(served, messages=more)
    assert text == plain_text(tiny_engine(), more, max_tokens=8)
    assert usage["prompt_tokens_details"]["cached_tokens"] > PROMPT
    machine.configure(A=record(machine, dflash_in_memory_cache=False))
    reply(served)
    assert reply(served)[1]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_prompt_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Any] = []
    real = d2.render_prompt
    monkeypatch.setattr(d2, "render_prompt", lambda *a, **b: rendered.append(a) or real(*a, **b))
    with serving(source_of(tiny_served(settings={"dflash_max_ctx": 500, "max_context_window": 500}))) as running:
        tokenizer = running.service.pool.find("tiny").load().tokenizer
        applied: list[Any] = []
        apply = type(tokenizer).apply_chat_template
        monkeypatch.setattr(
            type(tokenizer), "apply_chat_template", lambda *a, **b: applied.append(a) or apply(*a, **b)
        )  # fmt: skip
        reply(running, "tiny", max_tokens=2, temperature=0)
    assert len(rendered) == 1 and len(applied) == 1


def test_profiles_and_aliases_in_lists(machine: Machine, served: Running) -> None:
    machine.profile("A", "hot", {"temperature": 0.9, "max_tokens": 2})
    machine.profile("A", "bare", {"dflash_enabled": False}, api_name="b")
    listed = served.http.get("/v1/models").json()["data"]
    assert [item["id"] for item in listed] == ["mini", "Al", "Al:hot", "Al:b"]
    assert served.http.get("/v1/models/al:HOT").json()["id"] == "Al:hot"
    answer = ask(served, "A:hot")
    assert answer["usage"]["completion_tokens"] == 2 and answer["model"] == "A:hot"
    assert reply(served, "Al:b")[1]["dflash2"]["mode"] == "plain"
    machine.configure(A=record(machine, is_hidden=True, display_name="The A"))
    assert [item["id"] for item in served.http.get("/v1/models").json()["data"]] == ["mini"]
    assert served.http.get("/v1/models/A").json()["display_name"] == "The A", "hidden, not gone"
    assert reply(served)[1]["completion_tokens"] == 8


def test_the_status_says_what_counts_and_why(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, dflash_block_size=16, dflash_draft_quant_enabled=True, mtp_enabled=True,
                               dflash_draft_quant_group_size=32))  # fmt: skip
    served.http.post("/v1/models/A/load")
    status = served.http.get("/v1/models/status").json()
    state = {item["name"]: item for item in status["models"]}["A"]
    assert (state["effective_engine"], state["dflash_requested"], state["dflash_active"]) == ("dflash2", True, True)
    assert state["dflash_fallback_reason"] is None and state["id"] == "Al" and state["model_id"] == "A"
    assert "Runtime block size: 16 was cut to 5, the most this drafter was trained for" in state["notes"]
    assert any("mtp_enabled" in note for note in state["notes"])
    shown = state["settings"]
    assert shown["dflash_draft_model"] == {"value": str(machine.models / "D"), "origin": "model"}
    assert shown["dflash_draft_quant_weight_bits"] == {"value": 4, "origin": "default"}
    assert shown["dflash_block_size"] == {"value": 16, "origin": "model"} and state["block_size"] == 5
    assert shown["dflash_verify_mode"]["value"] == "dflash" and shown["dflash_max_ctx"]["value"] is None
    assert shown["top_p"] == {"value": 0.95, "origin": "default"}
    assert status["default_model"] == "mini" and "D" in status["left_out"] and status["notes"] == []
    assert state["weight_bytes"] > 0 and json.dumps(status)


def test_a_real_pair_from_its_settings(home: Path) -> None:
    """Read from disk by the library itself; the other tests here have a ready model in its place."""
    base = home / "settings"
    target, drafter = save_pair(base / "models" / "o")
    settings = {**ON, **GREEDY, "dflash_draft_model": str(drafter), "dflash_block_size": 5, "dflash_draft_sink_size": 0}
    (base / "model_settings.json").write_text(json.dumps({"version": 1, "models": {target.name: settings}}))
    catalogue = Catalogue(Base(base, "default"), environment={}, wanted=[Wanted(target.name, "it")])
    with serving(catalogue=catalogue) as running:
        running.http.timeout = 900  # MLX compiles this pair's kernels first, which takes minutes on a busy machine
        text, usage = reply(running, "it")
        alone = d2.load(str(target), None)
        assert text == d2.generate(alone, HELLO, d2.GenerationConfig(max_tokens=8)).text
        assert (usage["dflash2"]["mode"], usage["dflash2"]["width"]) == ("dflash2", 5)
        state = running.http.get("/v1/models/status").json()["models"][0]
        assert state["dflash_active"] and state["weight_bytes"] > 0


def test_refresh_and_reload_over_http(machine: Machine, served: Running) -> None:
    machine.model("o/B")
    assert ask(served, "B")["status"] == 404
    assert served.http.post("/v1/models/refresh").json()["added"] == ["B"]
    assert served.http.post("/v1/models/refresh", json={"now": True}).status_code == 400
    assert ask(served, "B", max_tokens=1)["status"] == 200
    assert served.http.post("/v1/models/B/reload").json()["loaded"] and len(machine.loads) == 2
    assert served.http.post("/v1/models/nobody/reload").status_code == 404
    served.settle()


def test_a_name_for_the_default_is_told(machine: Machine, served: Running) -> None:
    machine.configure(A=record(machine, is_default=True))
    machine.shared(model={"model_fallback": True})
    assert (
        "model: 'gpt-9' is not known here: the default model A was used"
        in (reply(served, "gpt-9")[1]["dflash2"]["notices"])
    )


def test_pinned_models_are_there_from_the_start(machine: Machine) -> None:
    machine.model("A")
    machine.configure(A={"is_pinned": True, **GREEDY})
    with serving(catalogue=machine.catalogue()) as running:
        for _ in range(500):
            state = running.http.get("/v1/models/status").json()["models"][1]
            if state["loaded"]:
                break
        assert state["loaded"] and state["pinned"]


def test_notes_of_a_streamed_reply() -> None:
    model = scripted("fine")
    with serving(source_of(model)) as running:
        lines = running.http.post(CHAT, json={"model": "scripted", "messages": HELLO, "stream": True,
                                              "stream_options": {"include_usage": True}}).text.splitlines()  # fmt: skip
    usage = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]["usage"]
    assert usage["dflash2"]["notices"] == []
