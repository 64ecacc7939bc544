"""Replies as users see them: events, requests that do not touch each other (CK-15), and cancelling anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.generation.reply import ReplyJob
from dflash2_mlx.targets.registry import make_target
from tests.engines import scripted_engine, settled_bytes, tiny_engine
from tests.runs import PROMPT, lively_reply, slow_unless
from tests.scripted import RIGHT
from tests.tiny import TARGET_CONFIGS, make_mlx_model, make_tiny_drafter

ROOT = Path(__file__).resolve().parents[2]
SEEDED = d2.SamplingConfig(temperature=0.9, top_k=40, seed=11)
PENALIZED = d2.SamplingConfig(repetition_penalty=1.3, presence_penalty=0.4)
LONG = [(7 * i) % 200 for i in range(40)]
SHORT = d2.GenerationConfig(max_tokens=12)


def drafting_engine(family: str) -> d2.Engine:
    return tiny_engine(family, owner().call(make_tiny_drafter))


# Events.


def test_events_tell_the_reply_once_and_in_order() -> None:
    engine = drafting_engine("qwen3")
    config = d2.GenerationConfig(max_tokens=30, prefill_chunk=16, logprobs=2)
    events = list(d2.stream_generate(engine, LONG, config))
    reading, replying = events[:3], events[3:]
    assert [(event.prefilled, event.prompt_tokens) for event in reading] == [(16, 40), (32, 40), (40, 40)]
    assert all(event.text == "" and event.token_ids == () and event.round is None for event in reading)
    assert replying[0].round is None, "the token of the prefill pass is no round"
    assert all(event.round is not None for event in replying[1:])
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + ["length"]
    result = d2.generate(engine, LONG, config)
    assert result.token_ids == [token for event in events for token in event.token_ids]
    assert result.text == "".join(event.text for event in events) == engine.tokenizer.decode(result.token_ids)
    assert [entry.token for entry in result.logprobs] == result.token_ids
    assert all(len(entry.top) == 2 for entry in result.logprobs)


def test_nothing_runs_before_the_first_event_is_asked_for() -> None:
    engine = drafting_engine("qwen3")
    session = d2.new_session(engine)
    stream = d2.stream_generate(engine, PROMPT, SHORT, session=session)
    assert not owner().call(lambda: session.busy)
    stream.close()
    assert d2.generate(engine, PROMPT, SHORT, session=session).finish_reason == "length"


def test_events_that_were_read_or_closed_cannot_be_collected() -> None:
    engine = drafting_engine("qwen3")
    events = d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=3))
    begun = list(events)[:-1]
    closed = d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=3))
    closed.close()
    for unusable in (events, closed, iter(begun)):
        with pytest.raises(ValueError, match="events: got no last event"):
            d2.collect(engine, unusable)


def test_the_reply_ends_where_the_context_ends() -> None:
    config = {**TARGET_CONFIGS["qwen3"], "max_position_embeddings": 32}
    target = owner().call(lambda: make_target(make_mlx_model(config), config))
    engine = tiny_engine("qwen3", target=target)
    result = d2.generate(engine, LONG[:20], d2.GenerationConfig(max_tokens=100))
    assert (len(result.token_ids), result.finish_reason) == (12, "length")
    assert len(d2.generate(engine, LONG[:31], d2.GenerationConfig(max_tokens=100)).token_ids) == 1
    with pytest.raises(d2.PromptError, match="got 32 tokens, expected fewer than the model's context of 32"):
        d2.generate(engine, LONG[:32], SHORT)


@pytest.mark.parametrize("bad", [-1, 211])
def test_a_token_id_the_target_does_not_have_is_named(bad: int) -> None:
    with pytest.raises(d2.PromptError, match=rf"prompt: got token id {bad}, expected ids in 0\.\.210"):
        d2.stream_generate(tiny_engine("qwen3"), [3, bad, 5], SHORT)


# Requests do not touch each other.

REQUESTS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("long A", LONG, {"max_tokens": 40, "prefill_chunk": 16}),
    ("short B", PROMPT, {"max_tokens": 9, "sampling": SEEDED}),
    ("one token C", [5], {"max_tokens": 1}),
    ("A with penalties", LONG, {"max_tokens": 20, "sampling": PENALIZED, "logprobs": 1}),
    ("A, narrow", LONG, {"max_tokens": 40, "block_size": 3}),
    ("A, plain", LONG, {"max_tokens": 40, "mode": "plain"}),
]
FAMILIES = ["qwen3_5", "muse_glimmer"]


Replies = dict[str, dict[str, list[Any]]]


def add_event(replies: Replies, name: str, event: d2.GenerationEvent) -> None:
    """Note tokens, and proposals: the text hides a drafter that saw another request's context."""
    reply = replies.setdefault(name, {"ids": [], "proposals": []})
    reply["ids"] += event.token_ids
    if event.round is not None:
        reply["proposals"].append(list(event.round.proposal))


