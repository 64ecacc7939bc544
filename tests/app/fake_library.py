"""A stand-in for `dflash2_mlx` that decodes without models, and remembers what it was asked.

Its target always continues with `REPLY`; a token is one character. Its drafter proposes three tokens, of
which 0, 1, 2, 3, 0, … are accepted.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash2_mlx import errors
from dflash2_mlx.config import GenerationConfig, SamplingConfig
from dflash2_mlx.stats import GenerationStats, RoundResult

REPLY = "    return [line.split('=') for line in f]\n\n\ndef write_config(path, options):\n    pass\n" * 4
BLOCK_SIZE = 4


@dataclass(frozen=True)
class RoundInfo:
    num_accepted: int
    width: int
    committed: int
    proposal: tuple[int, ...]


@dataclass(frozen=True)
class GenerationEvent:
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    round: RoundInfo | None = None
    stats: GenerationStats | None = None
    logprobs: tuple[Any, ...] = ()
    prefilled: int = 0
    prompt_tokens: int = 0


@dataclass
class GenerationResult:
    text: str
    token_ids: list[int]
    finish_reason: str
    stats: GenerationStats
    logprobs: list[Any] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "token_ids": self.token_ids, "mode": self.stats.mode}


@dataclass(frozen=True)
class Verdict:
    identical: bool
    first_difference: dict[str, Any] | None
    speedup: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Tokenizer:
    has_chat_template = False

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


class FakeLibrary:
    """The functions of the library that load and decode."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.loads: list[dict[str, Any]] = []
        self.requests: list[tuple[Any, GenerationConfig]] = []
        self.fault: BaseException | None = None  # raised in the middle of a reply
        self.load_fault: BaseException | None = None
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

    def generate(self, engine: Engine, prompt: Any, config: GenerationConfig) -> GenerationResult:
        events = list(self.stream_generate(engine, prompt, config))
        text = "".join(event.text for event in events)
        ids = [token for event in events for token in event.token_ids]
        return GenerationResult(text, ids, events[-1].finish_reason or "length", events[-1].stats)

    def stream_generate(self, engine: Engine, prompt: Any, config: GenerationConfig) -> Iterator[GenerationEvent]:
        self.requests.append((prompt, config))
        drafts = config.mode != "plain" and engine.drafter is not None
        stats = GenerationStats(
            mode="dflash2" if drafts else "plain",
            fallback_reason="no drafter given" if config.mode == "auto" and not drafts else None,
            notices=list(self.notices),
            prompt_tokens=len(str(prompt)),
            block_size=engine.block_size if drafts else None,
            seed=config.sampling.seed,
        )
        text = REPLY[: config.max_tokens]
        yield GenerationEvent(stats=stats, prefilled=1, prompt_tokens=2)
        begun, place, rounds = time.perf_counter(), 0, 0
        while place < len(text):
            time.sleep(self.round_s)
            accepted = rounds % BLOCK_SIZE if drafts and place else 0
            piece = text[place : place + accepted + 1]
            token_ids = tuple(map(ord, piece))
            stats.add(RoundResult(token_ids, accepted, BLOCK_SIZE if drafts else 1, first=not place))
            stats.decode_s = time.perf_counter() - begun
            place, rounds = place + len(piece), rounds + 1
            yield GenerationEvent(
                text=piece,
                token_ids=token_ids,
                finish_reason="length" if place == len(text) else None,
                round=RoundInfo(accepted, BLOCK_SIZE, accepted + 1, ()) if drafts and rounds > 1 else None,
                stats=stats,
            )
            if self.fault is not None:
                raise self.fault

    def compare_runs(
        self, engine: Engine, prompt: Any, config: GenerationConfig, plain: GenerationResult, dflash2: GenerationResult
    ) -> Verdict:
        if self.differs:
            difference = {"index": 3, "plain_token": 32, "dflash2_token": 33, "logit_gap": 0.0125}
            return Verdict(False, difference, 1.5)
        return Verdict(plain.token_ids == dflash2.token_ids, None, 1.5)


def install(fake: FakeLibrary) -> types.ModuleType:
    """Make a module of it, with the real settings and errors."""
    module = types.ModuleType("dflash2_mlx")
    for name in ("load", "generate", "stream_generate", "compare_runs"):
        setattr(module, name, getattr(fake, name))
    for kind in (GenerationConfig, SamplingConfig, GenerationStats, GenerationResult, Verdict):
        setattr(module, kind.__name__, kind)
    for name in vars(errors):
        if name.endswith("Error"):
            setattr(module, name, getattr(errors, name))
    return module


if __name__ == "__main__":  # look at the application without the library: python fake_library.py demo
    fake = FakeLibrary()
    fake.round_s = 0.02
    sys.modules["dflash2_mlx"] = install(fake)
    from dflash2_app.cli import main

    sys.exit(main())
