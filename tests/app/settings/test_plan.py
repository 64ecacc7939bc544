"""What every dflash_* key does: honoured, or told as a fallback with its reason; nothing is taken and ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.errors import UsageError
from dflash2_app.settings.keys import DFLASH
from dflash2_app.settings.plan import (
    Plan,
    PrefixLimits,
    drafter_dtype,
    make_plan,
    plain_reason,
    usable_block_size,
    usable_view,
)
from dflash2_app.settings.resolve import resolve

ON: dict[str, Any] = {"dflash_enabled": True, "dflash_draft_model": "o/d", "dflash_verify_mode": "dflash"}


def plan_of(target: str = "o/t", ssd: Path | None = None, **model: Any) -> Plan:
    return make_plan(resolve({"model": model}), target, ssd_folder=ssd)


def typed(**values: Any) -> Plan:
    return make_plan(resolve({"command line": values, "model": ON}), "o/t")


def test_off_is_plain_decoding_without_a_reason() -> None:
    plan = plan_of(dflash_draft_model="o/d")
    assert (plan.drafter, plan.requested, plan.fallback_reason) == (None, False, None)


def test_on() -> None:
    plan = plan_of(**ON)
    assert (plan.drafter, plan.requested, plan.fallback_reason, plan.notes) == ("o/d", True, None, ())
    assert not plan.strict, "a configured drafter that fails is a fallback"
    assert typed(dflash_draft_model="o/x").strict, "one that was just named is an error"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dflash_draft_model": ""}, "DFlash is on, and no Draft Model is set"),
        ({"dflash_verify_mode": "off"}, "Verify mode is off, which is plain decoding here"),
        ({"dflash_block_size": 1}, "Runtime block size is 1, which drafts nothing"),
    ],
)
def test_fallbacks_before_loading(changes: dict[str, Any], reason: str) -> None:
    plan = plan_of(**{**ON, **changes})
    assert (plan.drafter, plan.requested, plan.fallback_reason) == (None, True, reason)
    assert plan.verify_mode == ("off" if "dflash_verify_mode" in changes else "dflash")


def test_quantization() -> None:
    assert plan_of(**ON, dflash_draft_quant_weight_bits=8).draft_bits is None, "bits alone switch nothing on"
    on = {**ON, "dflash_draft_quant_enabled": True}
    assert (plan_of(**on).draft_bits, plan_of(**on).draft_group_size) == (4, 64)
    plan = plan_of(
        **on, dflash_draft_quant_weight_bits=8, dflash_draft_quant_group_size=32, dflash_draft_quant_activation_bits=32
    )
    assert (plan.draft_bits, plan.draft_group_size, plan.activation_bits) == (8, 32, 32)
    two = plan_of(**on, dflash_draft_quant_weight_bits=2)
    assert two.draft_bits == 4 and two.notes[0].startswith("Weight Bits: 2 runs as 4")
    without = plan_of(**ON, dflash_draft_quant_activation_bits=32)
    assert without.activation_bits is None, "it is a part of Quantization"


def test_quantization_that_was_typed() -> None:
    bits = {"dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": 8}
    assert typed(**bits).draft_bits == 8
    with pytest.raises(UsageError, match="--draft-bits: got 8, expected a --drafter to quantize"):
        typed(**bits, dflash_enabled=False)
    with pytest.raises(UsageError, match="--draft-group-size: got 32, expected --draft-bits as well"):
        typed(dflash_draft_quant_group_size=32)
    assert typed(**bits, dflash_draft_quant_group_size=32).draft_group_size == 32


@pytest.mark.parametrize(
    ("bits", "backend", "expected", "told"),
    [
        (None, "metal", "auto", False), (None, "cpu", "auto", False), (16, "metal", "bfloat16", False),
        (32, "metal", "float32", False), (32, "cpu", "float32", False), (16, "cpu", "auto", True),
    ],
)  # fmt: skip
def test_activation_bits(bits: int | None, backend: str, expected: str, told: bool) -> None:
    dtype, note = drafter_dtype(bits, backend)
    assert dtype == expected and bool(note) == told


@pytest.mark.parametrize(
    ("mode", "expected", "told"),
    [
        ("dflash", "dflash", ""),
        ("adaptive", "adaptive", ""),
        ("ddtree", "dflash", "Verify mode: ddtree runs as dflash"),
        (None, "adaptive", ""),
    ],
)
def test_verify_mode(mode: str | None, expected: str, told: str) -> None:
    plan = plan_of(**{**ON, "dflash_verify_mode": mode})
    assert plan.verify_mode == expected and plan.drafter == "o/d"
    assert [note.startswith(told) for note in plan.notes] == ([True] if told else [])


def test_verify_mode_of_a_pair_that_no_record_knows() -> None:
    """Silence means adaptive in a record, as in oMLX; a pair that was just named drafts whole blocks."""
    silent = resolve({"command line": {"dflash_enabled": True, "dflash_draft_model": "o/d"}})
    assert make_plan(silent, "o/t").verify_mode == "dflash"
    assert make_plan(resolve({}, {"dflash_enabled": True}), "mini").verify_mode == "dflash"
    assert plan_of(dflash_enabled=True, dflash_draft_model="o/d").verify_mode == "adaptive"
    assert typed(dflash_verify_mode="adaptive").verify_mode == "adaptive"


@pytest.mark.parametrize(
    ("name", "option"), [("dflash_draft_window_size", "--draft-window"), ("dflash_draft_sink_size", "--draft-sink")]
)
def test_a_typed_window_or_sink_needs_a_drafter(name: str, option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}: got 9, expected a --drafter "):
        typed(**{name: 9}, dflash_enabled=False)
    assert typed(**{name: 9}).drafter == "o/d"
    assert plan_of(**{name: 9}).drafter is None, "configured, it waits"


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "clamp", "expected", "told"),
    [
        (None, 8, True, None, False), (5, 8, True, 5, False), (8, 8, True, 8, False), (16, 8, True, 8, True),
        (16, 8, False, 16, False), (5, None, True, 5, False),
    ],
)  # fmt: skip
def test_block_size(wanted: int | None, checkpoint: int | None, clamp: bool, expected: int | None, told: bool) -> None:
    plan = replace(plan_of(**ON), block_size=wanted, clamp=clamp)
    width, note = usable_block_size(plan, checkpoint)
    assert width == expected and bool(note) == told


def test_a_typed_block_size_is_not_cut() -> None:
    assert not typed(dflash_block_size=9).clamp and plan_of(**ON, dflash_block_size=9).clamp


def test_max_context_is_judged_prompt_by_prompt() -> None:
    plan = plan_of(**ON, dflash_max_ctx=10)
    told = "Max Context: the prompt has {} tokens, drafting is for fewer than 10"
    answers = [plain_reason(plan, tokens) for tokens in (9, 10, 11, 9)]
    assert answers == [None, told.format(10), told.format(11), None]
    assert plain_reason(plan_of(**ON), 10**9) is None


def test_window_and_sink() -> None:
    values = {"dflash_draft_window_size": 512, "dflash_draft_sink_size": 64}
    plan = plan_of(**ON, **values)
    assert (plan.draft_window, plan.draft_sink, plan.notes) == (512, 64, ())


@pytest.mark.parametrize(
    ("window", "sink", "trained", "expected", "told"),
    [
        (None, 0, 2048, (None, 0), 0), (512, 64, 2048, (512, 64), 0), (4096, 0, 2048, (2048, 0), 1),
        (4, 0, 2048, (8, 0), 1), (4096, 0, None, (4096, 0), 0), (None, 64, None, (None, 0), 1),
        (None, 4096, 2048, (None, 2048), 1), (16, 64, 2048, (16, 16), 1), (64, 64, None, (64, 64), 0),
    ],
)  # fmt: skip
def test_what_a_checkpoint_allows_of_window_and_sink(
    window: int | None, sink: int, trained: int | None, expected: tuple[int | None, int], told: int
) -> None:
    plan = replace(plan_of(**ON), draft_window=window, draft_sink=sink)
    *found, notes = usable_view(plan, 8, trained)
    assert tuple(found) == expected and len(notes) == told


def test_prefix_cache_limits() -> None:
    assert plan_of(**ON).prefix == PrefixLimits(4, 8 * 2**30, None, 20 * 2**30)
    values = {
        "dflash_in_memory_cache_max_entries": 2, "dflash_in_memory_cache_max_bytes": 1000, "dflash_ssd_cache": True,
        "dflash_ssd_cache_max_bytes": 2000,
    }  # fmt: skip
    assert plan_of(ssd=Path("/s"), **ON, **values).prefix == PrefixLimits(2, 1000, Path("/s"), 2000)
    nowhere = plan_of(**ON, **values)
    assert nowhere.prefix is not None and nowhere.prefix.disk_folder is None
    assert "cache.ssd_cache_dir" in nowhere.notes[0]
    off = plan_of(ssd=Path("/s"), **ON, dflash_in_memory_cache=False, dflash_ssd_cache=True)
    assert off.prefix is None and "SSD cache: has no effect without the In-memory cache" in off.notes


# Values that differ from the default, one for each key: taken away, something must look different.
TRIED: dict[str, Any] = {
    "dflash_enabled": False, "dflash_draft_model": "o/x", "dflash_draft_quant_enabled": True,
    "dflash_draft_quant_weight_bits": 8, "dflash_draft_quant_activation_bits": 32,
    "dflash_draft_quant_group_size": 32, "dflash_max_ctx": 7, "dflash_in_memory_cache": False,
    "dflash_in_memory_cache_max_entries": 7, "dflash_in_memory_cache_max_bytes": 7, "dflash_ssd_cache": True,
    "dflash_ssd_cache_max_bytes": 7, "dflash_draft_window_size": 7, "dflash_draft_sink_size": 7,
    "dflash_block_size": 7, "dflash_verify_mode": "ddtree",
}  # fmt: skip


@pytest.mark.parametrize("name", [key.name for key in DFLASH])
def test_no_key_is_without_effect(name: str) -> None:
    about = {**ON, "dflash_draft_quant_enabled": name != "dflash_draft_quant_enabled"}
    before = plan_of(ssd=Path("/s"), **about)
    assert before != plan_of(ssd=Path("/s"), **{**about, name: TRIED[name]})