def replies_to(engine: d2.Engine, requests: list[tuple[str, list[int], dict[str, Any]]]) -> Replies:
    replies: Replies = {}
    for name, ids, given in requests:
        for event in d2.stream_generate(engine, ids, d2.GenerationConfig(**given)):
            add_event(replies, name, event)
    return replies


def contents(engine: d2.Engine) -> dict[str, int]:
    """Every array of the weights by identity, and all attribute names."""
    models = {"target": engine.target.text_model, "drafter": engine.drafter}
    return {f"{kind}.{name}": id(array) for kind, model in models.items() for name, array in tree_flatten(dict(model))}


@pytest.mark.parametrize("family", ["qwen3_5", slow_unless(False, "muse_glimmer")])
def test_order_does_not_matter(family: str) -> None:
    engine = drafting_engine(family)
    before = contents(engine)
    forwards = replies_to(engine, REQUESTS)
    backwards = replies_to(engine, REQUESTS[::-1])
    assert backwards == forwards
    long = forwards["long A"]["ids"]
    assert long == forwards["A, plain"]["ids"] == forwards["A, narrow"]["ids"]
    assert len(long) == 40 and len(set(long)) >= 8
    assert contents(engine) == before, "a reply changed the engine"


@pytest.mark.parametrize("family", FAMILIES)
def test_another_drafter_in_between_changes_nothing(family: str) -> None:
    engine = drafting_engine(family)
    other = replace(engine, drafter=owner().call(lambda: make_tiny_drafter(seed=9, target_layer_ids=[1, 3])))
    first = replies_to(engine, REQUESTS[:1])
    between = replies_to(other, REQUESTS[:1])
    assert between["long A"]["ids"] == first["long A"]["ids"]
    assert between["long A"]["proposals"] != first["long A"]["proposals"]
    assert replies_to(engine, REQUESTS[:1]) == first


