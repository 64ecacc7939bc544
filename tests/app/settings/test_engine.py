"""What is configured reaches the library, with flags on top, and every fallback has its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_app.engine import setup as engine
from dflash2_app.engine.loading import Loaded, share_prefix_memory
from dflash2_app.engine.memory_fit import Room, check_memory, prefix_shares, weight_bytes
from dflash2_app.engine.setup import prepare
from dflash2_app.settings.files import SettingsError

from ..conftest import Run
from ..fake_library import BLOCK_SIZE, FakeLibrary
from .samples import write

ON: dict[str, Any] = {"dflash_enabled": True, "dflash_draft_model": "o/d", "dflash_verify_mode": "dflash"}


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Pairs whose configs were checked; the answer is a drafter that is not quantized."""
    checked: list[tuple[str, str]] = []

    class Config:
        quantization, block_size, sliding_window = None, BLOCK_SIZE, 8

    def check(target: str, drafter: str) -> Any:
        checked.append((target, drafter))
        return Config

    monkeypatch.setattr(d2, "check_pairing", check)
    return checked


def configure(base: Path, **models: dict[str, Any]) -> None:
    write(base, {"version": 1, "models": {name.replace("__", "--"): record for name, record in models.items()}})


def test_a_configured_pair_is_loaded(run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]) -> None:
    configure(base, o__t={**ON, "dflash_draft_quant_enabled": True, "dflash_draft_quant_group_size": 32,
                          "dflash_block_size": 3, "temperature": 0.5, "top_k": 7, "max_tokens": 9})  # fmt: skip
    ran = run("generate", "x", "--model", "o/t")
    assert ran.code == 0
    assert library.loads == [
        {"target": "o/t", "drafter": "o/d", "draft_bits": 4, "draft_group_size": 32, "target_dtype": "auto"}
    ]
    assert pairs == [("o/t", "o/d")]
    config = library.requests[0][1]
    assert (config.block_size, config.max_tokens, config.mode) == (3, 9, "auto")
    assert (config.sampling.temperature, config.sampling.top_k) == (0.5, 7)
    assert "plain decoding" not in ran.err


def test_flags_win_over_what_is_configured(
    run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]
) -> None:
    configure(base, o__t={**ON, "dflash_block_size": 3, "temperature": 0.5, "max_tokens": 9})
    flags = ["--block-size", "2", "--temperature", "0.25", "--max-tokens", "5", "--draft-bits", "8", "--drafter", "o/x"]
    run("generate", "x", "--model", "o/t", *flags)
    assert library.loads[0] | {"drafter": "o/x", "draft_bits": 8} == library.loads[0]
    config = library.requests[0][1]
    assert (config.block_size, config.max_tokens, config.sampling.temperature) == (2, 5, 0.25)


def test_the_default_model(run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]) -> None:
    configure(base, o__t={**ON, "is_default": True})
    ran = run("generate", "x")
    assert "note: no --model given: using the default model o--t" in ran.err
    assert library.loads[0]["target"] == "o/t" and library.loads[0]["drafter"] == "o/d"
    assert "default model o--t" in run("demo", "x", "--json").err
    assert library.loads[1]["target"] == "o/t"


def test_an_alias_and_a_base_path(run: Run, library: FakeLibrary, tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    configure(tmp_path, o__t={**ON, "model_alias": "me"})
    run("generate", "x", "--model", "me", "--base-path", tmp_path)
    assert library.loads[0]["target"] == "o/t"


def test_nothing_configured_is_as_before(run: Run, library: FakeLibrary) -> None:
    ran = run("generate", "x")
    assert "note: no --model given: using the embedded mini pair" in ran.err
    assert library.loads[0] == {
        "target": "mini", "drafter": None, "draft_bits": None, "draft_group_size": 64, "target_dtype": "auto",
    }  # fmt: skip
    assert "no --drafter given: plain decoding" in run("generate", "x", "--model", "o/t").err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dflash_draft_model": None}, "DFlash is on, and no Draft Model is set"),
        ({"dflash_verify_mode": "off"}, "Verify mode is off, which is plain decoding here"),
        ({"dflash_block_size": 1}, "Runtime block size is 1, which drafts nothing"),
    ],
)
def test_a_fallback_says_why(run: Run, library: FakeLibrary, base: Path, changes: dict[str, Any], reason: str) -> None:
    configure(base, o__t={**ON, **changes})
    ran = run("generate", "x", "--model", "o/t", "--json")
    shown = json.loads(ran.out)
    assert (shown["mode"], shown["fallback_reason"]) == ("plain", reason)
    assert f"note: plain decoding: {reason}" in ran.err
    refused = run("demo", "x", "--model", "o/t")
    assert refused.code == 2 and reason in refused.error


