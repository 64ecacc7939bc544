"""Settings files as oMLX 0.6.x writes them, by the fact sheet; plus what other programs and accidents make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Every dflash_* key, at a value that is not the default.
ALL_KEYS: dict[str, Any] = {
    "dflash_enabled": True,
    "dflash_draft_model": "incoai/Qwen3.8-27B-DFlash2",
    "dflash_draft_quant_enabled": True,
    "dflash_draft_quant_weight_bits": 8,
    "dflash_draft_quant_activation_bits": 32,
    "dflash_draft_quant_group_size": 128,
    "dflash_max_ctx": 8192,
    "dflash_in_memory_cache": True,
    "dflash_in_memory_cache_max_entries": 8,
    "dflash_in_memory_cache_max_bytes": 2147483648,
    "dflash_ssd_cache": True,
    "dflash_ssd_cache_max_bytes": 10737418240,
    "dflash_draft_window_size": 1024,
    "dflash_draft_sink_size": 64,
    "dflash_block_size": 5,
    "dflash_verify_mode": "dflash",
}
UNKNOWN: dict[str, Any] = {
    "temperature": 0.6,
    "qwen35_fast_prefill": True,
    "specprefill_enabled": False,
    "turboquant_kv_bits": 2.5,
    "from_the_future": {"a": [1, 2, {"b": None}], "ü": "✓"},
    "big": 12345678901234567890,
}
MTP: dict[str, Any] = {"mtp_enabled": True, "dflash_enabled": True, "dflash_draft_model": "a/b"}


def model_settings() -> dict[str, Any]:
    """`model_settings.json` with every kind of record."""
    return {
        "version": 1,
        "models": {
            "Qwen3.8-27B-4bit": dict(ALL_KEYS),
            "mlx-community--Tiny-4bit": {},
            "Org--Repo": dict(UNKNOWN),
            "Both": dict(MTP),
            "NotARecord": "odd",
            "Aliased": {"model_alias": "Bob", "is_default": True},
        },
        "kept_beside": [1, 2, 3],
    }


def write(base: Path, value: Any, name: str = "model_settings.json") -> Path:
    """Write a settings file as oMLX does: two blanks of indent, UTF-8."""
    base.mkdir(parents=True, exist_ok=True)
    path = base / name
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    return path


def read(base: Path, name: str = "model_settings.json") -> Any:
    return json.loads((base / name).read_text(encoding="utf-8"))
