"""Engines around tiny random models, and a tokenizer that spells token ids."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.engine import Engine
from dflash2_mlx.targets.base import Target
from tests.runs import PROMPT, lively_reply, lively_target
from tests.scripted import ScriptedDrafter


class SpellingTokenizer:
    """Token 17 is "<17>", both ways; no chat template."""

    has_chat_template = False

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(piece) for piece in text.strip("<>").split("><")]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(f"<{token}>" for token in ids)


def tiny_engine(
    family: str = "qwen3", drafter: DraftModel | None = None, *, target: Target | None = None, stops: Sequence[int] = ()
) -> Engine:
    """An engine as `load` would make it."""
    return Engine(
        target=target or lively_target(family), drafter=drafter, tokenizer=SpellingTokenizer(), target_name=family,
        drafter_name=None if drafter is None else "tiny", stop_token_ids=frozenset(stops),
    )  # fmt: skip


def scripted_engine(family: str, accepts: Sequence[int], *, max_tokens: int = 64, **changes: Any) -> Engine:
    """An engine whose drafter knows `max_tokens` tokens of the plain reply to PROMPT and errs on schedule."""
    truth = [*PROMPT, *lively_reply(family, max_tokens=max_tokens)]
    return tiny_engine(family, owner().call(lambda: ScriptedDrafter(truth, accepts, **changes)))


def settled_bytes(expected: int | None = None) -> int:
    """Bytes MLX has in use once the owner thread has nothing to do; waits up to a second for what is expected.

    The owner is not asked: a new call would make it forget the one before, which may be what holds memory.
    """
    gc.collect()
    for _ in range(100):
        if mx.get_active_memory() == expected:
            break
        time.sleep(0.01 if expected is not None else 0.002)
    return mx.get_active_memory()
