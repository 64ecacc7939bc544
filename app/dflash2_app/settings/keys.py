"""All settings by name: oMLX's keys with its defaults and labels, and our own extras.

Owns: the lists. A name that is not here and not among oMLX's is unknown: kept in a file, refused when typed.

Reference: oMLX 0.6.x settings (the fact sheet's sections 1.3 and 2.1).
"""

from __future__ import annotations

import difflib

from dflash2_mlx.sampling.fields import (
    EXTRA_KEY,
    FREQUENCY_PENALTY,
    MIN_P,
    PRESENCE_PENALTY,
    REPETITION_PENALTY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Integer,
    Number,
)

from ..errors import UsageError
from .schema import (
    Key,
    boolean,
    empty_is_null,
    integer,
    mapping,
    names,
    negative_is_zero,
    not_positive_is_null,
    number,
    one_integer_of,
    size,
    text,
    word,
)

GIB = 2**30
ACCELERATION, QUANTIZATION, CACHE = "DFlash", "Draft quantization", "Prefix cache"
LONG_CONTEXT, SAMPLING, REASONING, MANAGEMENT = "Long-context tuning", "Sampling", "Reasoning", "Management"

DFLASH = [
    Key("dflash_enabled", "DFlash", ACCELERATION, boolean(), False,
        "Draft blocks of tokens with a matching drafter; plain decoding when off", "load"),
    Key("dflash_draft_model", "Draft Model", ACCELERATION, text("a folder or a Hub id like owner/name"), None,
        "The drafter: a folder or a Hub id", "load", empty_is_null),
    Key("dflash_max_ctx", "Max Context (fallback threshold)", ACCELERATION, integer(1), None,
        "A prompt of so many tokens or more is decoded plainly; the next shorter one is drafted again",
        clean=not_positive_is_null),
    Key("dflash_draft_quant_enabled", "Quantization", QUANTIZATION, boolean(), False,
        "Quantize the drafter in memory while it is loaded", "load"),
    Key("dflash_draft_quant_weight_bits", "Weight Bits", QUANTIZATION, one_integer_of(4, 8), 4,
        "Bits per weight of a quantized drafter; oMLX's 2 runs as 4 here", "load", oddities=(2,)),
    Key("dflash_draft_quant_activation_bits", "Activation Bits", QUANTIZATION, one_integer_of(16, 32), None,
        "16 is bfloat16, 32 float32; not set: 16, but 32 on M1 and M2, which emulate bfloat16", "load"),
    Key("dflash_draft_quant_group_size", "Group Size", QUANTIZATION, one_integer_of(32, 64, 128), 64,
        "Weights that share a scale", "load"),
    Key("dflash_in_memory_cache", "In-memory cache", CACHE, boolean(), True,
        "Keep what was read of earlier prompts in memory", "load"),
    Key("dflash_in_memory_cache_max_entries", "In-memory cache max entries", CACHE, integer(1), 4,
        "Prompts kept in memory", "load", not_positive_is_null),
    Key("dflash_in_memory_cache_max_bytes", "In-memory cache size", CACHE, size(), 8 * GIB,
        "Bytes they may take; GiB may be written", "load", not_positive_is_null),
    Key("dflash_ssd_cache", "SSD cache", CACHE, boolean(), False,
        "Keep them on disk as well; needs the in-memory cache", "load"),
    Key("dflash_ssd_cache_max_bytes", "SSD cache size", CACHE, size(), 20 * GIB,
        "Bytes they may take on disk, the oldest go first", "load", not_positive_is_null),
    Key("dflash_draft_window_size", "Draft window size", LONG_CONTEXT, integer(1), None,
        "Newest tokens that the drafter sees; not set: the checkpoint's window", "load", not_positive_is_null),
    Key("dflash_draft_sink_size", "Draft sink size", LONG_CONTEXT, integer(0), 0,
        "First tokens that the drafter always sees", "load", negative_is_zero),
    Key("dflash_block_size", "Runtime block size", LONG_CONTEXT, integer(1), None,
        "Rows of one verify pass, at most the checkpoint's block size; 1 drafts nothing",
        clean=not_positive_is_null),
    Key("dflash_verify_mode", "Verify mode", LONG_CONTEXT, word("dflash", "adaptive", "ddtree", "off"), "adaptive",
        "dflash: the full block every round; adaptive: a width by measured gain; off: plain decoding (in oMLX off "
        "only switches verify kernels off and goes on drafting); ddtree runs as dflash here", clean=empty_is_null),
]  # fmt: skip


