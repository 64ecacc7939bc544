"""Replies with a prefix cache: the same tokens and the same proposals as without one, and less to read (CK-4, CK-21).

The drafter is random, so its proposals depend on every context row it can see: equal proposals in every round mean
that a hit drafts exactly as a session that read everything itself.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from tests.engines import settled_bytes, tiny_engine
from tests.runs import PROMPT, lively_target, slow_unless, thinned
from tests.tiny import make_tiny_drafter

ROOT = Path(__file__).resolve().parents[2]
FIRST = [*PROMPT, *range(30, 51)]
NEW = [11, 48, 150, 2, 61, 62, 63, 90, 17, 133]
CONFIG = d2.GenerationConfig(max_tokens=12)
PLAIN = replace(CONFIG, mode="plain")
N, TOKENS = len(FIRST), 12


def engine_of(family: str, kind: str = "f32", **changes: Any) -> d2.Engine:
    drafter = owner().call(lambda: make_tiny_drafter(**changes))
    target = owner().call(lambda: lively_target(family, kind))
    return replace(tiny_engine(family, drafter, target=target), fingerprint=f"{family} {kind} {changes}")


def told(engine: d2.Engine, prompt: Sequence[int], config: d2.GenerationConfig, **settings: Any) -> tuple[Any, Any]:
    """All that a reply did, round by round; and its last statistics."""
    events = list(d2.stream_generate(engine, list(prompt), config, **settings))
    rounds = [(event.token_ids, event.round) for event in events if event.prefilled == len(prompt)]
    return rounds, events[-1].stats


def said(rounds: Any) -> list[int]:
    return [token for tokens, _ in rounds for token in tokens]


def assert_same(
    engine: d2.Engine, prompt: Sequence[int], config: d2.GenerationConfig, cached: int, **given: Any
) -> Any:
    """The reply with the cache is that without, and so much of the prompt was not read."""
    fresh, cold = told(engine, prompt, config)
    rounds, stats = told(engine, prompt, config, **given)
    assert [r for r in rounds if r[0]] == [r for r in fresh if r[0]]
    assert (stats.cached_tokens, cold.cached_tokens) == (cached, 0)
    return said(rounds)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen3_5", CONFIG),
        ("muse_glimmer", CONFIG),
        ("qwen3", CONFIG),
        ("qwen3_5", PLAIN),
        *(
            slow_unless(False, *case)
            for case in (("qwen3_5_moe", CONFIG), ("llama_sliding", CONFIG), ("muse_glimmer", PLAIN))
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.mode,
)
def test_turns_repeats_and_branches(family: str, config: d2.GenerationConfig, tmp_path: Path) -> None:
    engine, cache = engine_of(family), d2.PrefixCache(disk=tmp_path)

    def same(prompt: list[int], cached: int) -> list[int]:
        found = assert_same(engine, prompt, config, cached, prefix_cache=cache)
        cache.flush()  # a slow disk leaves prefixes out, which is another matter
        return found

    reply = same(FIRST, 0)
    again = same(FIRST, N - 1)  # its last token must be fed again
    assert again == reply
    second = [*FIRST, *reply, *NEW]
    same(second, N + TOKENS - 1)
    # As if the template had rewritten the reply: the prompt's end is still known.
    known = N if family == "qwen3" else N - 1  # attention can be cut back to any length
    same([*FIRST, 7, *NEW], known)
    same(NEW, 0)
    assert cache.take_notes() == []
    assert cache.disk_nbytes == sum(file.stat().st_size for file in tmp_path.iterdir()) > 0

    # The same after a restart, from disk.
    assert assert_same_after_restart(engine, [*FIRST, *reply, *NEW[::-1]], config, tmp_path) == known + TOKENS


def assert_same_after_restart(engine: d2.Engine, prompt: list[int], config: d2.GenerationConfig, disk: Path) -> int:
    restarted = d2.PrefixCache(disk=disk)
    fresh, _ = told(engine, prompt, config)
    rounds, stats = told(engine, prompt, config, prefix_cache=restarted)
    assert [r for r in rounds if r[0]] == [r for r in fresh if r[0]]
    assert restarted.take_notes() == []
    return stats.cached_tokens


@pytest.mark.parametrize(("family", "kind"), thinned(["qwen3_5", "muse_glimmer"], ["4bit", "bf16"]))
def test_other_formats_and_their_way_to_disk(family: str, kind: str, tmp_path: Path) -> None:
    engine, cache = engine_of(family, kind), d2.PrefixCache(disk=tmp_path)
    reply = assert_same(engine, FIRST, CONFIG, 0, prefix_cache=cache)
    second = [*FIRST, *reply, *NEW]
    assert_same(engine, second, CONFIG, N + TOKENS - 1, prefix_cache=cache)
    cache.flush()
    assert assert_same_after_restart(engine, second, CONFIG, tmp_path) >= N + TOKENS - 1


@pytest.mark.parametrize("family", ["qwen3_5", "llama_sliding"])
def test_a_session_and_a_cache_together(family: str) -> None:
    # A dirty session that was used for something else gets the stored prefix; one that knows more keeps its own.
    engine, cache = engine_of(family), d2.PrefixCache()
    session = d2.new_session(engine)
    reply = assert_same(engine, FIRST, CONFIG, 0, prefix_cache=cache)
    assert_same(engine, NEW, CONFIG, 0, session=session, prefix_cache=cache)
    second = [*FIRST, *reply, *NEW]
    next_reply = assert_same(engine, second, CONFIG, N + TOKENS - 1, session=session, prefix_cache=cache)
    cache.clear()
    third = [*second, *next_reply, 5, 6]
    assert_same(engine, third, CONFIG, len(third) - 3, session=session, prefix_cache=cache)


def test_plain_and_drafted_replies_share_what_they_can() -> None:
    engine, cache = engine_of("qwen3_5"), d2.PrefixCache()
    told(engine, FIRST, PLAIN, prefix_cache=cache)
    assert_same(engine, FIRST, CONFIG, 0, prefix_cache=cache)  # no drafter context was kept: read again
    assert_same(engine, FIRST, PLAIN, N - 1, prefix_cache=cache)
    assert_same(engine, FIRST, CONFIG, N - 1, prefix_cache=cache)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_several_conversations_at_once(family: str) -> None:
    engine, cache = engine_of(family), d2.PrefixCache(max_entries=16)
    prompts = [[*FIRST, marker, *NEW] for marker in (1, 2, 3)]
    expected = [told(engine, prompt, CONFIG)[0] for prompt in prompts]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(2):
            found[number] = told(engine, prompts[number], CONFIG, prefix_cache=cache)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, rounds in enumerate(expected):
        assert said(found[number][0]) == said(rounds)
        assert found[number][1].cached_tokens == len(prompts[number]) - 1


def test_other_models_never_match() -> None:
    cache = d2.PrefixCache()
    engines = [engine_of("qwen3"), replace(engine_of("qwen3"), fingerprint="other weights")]
    told(engines[0], FIRST, CONFIG, prefix_cache=cache)
    assert told(engines[1], FIRST, CONFIG, prefix_cache=cache)[1].cached_tokens == 0
    assert tiny_engine("qwen3").fingerprint != tiny_engine("qwen3").fingerprint


@pytest.mark.parametrize("how", ["stop", "cut", "cancel"])
def test_nothing_is_kept_past_the_end(how: str) -> None:
    # CK-10: the tokens that a block held behind the end are not part of any prefix.
    engine, cache = engine_of("qwen3_5"), d2.PrefixCache()
    rounds, _ = told(engine, FIRST, CONFIG)
    reply = said(rounds)
    end = next(i for i in range(4, TOKENS) if reply[i] not in reply[:i])
    config = replace(CONFIG, stop_token_ids=(reply[end],)) if how == "stop" else CONFIG
    if how == "cut":
        config = replace(CONFIG, stop=(f"<{reply[end]}>",))
    stream = d2.stream_generate(engine, FIRST, config, prefix_cache=cache)
    for event in stream:
        if how == "cancel" and event.round is not None:
            break
    stream.close()
    longest = max(len(entry.extent.tokens) for entry in cache._entries.values())
    assert longest <= (N - 1 if how == "cancel" else N + end)
    assert_same(engine, [*FIRST, *reply[:end], *NEW], CONFIG, N - 1 if how == "cancel" else N + end, prefix_cache=cache)


# Limits.


def test_the_oldest_goes_first_and_use_counts() -> None:
    engine, cache = engine_of("qwen3"), d2.PrefixCache(max_entries=2)
    one, two, three = ([marker, *FIRST] for marker in (1, 2, 3))
    config = replace(CONFIG, max_tokens=1)  # then the reply's end adds nothing beyond the prompt
    cached = [told(engine, prompt, config, prefix_cache=cache)[1].cached_tokens for prompt in (one, two, one, three)]
    assert (cached, len(cache)) == ([0, 0, N, 0], 2)
    assert told(engine, one, config, prefix_cache=cache)[1].cached_tokens == N
    assert told(engine, two, config, prefix_cache=cache)[1].cached_tokens == 0


def bytes_besides() -> int:
    """What a cache holds in memory more than it counts."""
    engine, long, config = engine_of("qwen3_5"), FIRST * 20, replace(CONFIG, max_tokens=1)
    told(engine, long, CONFIG)
    told(engine, long, config, prefix_cache=d2.PrefixCache())  # what is made once is there now
    before, cache = settled_bytes(), d2.PrefixCache()
    told(engine, long, config, prefix_cache=cache)
    return settled_bytes(before + cache.nbytes) - before - cache.nbytes


def test_a_cache_holds_no_more_than_it_counts() -> None:
    # In a process of its own: after other tests 25,856 bytes more were seen, which nothing has explained yet.
    command = [sys.executable, "-m", "tests.prefix_cache.test_cache"]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    # Small allocations are rounded up: 1,024 bytes here. A slice that keeps all of its buffer adds 30 KB.
    assert 0 <= int(child.stdout) < 16_384


def test_bytes_are_counted_exactly_and_bounded() -> None:
    engine, long = engine_of("qwen3_5"), FIRST * 20
    told(engine, long, CONFIG)
    told(engine, long, replace(CONFIG, max_tokens=1), prefix_cache=d2.PrefixCache())  # what is made once is there now
    before = settled_bytes()
    cache = d2.PrefixCache()
    told(engine, long, replace(CONFIG, max_tokens=1), prefix_cache=cache)
    entries = list(cache._entries.values())
    length = entries[-1].extent.tokens.size
    buffers = entries[-1].snapshot.state.full
    assert buffers.capacity == length, "spare room was kept"
    assert cache.nbytes == sum(array.nbytes for entry in entries for array in entry.snapshot.arrays())
    del entries, buffers

    small = d2.PrefixCache(max_bytes=cache.nbytes // len(cache))
    for marker in range(3):
        told(engine, [marker, *long[1:]], replace(CONFIG, max_tokens=1), prefix_cache=small)
        assert small.nbytes <= cache.nbytes // len(cache)
    whole = len(cache)
    cache.resize(cache.nbytes)
    assert len(cache) == whole
    cache.resize(cache.nbytes - 1)
    assert len(cache) == whole - 1 and cache.nbytes <= cache.max_bytes
    tiny = d2.PrefixCache(max_bytes=1000)
    rounds, stats = told(engine, FIRST, CONFIG, prefix_cache=tiny)
    assert len(tiny) == 0 and said(rounds)
    assert "max_bytes is 1000" in stats.notices[0]
    cache.clear()
    small.clear()
    assert settled_bytes(before) - before < 65536


def test_an_attention_only_pair_keeps_one_prefix_per_conversation() -> None:
    # It can be cut back anywhere, so the later one replaces the earlier: no memory for what it can do itself.
    engine = engine_of("qwen3", layer_types=["full_attention"] * 2)
    cache, text = d2.PrefixCache(), list(FIRST)
    for _ in range(3):
        text = [*text, *said(told(engine, text, CONFIG, prefix_cache=cache)[0]), 9]
        assert len(cache) == 1
    assert_same(engine, text[: N + 3], CONFIG, N + 2, prefix_cache=cache)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_entries": 0}, "max_entries: got 0, expected an integer >= 1"),
        ({"max_bytes": 1.5}, "max_bytes: got 1.5, expected an integer >= 1"),
        ({"disk_max_bytes": -1}, "disk_max_bytes: got -1, expected an integer >= 1"),
        ({"disk": "/proc/no"}, "disk: got '/proc/no', expected a folder that can be written"),
    ],
)
def test_wrong_limits(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(d2.ConfigError, match=message):
        d2.PrefixCache(**limits)


def test_threads_that_never_touched_mlx_may_hold_and_drop_a_cache(tmp_path: Path) -> None:
    # CK-17: stored by one reply, written by another thread, read by a third, dropped here.
    engine, cache = engine_of("muse_glimmer"), d2.PrefixCache(disk=tmp_path)
    told(engine, FIRST, CONFIG, prefix_cache=cache)
    cache.flush()
    found = []

    def read_back() -> None:
        restarted = d2.PrefixCache(disk=tmp_path)
        found.append(told(engine, FIRST, CONFIG, prefix_cache=restarted))
        restarted.clear()

    thread = threading.Thread(target=read_back)
    thread.start()
    thread.join()
    assert found[0][1].cached_tokens == N - 1
    del cache
    assert owner().call(lambda: mx.ones((2,)).sum().item()) == 2.0


if __name__ == "__main__":
    print(bytes_besides())