def test_a_fresh_process_says_the_same() -> None:
    """The second process runs the requests the other way round, so nothing can have been left by the same one."""
    here = replies_to(drafting_engine("qwen3_5"), REQUESTS)
    child = subprocess.run(
        [sys.executable, "-m", "tests.generation.test_generate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(child.stdout) == here


@pytest.mark.parametrize("family", [slow_unless(False, "qwen3_5"), "muse_glimmer"])
def test_interleaved_streams_equal_their_single_runs(family: str) -> None:
    engine = drafting_engine(family)
    alone = replies_to(engine, REQUESTS)
    streams = {name: d2.stream_generate(engine, ids, d2.GenerationConfig(**given)) for name, ids, given in REQUESTS}
    together: Replies = {}
    while streams:
        for name, stream in list(streams.items()):
            event = next(stream)
            add_event(together, name, event)
            if event.finish_reason is not None:
                del streams[name]
    assert together == alone


# Cancelling.


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a reply run one event ahead of its reader, so that closing cancels at a known point."""
    monkeypatch.setattr(sys.modules["dflash2_mlx.generation.reply"], "_AHEAD", 1)
    monkeypatch.setattr(sys.modules["dflash2_mlx.device.runtime"], "_IDLE_S", 0.001)
    yield


@pytest.mark.usefixtures("in_step")
@pytest.mark.parametrize("family", ["qwen3", *FAMILIES])
def test_cancel_anywhere_and_go_on(family: str) -> None:
    """After every possible number of events the session answers the same prompt, another one, or a longer one."""
    engine = drafting_engine(family)
    config = d2.GenerationConfig(max_tokens=8, prefill_chunk=14)
    brief = d2.GenerationConfig(max_tokens=5)
    whole = list(d2.stream_generate(engine, LONG, config))
    expected = [d2.generate(engine, turn, brief).token_ids for turn in (LONG, PROMPT)]
    for count in range(1, len(whole)):
        session, number = d2.new_session(engine), count % 3
        stream = d2.stream_generate(engine, LONG, config, session=session)
        for _ in range(count):
            next(stream)
        stream.close()
        busy, reason = owner().call(lambda session=session: (session.busy, session.finish_reason))
        # One event ahead of its reader, a reply may have come to its end before it is closed.
        may_have_ended = count + 2 >= len(whole)
        assert not busy and (reason == "cancelled" or (may_have_ended and reason == whole[-1].finish_reason))
        known, position = list(session.tokens), session.memory.position
        assert len(known) - position in (0, 1), "tokens that were never read must not count as known"
        turn = [LONG, PROMPT, [*known, 4]][number]
        wanted = expected[number] if number < 2 else d2.generate(engine, turn, brief).token_ids
        again = d2.generate(engine, turn, brief, session=session)
        assert again.token_ids == wanted, f"after {count} events, turn {number}"
        if number == 2 and position >= len(LONG):  # a half-read prompt may lack context rows for a shorter one
            assert again.stats.cached_tokens == position, "the longer turn goes on from what was kept"


@pytest.mark.usefixtures("in_step")
def test_cancelled_replies_leave_no_memory_behind() -> None:
    engine = drafting_engine("qwen3_5")
    config = d2.GenerationConfig(max_tokens=12, prefill_chunk=9)
    count = len(list(d2.stream_generate(engine, LONG, config)))
    base = settled_bytes()
    for events in range(1, count):
        stream = d2.stream_generate(engine, LONG, config)
        for _ in range(events):
            next(stream)
        stream.close()
        del stream
        assert settled_bytes(base) == base, f"after {events} events"


def test_a_cancelled_stream_does_not_disturb_the_others() -> None:
    engine = drafting_engine("qwen3_5")
    alone = d2.generate(engine, LONG, d2.GenerationConfig(max_tokens=40)).token_ids
    staying = d2.stream_generate(engine, LONG, d2.GenerationConfig(max_tokens=40))
    ids: list[int] = []
    for event in staying:
        leaving = d2.stream_generate(engine, PROMPT, SHORT)
        next(leaving)
        leaving.close()
        ids += event.token_ids
    assert ids == alone


# Errors.


def test_a_session_serves_one_reply_at_a_time() -> None:
    engine = drafting_engine("qwen3")
    config = d2.GenerationConfig(max_tokens=120)
    session = d2.new_session(engine)
    first = d2.stream_generate(engine, PROMPT, config, session=session)
    ids = [*next(first).token_ids]
    with pytest.raises(d2.ConfigError, match="running reply"):
        d2.generate(engine, PROMPT, SHORT, session=session)
    ids += [token for event in first for token in event.token_ids]
    assert ids == d2.generate(engine, PROMPT, config).token_ids


def test_cancelling_a_reply_that_never_ran_leaves_the_running_one_alone() -> None:
    """Ctrl-C can close the second iterator before the owner thread has looked at its reply."""
    engine = drafting_engine("qwen3")
    config = d2.GenerationConfig(max_tokens=120)
    session = d2.new_session(engine)
    first = d2.stream_generate(engine, PROMPT, config, session=session)
    ids = [*next(first).token_ids]
    owner().call(ReplyJob(engine, d2.render_prompt(engine.tokenizer, PROMPT), SHORT, session).cancel)
    ids += [token for event in first for token in event.token_ids]
    assert ids == d2.generate(engine, PROMPT, config).token_ids


def test_an_error_inside_a_reply_reaches_its_reader_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine("qwen3_5", RIGHT)
    expected = d2.generate(engine, PROMPT, SHORT).token_ids
    staying = d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=60, mode="plain"))
    ids = [*next(staying).token_ids]
    session = d2.new_session(engine)
    calls: list[int] = []
    real = session._round

    def fail_at_third(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("the device fell over")
        real(*args)

    monkeypatch.setattr(session, "_round", fail_at_third)
    with pytest.raises(ZeroDivisionError, match="fell over"):
        d2.generate(engine, PROMPT, d2.GenerationConfig(max_tokens=60), session=session)
    ids += [token for event in staying for token in event.token_ids]
    assert ids == list(lively_reply("qwen3_5"))[:60]
    again = d2.generate(engine, PROMPT, SHORT, session=session)
    assert (again.token_ids, again.stats.cached_tokens) == (expected, 0), "after an error nothing is reused"


def test_a_session_of_the_other_kind_is_refused() -> None:
    engine = drafting_engine("qwen3")
    session = d2.new_session(engine, d2.GenerationConfig(mode="plain"))
    with pytest.raises(d2.ConfigError, match="session: got a PlainSession, expected one made for mode 'dflash2'"):
        d2.stream_generate(engine, PROMPT, SHORT, session=session)
    with pytest.raises(d2.ConfigError, match=r"block_size: got 6, expected an integer in 2\.\.5"):
        d2.stream_generate(engine, PROMPT, d2.GenerationConfig(block_size=6))


if __name__ == "__main__":
    print(json.dumps(replies_to(drafting_engine("qwen3_5"), REQUESTS[::-1])))