def _drawn(field: Number | Integer, label: str) -> Key:
    """The key of a sampling field."""
    if isinstance(field, Number):
        kind = number(field.range, field.fits)
    else:
        kind = integer(field.least, field.most)
    return Key(field.name, label, SAMPLING, kind, field.default, field.about, extra=EXTRA_KEY in field.settings)


COMMON = [
    _drawn(TEMPERATURE, "Temperature"),
    _drawn(TOP_P, "Top P"),
    _drawn(TOP_K, "Top K"),
    _drawn(MIN_P, "Min P"),
    _drawn(REPETITION_PENALTY, "Repetition penalty"),
    _drawn(PRESENCE_PENALTY, "Presence penalty"),
    Key("max_tokens", "Max tokens", SAMPLING, integer(1), 512, "Most tokens in a reply"),
    Key("max_context_window", "Max context window", SAMPLING, integer(1), None,
        "Prompt and reply together may not be longer"),
    Key("force_sampling", "Force sampling", SAMPLING, boolean(), False,
        "The configured temperature, top_p and top_k win over a request's"),
    Key("enable_thinking", "Thinking", REASONING, boolean(), None, "Passed to the chat template"),
    Key("chat_template_kwargs", "Chat template variables", REASONING, mapping(), None, "Passed to the chat template"),
    Key("forced_ct_kwargs", "Forced template variables", REASONING, names(), None,
        "Chat template variables that a request may not change"),
    Key("is_default", "Default model", MANAGEMENT, boolean(), False, "Used when no --model is given; one at most",
        "load"),
    Key("model_alias", "Alias", MANAGEMENT, text("a name without /", lambda s: bool(s.strip()) and "/" not in s), None,
        "Another name for the model", "load", empty_is_null),
    Key("is_pinned", "Pinned", MANAGEMENT, boolean(), False, "The server loads it at start and keeps it", "serve"),
    Key("is_hidden", "Hidden", MANAGEMENT, boolean(), False, "Left out of the server's model list", "serve"),
    Key("is_favorite", "Favorite", MANAGEMENT, boolean(), False, "Listed first", "serve"),
    Key("ttl_seconds", "Idle time-out (s)", MANAGEMENT, integer(1), None,
        "The server drops the model after so long without a request", "serve", not_positive_is_null),
    Key("display_name", "Display name", MANAGEMENT, text(), None, "Shown in lists", "serve", empty_is_null),
    Key("description", "Description", MANAGEMENT, text(), None, "Shown in lists", "serve", empty_is_null),
]  # fmt: skip

# Not oMLX's: they live in our side file.
EXTRAS = [
    _drawn(FREQUENCY_PENALTY, "Frequency penalty"),
    Key("target_dtype", "Target dtype", MANAGEMENT, word("auto", "bfloat16", "float32"), "auto",
        "float32 dequantizes on load", "load", extra=True),
    Key("exactness", "Exactness", MANAGEMENT, word("fast", "exact"), "fast",
        "exact: a quantized target computes a row alike alone and in a block; needs Metal", "load",
        extra=True),
    Key("tune", "Tune in the background", MANAGEMENT, boolean(), True,
        "After the first load, once nobody asks for anything: race our kernels against MLX's and time passes, for "
        "later loads to use", "load", extra=True),
]  # fmt: skip

KEYS: dict[str, Key] = {key.name: key for key in (*DFLASH, *COMMON, *EXTRAS)}

# oMLX's other settings. Nothing here uses them, so they are kept and shown, and refused when typed.
FOREIGN = frozenset(
    """max_tool_result_tokens preserve_thinking thinking_budget_enabled thinking_budget_tokens reasoning_parser
    guided_grammar_enabled guided_grammar mtp_enabled mtp_num_draft_tokens model_type_override trust_remote_code
    active_profile_name""".split()
)
FOREIGN_PREFIXES = ("turboquant_kv_", "specprefill_", "vlm_mtp_", "moe_expert_offload_", "qwen35_")

# What a profile never holds.
NOT_IN_PROFILES = frozenset(
    {key.name for key in KEYS.values() if key.group == MANAGEMENT}
    | {"model_type_override", "trust_remote_code", "active_profile_name"}
)


def find_key(name: str) -> Key:
    """Find a setting by its name, as somebody typed it.

    Raises:
        UsageError: no such setting, or one that nothing here uses.
    """
    if name in KEYS:
        return KEYS[name]
    if name in FOREIGN or name.startswith(FOREIGN_PREFIXES):
        raise UsageError(f"{name}: got an oMLX setting that nothing here uses, expected one that does something")
    close = [f"dflash_{name}"] if f"dflash_{name}" in KEYS else difflib.get_close_matches(name, KEYS, 1)
    guess = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"{name}: got no such setting, expected one of those `settings show` lists{guess}")
