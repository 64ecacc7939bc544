"""Measurements as `bench` leaves them, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash2_app.bench.history import KeptRun, RunStore

PHASES = {"draft": 2.0, "select": 0.5, "verify": 6.0, "commit": 1.0, "host_gap": 0.25}


def arm(width: int, speed: float, **changes: Any) -> dict[str, Any]:
    """One width of a setting; plain decoding where it is 1."""
    plain = width == 1
    spread = {"median": speed / 40, "quarter": speed / 40 - 0.05, "three_quarters": speed / 40 + 0.05}
    shares = [] if plain else [round(0.9 - 0.1 * place, 2) for place in range(width - 1)]
    phases = {name: {"median": value * (1 + width / 8), "quarter": value, "three_quarters": 2 * value}
              for name, value in PHASES.items() if not (plain and name in ("draft", "select"))}  # fmt: skip
    return {
        "width": width, "requests": 8, "rounds": 200, "generated_tokens": 640, "prompt_tokens": 31.5,
        "tokens_per_second": speed, "tokens_per_second_by_repeat": [speed - 2, speed, speed + 3],
        "speedup": speed / 40, "speedup_by_repeat": None if plain else spread,
        "acceptance_length": None if plain else 1 + sum(shares) / 2, "acceptance_rate": None if plain else 0.5,
        "acceptance_by_position": shares, "expected_length": None if plain else 2.5, "prefill_s": 0.12,
        "peak_memory_bytes": 84_000_000, "milliseconds": phases,
        "texts": None if plain else {"compared": 24, "identical": 24, "differences": []},
        "mode": "plain" if plain else "dflash2", **changes,
    }  # fmt: skip


def record(*, speed: float = 64.0, temperatures: tuple[float, ...] = (0.0, 1.0), **changes: Any) -> dict[str, Any]:
    """A whole record with advice for block size 5."""
    settings = [
        {"depth": 0, "temperature": temperature, "arms": [arm(1, 40.0), arm(3, 52.0), arm(5, speed), arm(8, 50.0)]}
        for temperature in temperatures
    ]
    return {
        "kind": "pair", "complete": True, "requests": 96, "requests_planned": 96, "model": "mini", "drafter": "mini",
        "block_size": 8, "endpoint": None, "set": "mini", "revision": None, "prompts": 8, "preset": None,
        "max_tokens": 256, "repeats": 3, "seed": 0, "sampling": {"top_p": 1.0, "top_k": 0, "lossless_mode": None},
        "chat_template": True, "chat_template_args": None,
        "machine": {"chip": "A chip", "system": "A system", "backend": "cpu"}, "versions": {"mlx": "0.32.4"},
        "busy": None, "notices": [], "acceptance_sources": [], "settings": settings,
        "recommendation": {"block_size": 5, "speedup": speed / 40, "caution": None,
                           "reason": f"{speed / 40:.2f}x plain decoding over 8 requests in {len(settings)} settings"},
        **changes,
    }  # fmt: skip


def keep(base: Path, name: str, made: dict[str, Any], model: str = "mini") -> None:
    """Put a measurement into a base folder."""
    RunStore(base).save(KeptRun(name, model, "2026-01-02T03:04:05Z", 61.5, json.loads(json.dumps(made))))
