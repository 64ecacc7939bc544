"""Which models stay in memory: order of use, pins, idle limits, users, failures."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.serving.pool import ModelPool

from .models import ReadySource, Served, tiny_served


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def source(name: str, **options: Any) -> ReadySource:
    return ReadySource(name, lambda: tiny_served(name), **options)


def loaded(pool: ModelPool) -> list[str]:
    return [state["id"] for state in pool.status() if state["loaded"]]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_the_least_recently_used_goes_first() -> None:
    async def work() -> None:
        pool = ModelPool([source(name) for name in "abc"], most_loaded=2, clock=Clock())
        await pool.load("a")
        await pool.load("b")
        await pool.load("a")
        await pool.load("c")
        assert loaded(pool) == ["a", "c"]

    run(work())


def test_bytes_are_counted_and_what_never_fits_is_refused() -> None:
    async def work() -> None:
        sizes = {"a": 4, "b": 5, "c": 11, "d": 6, "unknown": None}
        pool = ModelPool([source(name, weight_bytes=size) for name, size in sizes.items()], most_bytes=10)
        await pool.load("a")
        await pool.load("d")
        assert loaded(pool) == ["a", "d"]
        await pool.load("b")
        assert loaded(pool) == ["b"]
        await pool.load("unknown")
        with pytest.raises(ApiError, match="c needs 11 bytes, expected at most 10"):
            await pool.load("c")

    run(work())


def test_pinned_and_used_models_stay() -> None:
    async def work() -> None:
        pool = ModelPool([source(name) for name in "abc"], most_loaded=1)
        async with pool.using("a") as served:
            assert served.name == "a"
            with pytest.raises(ApiError, match="no room for b"):
                await pool.load("b")
            with pytest.raises(ApiError, match="used by 1 request") as refused:
                await pool.unload("a")
            assert refused.value.status == 409
        pool.change("a", pinned=True)
        with pytest.raises(ApiError, match="in use or pinned"):
            await pool.load("b")
        pool.change("a", pinned=False)
        await pool.load("b")
        assert loaded(pool) == ["b"]
        assert (await pool.unload("b"))["loaded"] is False and loaded(pool) == []

    run(work())


def test_idle_models_go_after_their_time() -> None:
    async def work() -> None:
        clock = Clock()
        pool = ModelPool([source(name) for name in "abc"], ttl_s=50, clock=clock)
        for name in "abc":
            await pool.load(name)
        pool.change("a", ttl_s=0)
        pool.change("c", pinned=True)
        assert pool.unload_idle() == []
        async with pool.using("b"):
            clock.now += 100
            assert pool.unload_idle() == []
        clock.now += 100
        assert pool.unload_idle() == ["b"] and loaded(pool) == ["a", "c"]

    run(work())


def test_many_ask_and_one_loads() -> None:
    async def work() -> None:
        one = source("a", load_s=0.05)
        pool = ModelPool([one])

        async def ask() -> Served:
            async with pool.using("a") as served:
                return served

        found = await asyncio.gather(*(ask() for _ in range(5)))
        assert one.loads == 1 and all(served is found[0] for served in found)

    run(work())


def test_who_asked_may_leave_and_the_model_still_comes() -> None:
    async def work() -> None:
        pool = ModelPool([source("a", load_s=0.1)])
        asking = asyncio.create_task(pool.load("a"))
        await asyncio.sleep(0.03)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for _ in range(100):
            if loaded(pool):
                break
            await asyncio.sleep(0.01)
        assert loaded(pool) == ["a"] and pool.status()[0]["active_requests"] == 0

    run(work())


def test_a_failed_load_is_told_and_tried_again() -> None:
    async def work() -> None:
        one = source("a", fault=ValueError("weights:\n got none"))
        pool = ModelPool([one])
        with pytest.raises(ApiError, match="a cannot be loaded: weights: got none") as refused:
            await pool.load("a")
        assert refused.value.status == 503
        assert pool.status()[0]["problem"] == "weights: got none" and not pool.status()[0]["is_loading"]
        one.fault = None
        assert (await pool.load("a"))["problem"] is None
        with pytest.raises(ApiError, match="expected one of: a"):
            await pool.load("b")

    run(work())


def test_a_slow_end_of_a_model_holds_nobody_up() -> None:
    """A prefix cache that still has to write to a disk ends with its model."""
    ending, may_end = threading.Event(), threading.Event()

    class Slow:
        def __del__(self) -> None:
            ending.set()
            may_end.wait(20)

    async def work() -> None:
        pool = ModelPool([source("a"), source("b")], most_loaded=1, clock=Clock())
        async with pool.using("a") as served:
            object.__setattr__(served, "slow", Slow())
        del served
        asked = asyncio.create_task(pool.load("b"))
        while not ending.is_set():
            await asyncio.sleep(0.01)  # the loop goes on
        await asyncio.sleep(0.05)
        assert not asked.done() and loaded(pool) == [], "b waits for the memory"
        may_end.set()
        await asked
        assert loaded(pool) == ["b"]

    run(work())


def test_models_in_memory_share_what_is_left_for_prefix_caches() -> None:
    caches = {name: d2.PrefixCache(max_bytes=2**30) for name in "ab"}

    def make(name: str) -> Served:
        served = tiny_served(name, cache=caches[name])
        held = replace(served.pair.loaded, prefix_wanted=2**30, needs_bytes=2**30)
        return replace(served, pair=replace(served.pair, loaded=held))

    async def work() -> None:
        pool = ModelPool([ReadySource(name, functools.partial(make, name)) for name in "ab"], most_bytes=3 * 2**30)
        await pool.load("a")
        assert caches["a"].max_bytes == 2**30
        await pool.load("b")
        assert [cache.max_bytes for cache in caches.values()] == [2**29, 2**29]
        await pool.unload("a")
        assert caches["b"].max_bytes == 2**30

    run(work())