def test_dflash_off_is_told(run: Run, library: FakeLibrary, base: Path) -> None:
    configure(base, o__t={**ON, "dflash_enabled": False})
    assert "note: DFlash is off for o--t: plain decoding" in run("generate", "x", "--model", "o/t").err


def test_a_configured_drafter_that_fails_is_a_fallback(run: Run, library: FakeLibrary, base: Path) -> None:
    """`o/d` cannot be had: the Hub is out of reach in tests."""
    configure(base, o__t=ON)
    ran = run("generate", "x", "--model", "o/t", "--json")
    reason = json.loads(ran.out)["fallback_reason"]
    assert reason.startswith("the drafter cannot be used: ") and f"note: plain decoding: {reason}" in ran.err
    assert [load["drafter"] for load in library.loads] == [None]


def test_a_drafter_that_was_named_and_fails_is_an_error(run: Run, library: FakeLibrary, base: Path) -> None:
    configure(base, o__t=ON)
    library.load_fault = d2.PairError("hidden_size: got 1 in the drafter, expected the target's 2")
    ran = run("generate", "x", "--model", "o/t", "--drafter", "o/d")
    assert ran.code == 1 and ran.error.startswith("hidden_size: got 1") and len(library.loads) == 1


def test_a_block_size_that_is_too_large_is_cut_and_told(
    run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]
) -> None:
    configure(base, o__t={**ON, "dflash_block_size": 16})
    ran = run("generate", "x", "--model", "o/t")
    assert library.requests[0][1].block_size == BLOCK_SIZE
    assert "note: Runtime block size: 16 was cut to 4, the most this drafter was trained for" in ran.err


def test_values_that_cannot_be_used_stop_before_loading(run: Run, library: FakeLibrary, base: Path) -> None:
    configure(base, o__t={**ON, "dflash_block_size": "five"})
    ran = run("generate", "x", "--model", "o/t")
    assert ran.code == 1 and ran.error == "o--t: dflash_block_size (model): got 'five', expected an integer >= 1"
    assert "hint: `dflash2-mlx settings show o--t`" in ran.err and library.loads == []


def test_a_damaged_file_stops_before_loading(run: Run, library: FakeLibrary, base: Path) -> None:
    write(base, "{")
    assert "model_settings.json" in run("generate", "x").error and library.loads == []


def test_oddities_of_omlx_run_as_the_nearest_thing(
    run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]
) -> None:
    odd = {"dflash_verify_mode": "ddtree", "dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": 2}
    configure(base, o__t={**ON, **odd, "mtp_enabled": True, "specprefill_enabled": True})
    ran = run("generate", "x", "--model", "o/t")
    assert library.loads[0]["draft_bits"] == 4
    for told in ("Verify mode: ddtree runs as dflash", "Weight Bits: 2 runs as 4", "oMLX drops such a record",
                 "without effect here: mtp_enabled, specprefill_enabled"):  # fmt: skip
        assert told in ran.err


def test_drafters_that_are_quantized_already(
    run: Run, library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]
) -> None:
    configure(base, o__t={**ON, "dflash_draft_quant_enabled": True})
    d2.check_pairing("a", "b").quantization = {"bits": 4}  # type: ignore[misc] - the fixture's own class
    ran = run("generate", "x", "--model", "o/t")
    assert library.loads[0]["draft_bits"] is None and "quantized already" in ran.err


@pytest.mark.parametrize(("bits", "expected"), [(32, "float32"), (16, None), (None, None)])
def test_activation_bits_reach_the_library(
    library: FakeLibrary, base: Path, pairs: list[tuple[str, str]], bits: int | None, expected: str | None
) -> None:
    """On the CPU back-end 16 cannot pay, so it is told instead."""
    configure(base, o__t={**ON, "dflash_draft_quant_enabled": True, "dflash_draft_quant_activation_bits": bits})
    pair = prepare("o/t").load()
    assert library.loads[0].get("drafter_dtype") == expected
    assert any("16 runs as 32" in note for note in pair.report.notes) == (bits == 16)


def test_the_report_uses_the_words_of_omlx(library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]) -> None:
    configure(base, o__t=ON, o__u={**ON, "dflash_draft_model": None})
    assert prepare("o/t").load().report.to_dict() == {
        "effective_engine": "dflash2", "dflash_requested": True, "dflash_active": True, "dflash_fallback_reason": None,
        "notes": [],
    }  # fmt: skip
    found = prepare("o/u").load().report
    assert (found.effective_engine, found.dflash_requested, found.dflash_active) == ("plain", True, False)
    assert found.dflash_fallback_reason == "DFlash is on, and no Draft Model is set"


