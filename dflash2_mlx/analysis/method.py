"""The announcement's own measurements, of any pair: what convolution and selector bring, and what they cost.

Owns: which replies are decoded, by which drafters, and what is asked of them. Everything is measured on real replies of
the engine; the definitions are in `shares`, each measurement in a module of its own.

Reference: docs/dflash2.md 6.1, 6.3.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..decode.stats import conditional_shares, expected_length, leading, reached_positions
from ..engine import Engine
from ..errors import ConfigError, SettingError
from ..generation.config import GenerationConfig
from ..generation.text import Prompt
from .ablation import ablations
from .attention import BlockAttention, measure_attention
from .cost_shares import REPEATS, CostShares, check_repeats, measure_shares
from .recall import Recall, measure_recall
from .replies import Reply, decode, drafter_of

FULL, OFF, OTHER = "loaded", "switched off", "another drafter"


@dataclass(frozen=True)
class Variant:
    """One drafter under test. `kind`: the loaded one, the loaded one less a part, or one that was trained apart."""

    name: str
    kind: str
    engine: Engine


@dataclass(frozen=True)
class Acceptance:
    """How one drafter did at one temperature.

    `acceptance_length` is the mean over requests of each request's tokens per round, cut as decoding cuts. `pooled` is
    accepted drafts plus one over all rounds, before any cut; `expected` is what the shares by position multiply to, and
    must be the same. `same_text` tells whether greedy replies equal those of the loaded drafter; None when sampling.
    """

    name: str
    kind: str
    temperature: float
    block_size: int
    requests: int
    rounds: int
    acceptance_length: float | None
    conditional: list[float | None]
    pooled: float | None
    expected: float | None
    same_text: bool | None

    @property
    def identity_holds(self) -> bool:
        """Whether 1 + Σ Π c_i is the mean over rounds, as it has to be."""
        if self.pooled is None or self.expected is None:
            return self.pooled is self.expected
        return abs(self.pooled - self.expected) < 1e-9

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "temperature": self.temperature,
            "block_size": self.block_size,
            "requests": self.requests,
            "rounds": self.rounds,
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": self.conditional,
            "pooled_length": self.pooled,
            "expected_length": self.expected,
            "identity_holds": self.identity_holds,
            "same_text": self.same_text,
        }


@dataclass(frozen=True)
class Analysis:
    """Everything `analyze` found. `recall` by temperature and drafter, `attention` by drafter."""

    acceptance: list[Acceptance]
    recall: dict[float, dict[str, Recall]]
    attention: dict[str, BlockAttention]
    costs: CostShares

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "acceptance": [found.to_dict() for found in self.acceptance],
            "recall": [
                {"name": name, "temperature": temperature, **found.to_dict()}
                for temperature, by_name in self.recall.items()
                for name, found in by_name.items()
            ],
            "attention": [{"name": name, **found.to_dict()} for name, found in self.attention.items()],
            "costs": self.costs.to_dict(),
        }


def analyze(
    engine: Engine,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    others: Mapping[str, Engine] | None = None,
    repeats: int = REPEATS,
    tell: Callable[[str], None] = lambda text: None,
) -> Analysis:
    """Measure a pair on replies to some prompts.

    Args:
        config: of every reply. Another drafter with smaller blocks drafts its own size. The temperature is replaced;
            sampled replies are drawn with its seed (0 without one) plus the prompt's number, and accepted by rejection
            unless it says otherwise.
        others: engines with the same target and drafters trained apart, by name; see `load.with_drafter`.
        repeats: turns of the timing.
        tell: called with a line about what is measured next.
    Raises:
        ConfigError: no drafter, no prompt, fewer than two repeats, or nothing was drafted.
    """
    variants = _variants(engine, others or {})
    _check_width(config, engine)
    check_repeats(repeats)
    if not prompts:
        raise ConfigError("prompts: got none, expected at least one")
    if not temperatures or len(set(temperatures)) < len(temperatures):
        raise ConfigError(f"temperatures: got {list(temperatures)!r}, expected different ones")
    found: list[Acceptance] = []
    recall: dict[float, dict[str, Recall]] = {}
    attention: dict[str, BlockAttention] = {}
    for temperature in temperatures:
        decoded: dict[str, list[Reply]] = {}
        for variant in variants:
            tell(f"decoding {len(prompts)} prompts at temperature {temperature:g}: {variant.name}")
            decoded[variant.name] = _replies(variant.engine, prompts, _settings(config, temperature, variant.engine))
            found.append(_acceptance(variant, temperature, decoded[variant.name], decoded[variants[0].name], config))
        reference = decoded[variants[0].name]
        recall[temperature] = {}
        for variant in variants:
            if variant.kind == OFF:
                continue
            width = _width(config, variant.engine)
            tell(f"drafting after every token at temperature {temperature:g}: {variant.name}")
            recall[temperature][variant.name] = measure_recall(variant.engine, reference, width=width)
            if temperature == temperatures[0]:
                tell(f"looking at the attention of {variant.name}")
                attention[variant.name] = measure_attention(variant.engine, reference, width=width)
    tell("timing passes with and without each part")
    return Analysis(found, recall, attention, measure_shares(engine, width=_width(config, engine), repeats=repeats))


def _variants(engine: Engine, others: Mapping[str, Engine]) -> list[Variant]:
    drafter_of(engine)
    variants = [Variant(engine.drafter_name or "drafter", FULL, engine)]
    variants += [Variant(name, OFF, variant) for name, variant in ablations(engine).items()]
    for name, other in others.items():
        if other.target is not engine.target or other.drafter is None:
            raise ConfigError(
                f"others: got {name!r} with another target or no drafter, expected the engine's own target"
            )
        variants.append(Variant(name, OTHER, other))
    names = [variant.name for variant in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"others: got {twice[0]!r} twice, expected a name of its own for each drafter")
    return variants


def _width(config: GenerationConfig, engine: Engine) -> int:
    assert engine.block_size is not None
    return min(config.block_size or engine.block_size, engine.block_size)


def _check_width(config: GenerationConfig, engine: Engine) -> None:
    """As `generate`, for the loaded drafter."""
    if config.block_size is not None and config.block_size > (engine.block_size or 0):
        raise SettingError(f"block_size: got {config.block_size}, expected an integer in 2..{engine.block_size}")


def _settings(config: GenerationConfig, temperature: float, engine: Engine) -> GenerationConfig:
    sampling = replace(
        config.sampling,
        temperature=temperature,
        seed=config.sampling.seed or 0,
        lossless_mode=config.sampling.lossless_mode or "rejection",
    )
    return replace(config, sampling=sampling, mode="dflash2", block_size=_width(config, engine), stop=())


def _replies(engine: Engine, prompts: Sequence[Prompt], config: GenerationConfig) -> list[Reply]:
    replies = []
    for number, prompt in enumerate(prompts):
        seed = (config.sampling.seed or 0) + number
        replies.append(decode(engine, prompt, replace(config, sampling=replace(config.sampling, seed=seed))))
    return replies


def _acceptance(
    variant: Variant, temperature: float, replies: Sequence[Reply], reference: Sequence[Reply], config: GenerationConfig
) -> Acceptance:
    lengths = [reply.stats.acceptance_length for reply in replies]
    known = [length for length in lengths if length is not None]
    rounds = [done for reply in replies for done in reply.rounds]
    right, asked = reached_positions([done.num_accepted for done in rounds], [done.width - 1 for done in rounds])
    conditional = conditional_shares(right, asked)
    greedy = replace(config.sampling, temperature=temperature).greedy
    return Acceptance(
        name=variant.name,
        kind=variant.kind,
        temperature=temperature,
        block_size=_width(config, variant.engine),
        requests=len(known),
        rounds=len(rounds),
        acceptance_length=statistics.fmean(known) if known else None,
        conditional=conditional,
        pooled=float(np.mean(leading(right) + 1)) if rounds else None,
        expected=expected_length(conditional) if rounds else None,
        same_text=[reply.tokens for reply in replies] == [reply.tokens for reply in reference] if greedy else None,
    )
