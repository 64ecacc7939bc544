"""Settings that change while the server runs: what holds at once, what is loaded anew, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dflash2_app.web.http.errors import ApiError
from dflash2_app.web.serving.pool import ModelPool, Refreshed

from .machine import GREEDY, ON, Machine, machine

__all__ = ["machine"]


@pytest.fixture
def pair(machine: Machine) -> dict[str, Any]:
    """A model A with a drafter D; its record."""
    machine.model("A")
    record = {**ON, **GREEDY, "dflash_draft_model": str(machine.drafter("D"))}
    machine.configure(A=record)
    return record


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


async def settled(pool: ModelPool) -> None:
    """Wait until nothing is loaded any more."""
    for _ in range(3000):
        if not pool._tasks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something still loads")


def test_what_is_not_of_the_engine_holds_from_the_next_request_on(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue())
        async with pool.using("A") as first:
            assert (first.defaults.max_tokens, first.defaults.block_size) == (8, None)
            assert pool.peek("a").engine is first.engine and pool.peek("mini") is None
            machine.configure(A={**pair, "max_tokens": 9, "dflash_block_size": 3, "dflash_max_ctx": 5})
            async with pool.using("A") as second:
                assert (second.defaults.max_tokens, second.defaults.block_size, second.pair.plan.max_ctx) == (9, 3, 5)
                assert second.engine is first.engine and second.grammars is first.grammars
            assert first.defaults.max_tokens == 8, "what has begun stays as it was"
        assert len(machine.loads) == 1 and pool.state("A")["block_size"] == 3
        machine.configure(A={**pair, "temperature": 0.5})
        assert await pool.refresh() == Refreshed(changed=("A",))
        assert await pool.refresh() == Refreshed()

    run(work)


def test_another_engine_is_loaded_for_the_next_request(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue())
        await pool.load("A")
        machine.configure(A={**pair, "dflash_enabled": False})
        changes = await pool.refresh()
        assert changes == Refreshed(changed=("A",), requires_reload=("A",), auto_unloaded=("A",))
        assert changes.of("A") == {"requires_reload": True, "auto_unloaded": True, "auto_reloaded": False}
        state = pool.state("A")
        assert not state["loaded"] and not state["requires_reload"] and state["dflash_requested"] is False
        async with pool.using("A") as served:
            assert not served.report.dflash_active
        assert machine.loaded == [("A", True), ("A", False)]

    run(work)


def test_a_busy_engine_finishes_first(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue(), most_loaded=1)
        async with pool.using("A") as old:
            machine.configure(A={**pair, "dflash_enabled": False})
            changes = await pool.refresh()
            assert (changes.requires_reload, changes.auto_unloaded) == (("A",), ())
            assert pool.state("A")["requires_reload"] and not pool.state("A")["loaded"]
            asking = asyncio.create_task(pool.load("A"))
            await asyncio.sleep(0.1)
            assert not asking.done() and len(machine.loads) == 1, "there is room for one"
            assert old.report.dflash_active
        assert (await asking)["effective_engine"] == "plain"
        assert not pool.state("A")["requires_reload"] and pool._engines.leaving == []

    run(work)


def test_a_pinned_one_is_loaded_again(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.configure(A={**pair, "is_pinned": True})
        pool = ModelPool(catalogue=machine.catalogue(), most_loaded=1)
        await pool.load_pinned()
        assert machine.loaded == [("A", True)]
        with pytest.raises(ApiError, match="no room for mini: every loaded model is in use or pinned"):
            await pool.load("mini")
        machine.configure(A={**pair, "is_pinned": True, "dflash_draft_window_size": 7})
        assert (await pool.refresh()).of("A") == {
            "requires_reload": True, "auto_unloaded": True, "auto_reloaded": True,
        }  # fmt: skip
        await settled(pool)
        assert pool.state("A")["loaded"] and len(machine.loads) == 2

    run(work)


def test_what_the_endpoint_set_holds_until_the_settings_say_otherwise(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.configure(A={**pair, "ttl_seconds": 60})
        pool = ModelPool(catalogue=machine.catalogue())
        assert (pool.state("A")["pinned"], pool.state("A")["ttl_seconds"]) == (False, 60)
        pool.change("A", pinned=True, ttl_s=0)
        assert (pool.state("A")["pinned"], pool.state("A")["ttl_seconds"]) == (True, None)
        machine.configure(A={**pair, "ttl_seconds": 60, "temperature": 0.3})
        await pool.follow()
        assert (pool.state("A")["pinned"], pool.state("A")["ttl_seconds"]) == (True, None)
        machine.configure(A={**pair, "ttl_seconds": 30, "is_pinned": True})
        await pool.follow()
        machine.configure(A={**pair, "ttl_seconds": 30})
        await pool.follow()
        assert (pool.state("A")["pinned"], pool.state("A")["ttl_seconds"]) == (False, 30)
        assert ModelPool(catalogue=machine.catalogue(), ttl_s=5).state("A")["ttl_seconds"] == 5, "the option wins"

    run(work)


def test_profiles_share_an_engine_or_have_their_own(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.profile("A", "hot", {"temperature": 0.9, "dflash_block_size": 2})
        machine.profile("A", "bare", {"dflash_enabled": False})
        pool = ModelPool(catalogue=machine.catalogue(), most_loaded=1)
        async with pool.using("A") as base, pool.using("a:hot") as hot:
            assert hot.engine is base.engine and hot.name == "A:hot"
            assert (base.defaults.sampling.temperature, hot.defaults.sampling.temperature) == (0, 0.9)
            assert (base.defaults.block_size, hot.defaults.block_size) == (None, 2)
            assert hot.defaults.max_tokens == 8, "what the profile does not say is the model's"
            assert pool.state("A:hot")["loaded"] and not pool.state("A:bare")["loaded"]
            machine.configure(A={**pair, "dflash_draft_window_size": 7})
            assert (await pool.refresh()).requires_reload == ("A", "A:hot")
            assert [pool.state(name)["requires_reload"] for name in ("A", "A:hot", "A:bare")] == [True, True, False]
            machine.configure(A=pair)
        async with pool.using("A:bare") as bare:
            assert not bare.report.dflash_active and not pool.state("A")["loaded"]
        assert machine.loaded == [("A", True), ("A", False)]
        assert machine.base.joinpath("model_settings.json").read_text().count("false") == 0, "nothing is written"

    run(work)


def test_an_engine_stays_for_the_profile_that_still_wants_it(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.profile("A", "seven", {"dflash_draft_window_size": 7})
        machine.configure(A={**pair, "dflash_draft_window_size": 7})
        pool = ModelPool(catalogue=machine.catalogue())
        await pool.load("A")
        machine.configure(A={**pair, "dflash_draft_window_size": 6})
        changes = await pool.refresh()
        assert (changes.requires_reload, changes.auto_unloaded) == (("A",), ())
        assert pool.state("A:seven")["loaded"] and not pool.state("A")["loaded"]

    run(work)


def test_models_come_and_go(machine: Machine) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue())
        folder = machine.model("A")
        with pytest.raises(ApiError, match="expected one of: mini"):
            await pool.load("A")
        assert (await pool.refresh(rescan=True)).added == ("A",)
        async with pool.using("A"):
            (folder / "config.json").rename(folder / "gone.json")
            assert (await pool.refresh(rescan=True)).removed == ("A",)
            assert pool.names == ["mini"] and len(pool._engines.leaving) == 1
        assert pool._engines.leaving == []
        (folder / "gone.json").rename(folder / "config.json")
        (folder / "model.safetensors").unlink()
        await pool.refresh(rescan=True)
        with pytest.raises(ApiError, match="model: got 'A', expected another one: got no model") as refused:
            await pool.load("A")
        assert refused.value.status == 404

    run(work)


def test_settings_that_become_unusable_are_refused_and_mended(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue())
        for wrong in (-1, -2):
            machine.configure(A={**pair, "temperature": wrong})
            with pytest.raises(
                ApiError, match=rf"A cannot be loaded: A: temperature \(model\): got {wrong}"
            ) as refused:
                await pool.load("A")
            assert refused.value.status == 503 and f"got {wrong}" in pool.state("A")["problem"]
        machine.configure(A=pair)
        assert (await pool.load("A"))["problem"] is None

    run(work)


def test_a_model_is_loaded_anew_on_request(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        pool = ModelPool(catalogue=machine.catalogue())
        assert not (await pool.reload("A"))["loaded"] and machine.loads == [], "what is not loaded stays so"
        await pool.load("A")
        async with pool.using("A") as old:
            assert (await pool.reload("A"))["loaded"]
            async with pool.using("A") as new:
                assert new.engine is not old.engine
            assert pool.state("A")["requires_reload"], "the old one is still there"
        assert not pool.state("A")["requires_reload"] and len(machine.loads) == 2

    run(work)


def test_what_is_being_loaded_when_its_settings_change_goes_again(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.gate.clear()
        pool = ModelPool(catalogue=machine.catalogue())
        asking = asyncio.create_task(pool.load("A"))
        while not machine.loads:
            await asyncio.sleep(0.01)
        machine.configure(A={**pair, "dflash_enabled": False})
        await pool.refresh()
        asking.cancel()
        machine.gate.set()
        assert (await pool.load("A"))["effective_engine"] == "plain"
        assert pool._engines.leaving == [] and machine.loaded == [("A", True), ("A", False)]

    run(work)


def test_a_configured_drafter_that_fails_is_a_fallback_with_its_reason(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.configure(A={**pair, "dflash_draft_model": "nobody/nothing"})
        pool = ModelPool(catalogue=machine.catalogue())
        state = await pool.load("A")
        assert (state["effective_engine"], state["dflash_requested"], state["dflash_active"]) == ("plain", True, False)
        assert state["dflash_fallback_reason"].startswith("the drafter cannot be used: ")
        machine.configure(A={**pair, "dflash_verify_mode": "off"})
        state = await pool.load("A")
        assert state["dflash_fallback_reason"] == "Verify mode is off, which is plain decoding here"
        assert state["settings"]["dflash_verify_mode"] == {"value": "off", "origin": "model"}

    run(work)


def test_the_default_answers_for_unknown_names_where_omlx_would(machine: Machine, pair: dict[str, Any]) -> None:
    async def work() -> None:
        machine.configure(A={**pair, "is_default": True})
        machine.shared(model={"model_fallback": True})
        pool = ModelPool(catalogue=machine.catalogue())
        async with pool.using("gpt-9") as served:
            assert served.name == "A"
            assert served.notes == ("model: 'gpt-9' is not known here: the default model A was used",)
        async with pool.using("A") as served:
            assert served.notes == ()

    run(work)
