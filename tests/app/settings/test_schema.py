"""Each key by the fact sheet: name, default, label, null rules, ranges; and how typed text is read."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_app.errors import UsageError
from dflash2_app.settings.keys import DFLASH, EXTRAS, KEYS, NOT_IN_PROFILES, find_key
from dflash2_app.settings.schema import BadValue

# The table of section 2.1: key, default, label.
TABLE = {
    "dflash_enabled": (False, "DFlash"),
    "dflash_draft_model": (None, "Draft Model"),
    "dflash_draft_quant_enabled": (False, "Quantization"),
    "dflash_draft_quant_weight_bits": (4, "Weight Bits"),
    "dflash_draft_quant_activation_bits": (None, "Activation Bits"),
    "dflash_draft_quant_group_size": (64, "Group Size"),
    "dflash_max_ctx": (None, "Max Context (fallback threshold)"),
    "dflash_in_memory_cache": (True, "In-memory cache"),
    "dflash_in_memory_cache_max_entries": (4, "In-memory cache max entries"),
    "dflash_in_memory_cache_max_bytes": (8589934592, "In-memory cache size"),
    "dflash_ssd_cache": (False, "SSD cache"),
    "dflash_ssd_cache_max_bytes": (21474836480, "SSD cache size"),
    "dflash_draft_window_size": (None, "Draft window size"),
    "dflash_draft_sink_size": (0, "Draft sink size"),
    "dflash_block_size": (None, "Runtime block size"),
    "dflash_verify_mode": ("adaptive", "Verify mode"),
}


def test_the_sixteen_keys() -> None:
    assert {key.name: (key.default, key.label) for key in DFLASH} == TABLE


def test_environment_names_are_ours_and_differ() -> None:
    names = [key.variable for key in KEYS.values()]
    assert len(set(names)) == len(names)
    assert {"DFLASH2_BLOCK_SIZE", "DFLASH2_TEMPERATURE", "DFLASH2_ENABLED"} <= set(names)
    assert not {"DFLASH2_BASE_PATH", "DFLASH2_DEBUG", "DFLASH2_KERNELS", "DFLASH2_METAL_DIR"} & set(names)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_default_is_allowed(key: Any) -> None:
    assert key.normalise(key.default) == key.default
    assert key.normalise(None) is None
    assert key.hint and key.label and key.use in ("load", "reply", "serve")


CLEANED: list[tuple[str, Any, Any]] = [
    ("dflash_draft_model", "", None),
    ("dflash_draft_model", "  ", None),
    ("dflash_max_ctx", 0, None),
    ("dflash_max_ctx", -5, None),
    ("dflash_block_size", 0, None),
    ("dflash_block_size", -1, None),
    ("dflash_draft_window_size", 0, None),
    ("dflash_draft_sink_size", -3, 0),
    ("dflash_draft_sink_size", 0, 0),
    ("dflash_in_memory_cache_max_entries", -1, None),
    ("dflash_in_memory_cache_max_bytes", 0, None),
    ("dflash_verify_mode", "", None),
    ("dflash_block_size", 5.0, 5),
    ("dflash_draft_quant_weight_bits", 2, 2),
    ("temperature", 1, 1),
    ("ttl_seconds", 0, None),
]


@pytest.mark.parametrize(("name", "value", "expected"), CLEANED)
def test_clean_up(name: str, value: Any, expected: Any) -> None:
    cleaned = KEYS[name].normalise(value)
    assert cleaned == expected and type(cleaned) is type(expected)


REFUSED: list[tuple[str, Any, str]] = [
    ("dflash_enabled", 1, "true or false"),
    ("dflash_enabled", "true", "true or false"),
    ("dflash_draft_model", 3, "a folder or a Hub id"),
    ("dflash_draft_quant_weight_bits", 3, "4 or 8"),
    ("dflash_draft_quant_weight_bits", True, "4 or 8"),
    ("dflash_draft_quant_activation_bits", 8, "16 or 32"),
    ("dflash_draft_quant_group_size", 48, "32 or 64 or 128"),
    ("dflash_block_size", 5.5, "an integer >= 1"),
    ("dflash_block_size", True, "an integer >= 1"),
    ("dflash_block_size", "5", "an integer >= 1"),
    ("dflash_verify_mode", "tree", "dflash or adaptive or ddtree or off"),
    ("dflash_in_memory_cache_max_bytes", "8", "a number of bytes"),
    ("temperature", -0.1, "a number >= 0"),
    ("temperature", float("nan"), "a number >= 0"),
    ("top_p", 0, "a number in (0, 1]"),
    ("top_k", -1, "an integer >= 0"),
    ("min_p", 2, "a number in [0, 1]"),
    ("presence_penalty", 3, "a number in [-2, 2]"),
    ("repetition_penalty", 0, "a number > 0"),
    ("max_tokens", 0, "an integer >= 1"),
    ("chat_template_kwargs", [], "a JSON object"),
    ("forced_ct_kwargs", "x", "a JSON list"),
    ("model_alias", "a/b", "a name without /"),
    ("target_dtype", "float16", "auto or bfloat16 or float32"),
    ("exactness", "exactly", "fast or exact"),
]


@pytest.mark.parametrize(("name", "value", "expected"), REFUSED)
def test_out_of_range(name: str, value: Any, expected: str) -> None:
    with pytest.raises(BadValue) as caught:
        KEYS[name].normalise(value)
    assert str(caught.value).startswith(f"got {value!r}, expected {expected}")


TYPED: list[tuple[str, str, Any]] = [
    ("dflash_enabled", "on", True),
    ("dflash_enabled", "No", False),
    ("dflash_block_size", "5", 5),
    ("dflash_block_size", "null", None),
    ("dflash_block_size", "", None),
    ("dflash_in_memory_cache_max_bytes", "2GiB", 2 * 2**30),
    ("dflash_ssd_cache_max_bytes", "1.5 GB", 1_500_000_000),
    ("dflash_ssd_cache_max_bytes", "1000", 1000),
    ("temperature", "0.7", 0.7),
    ("chat_template_kwargs", '{"a": [1]}', {"a": [1]}),
    ("forced_ct_kwargs", '["a"]', ["a"]),
    ("dflash_verify_mode", " off ", "off"),
    ("dflash_draft_model", "owner/name", "owner/name"),
]


@pytest.mark.parametrize(("name", "text", "expected"), TYPED)
def test_typed_text(name: str, text: str, expected: Any) -> None:
    value = KEYS[name].parse(text)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dflash_draft_quant_weight_bits", "2"),  # oMLX has it, nothing here runs it
        ("dflash_block_size", "five"),
        ("dflash_block_size", "5.0"),
        ("dflash_enabled", "maybe"),
        ("dflash_ssd_cache_max_bytes", "8 elephants"),
        ("temperature", "inf"),
        ("chat_template_kwargs", "{"),
        ("dflash_verify_mode", "DFLASH"),
    ],
)
def test_typed_text_that_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadValue, match=r"^got .+, expected "):
        KEYS[name].parse(text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "no such setting"),
        ("block_size", "did you mean dflash_block_size?"),
        ("dflash_blok_size", "did you mean dflash_block_size?"),
        ("mtp_enabled", "an oMLX setting that nothing here uses"),
        ("turboquant_kv_bits", "an oMLX setting that nothing here uses"),
    ],
)
def test_names_that_are_no_settings(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: ") as caught:
        find_key(name)
    assert words in str(caught.value)


def test_what_a_profile_never_holds() -> None:
    assert {"is_default", "is_pinned", "is_hidden", "is_favorite", "model_alias", "ttl_seconds", "display_name",
            "model_type_override", "trust_remote_code"} <= NOT_IN_PROFILES  # fmt: skip
    assert not NOT_IN_PROFILES & {key.name for key in DFLASH}
    assert {key.name for key in EXTRAS} == {"frequency_penalty", "target_dtype", "exactness", "tune"}