def test_window_sink_and_prefix_cache_reach_the_library(
    library: FakeLibrary, base: Path, pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    def make(*limits: Any) -> SimpleNamespace:
        made.append(limits)
        return SimpleNamespace(max_bytes=limits[1])

    monkeypatch.setattr(d2, "PrefixCache", make)
    configure(base, o__t={**ON, "dflash_draft_window_size": 6, "dflash_draft_sink_size": 2, "dflash_ssd_cache": True})
    pair = prepare("o/t").load()
    assert library.loads[0] | {"draft_window": 6, "draft_sink": 2} == library.loads[0]
    assert made == [(4, 8 * 2**30, base / "cache" / "dflash2_prefix", 20 * 2**30)]
    assert pair.prefix_cache.max_bytes == 8 * 2**30
    configure(base, o__t=ON)
    assert prepare("o/t").load().prefix_cache is None, "of no use to a single reply"
    assert prepare("o/t").load(several=True).prefix_cache.max_bytes == 8 * 2**30
    monkeypatch.setattr(engine, "check_memory", lambda *_, **__: Room(10**9))
    tight = prepare("o/t").load(several=True)
    assert made[-1][1] == 10**9 and "In-memory cache size: 8.6 GB are set" in tight.report.notes[-1]


def test_the_embedded_pair_takes_memory_like_any_other(base: Path) -> None:
    plan = prepare("mini").plan
    with_drafter, files = weight_bytes(plan), Path(d2.__file__).parent / "data/mini"
    alone = weight_bytes(replace(plan, drafter=None))
    assert with_drafter is not None and alone is not None
    assert alone > (files / "target/model.safetensors").stat().st_size / 2
    assert with_drafter - alone > (files / "drafter/model.safetensors").stat().st_size / 2
    assert (check_memory(plan, plain=False).needs_bytes or 0) > with_drafter


def test_a_prefix_cache_takes_no_more_than_the_models_leave() -> None:
    wanted, least = 8 * 2**30, 64 * 2**20
    assert Room().prefix_bytes(wanted) == wanted, "nothing is known of this machine"
    assert [Room(spare).prefix_bytes(wanted) for spare in (wanted, 10**9, 0)] == [wanted, 10**9, least]
    assert prefix_shares([], 5) == []
    assert prefix_shares([9 * least, least, 9 * least], 7 * least) == [3 * least, least, 3 * least]
    assert prefix_shares([9 * least, least // 2], -1) == [least, least // 2]


def test_prefix_caches_share_what_all_models_leave() -> None:
    def loaded(wanted: int | None, needs: int | None) -> Loaded:
        cache = None if wanted is None else d2.PrefixCache(max_bytes=wanted)
        return Loaded(Any, notes=("n",), prefix_cache=cache, prefix_wanted=wanted, needs_bytes=needs)

    giga = 10**9
    one, two, without = loaded(8 * giga, 10 * giga), loaded(8 * giga, 20 * giga), loaded(None, 2 * giga)
    assert one.present_notes == without.present_notes == ("n",)
    share_prefix_memory([one, two, without], 42 * giga)
    assert [item.prefix_cache.max_bytes for item in (one, two)] == [5 * giga, 5 * giga]
    assert one.present_notes[1].startswith("In-memory cache size: 8.0 GB are set and 5.0 GB used")
    share_prefix_memory([one], 42 * giga)
    assert one.prefix_cache.max_bytes == 8 * giga and one.present_notes == ("n",)


def test_request_levels(library: FakeLibrary, base: Path, pairs: list[tuple[str, str]]) -> None:
    configure(base, o__t={**ON, "temperature": 0.5, "chat_template_kwargs": {"a": 1, "b": 2}, "enable_thinking": True,
                          "forced_ct_kwargs": ["a"]})  # fmt: skip
    pair = prepare("o/t", request={"temperature": 0.9, "dflash_block_size": 2}).load()
    library.engine.tokenizer.has_chat_template = True
    config = pair.generation_config({"a": 9, "c": 3})
    assert config.sampling.temperature == 0.9 and config.block_size == 2
    assert config.chat_template_kwargs == {"a": 1, "b": 2, "c": 3, "enable_thinking": True}
    assert pair.generation_config({"a": 9}, forced=False).chat_template_kwargs["a"] == 9  # type: ignore[index]
    assert pair.generation_config(chat_template=False).chat_template_kwargs is None
    library.engine.tokenizer.has_chat_template = False
    assert pair.generation_config().chat_template_kwargs is None, "a model without a template takes no variables"


def test_prepare_loads_nothing(library: FakeLibrary, base: Path) -> None:
    configure(base, o__t=ON)
    setup = prepare("o/t", command_line={"dflash_enabled": False})
    assert not setup.drafts and library.loads == []
    with pytest.raises(SettingsError):
        configure(base, o__t={"temperature": -1})
        prepare("o/t")
