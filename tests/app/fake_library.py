"""The real library with models taken out: it decodes a fixed text, and remembers what it was asked.

Its target always continues with `REPLY`; a token is one character. Its drafter proposes three tokens, of
which 0, 1, 2, 3, 0, … are accepted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dflash2_mlx as d2
from dflash2_mlx.decode.request import RoundResult

REPLY = "    return [line.split('=') for line in f]\n\n\ndef write_config(path, options):\n    pass\n" * 4
BLOCK_SIZE = 4
REPLACED = ("load", "generate", "stream_generate", "compare_runs")


@dataclass
class Tokenizer:
    has_chat_template: bool = False

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


@dataclass
class Engine:
    drafter: object | None = "drafter"
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    target_name: str = "fake"
    drafter_name: str | None = "fake-drafter"
    block_size: int | None = BLOCK_SIZE
    row_cost_note: str | None = None
    fingerprint: str = "unnamed-fake"


class FakeLibrary:
    """The functions of the library that load and decode."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.loads: list[dict[str, Any]] = []
        self.requests: list[tuple[Any, d2.GenerationConfig]] = []
        self.load_fault: BaseException | None = None
        self.fault: BaseException | None = None  # raised in the middle of a reply
        self.notices: list[str] = []
        self.round_s = 0.0
        self.differs = False

    def load(self, target: str = "mini", drafter: str | None = None, **options: Any) -> Engine:
        self.loads.append({"target": target, "drafter": drafter, **options})
        if self.load_fault is not None:
            raise self.load_fault
        if target != "mini" and drafter is None:
            self.engine.drafter = self.engine.drafter_name = self.engine.block_size = None
        return self.engine

    def generate(self, engine: Engine, prompt: Any, config: d2.GenerationConfig) -> d2.GenerationResult:
        return d2.collect(engine, self.stream_generate(engine, prompt, config))

    def stream_generate(self, engine: Engine, prompt: Any, config: d2.GenerationConfig) -> Iterator[d2.GenerationEvent]:
        self.requests.append((prompt, config))
        drafts = config.mode != "plain" and engine.drafter is not None
        stats = d2.GenerationStats(
            mode="dflash2" if drafts else "plain",
            block_size=engine.block_size if drafts else None,
            fallback_reason="no drafter given" if config.mode == "auto" and not drafts else None,
            notices=list(self.notices),
            prompt_tokens=2,
            seed=config.sampling.seed,
        )
        text = REPLY[: config.max_tokens]
        yield d2.GenerationEvent("", (), stats, prefilled=1, prompt_tokens=2)
        begun, place, rounds = time.perf_counter(), 0, 0
        while place < len(text):
            time.sleep(self.round_s)
            accepted = rounds % BLOCK_SIZE if drafts and place else 0
            piece = text[place : place + accepted + 1]
            token_ids = tuple(map(ord, piece))
            stats.add(RoundResult(token_ids, accepted, BLOCK_SIZE if drafts else 1, first=not place))
            stats.decode_s = time.perf_counter() - begun
            place, rounds = place + len(piece), rounds + 1
            info = d2.RoundInfo(accepted, BLOCK_SIZE, len(piece), ()) if drafts and rounds > 1 else None
            reason = "length" if place == len(text) else None
            logprobs = tuple(d2.TokenLogprob(token, -0.5, ((token, -0.5), (63, -1.25))) for token in token_ids)
            yield d2.GenerationEvent(piece, token_ids, stats, reason, info, logprobs, prefilled=2, prompt_tokens=2)
            if self.fault is not None:
                raise self.fault

    def compare_runs(
        self,
        engine: Engine,
        prompt: Any,
        config: d2.GenerationConfig,
        plain: d2.GenerationResult,
        dflash2: d2.GenerationResult,
    ) -> d2.Verdict:
        if self.differs:
            difference = {"index": 3, "plain_token": 32, "dflash2_token": 33, "logit_gap": 0.0125}
            return d2.Verdict(False, difference, 1.5)
        return d2.Verdict(plain.token_ids == dflash2.token_ids, None, 1.5)


def install(fake: FakeLibrary, set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """Replace the library's functions by those of a fake."""
    for name in REPLACED:
        set_attribute(d2, name, getattr(fake, name))


if __name__ == "__main__":  # the command line without models: python tests/app/fake_library.py demo
    from dflash2_app.cli import main

    fake = FakeLibrary()
    fake.round_s = 0.02
    install(fake)
    sys.exit(main())
