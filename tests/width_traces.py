"""Where width policies are tried: traces of acceptance, tables of costs, and a player of policies over both.

A trace says for every position of a text how many drafts a block beginning there has accepted, so that every policy
can be played over the same text. Recorded ones (`benchmarks.record_traces`) are real replies of the embedded pair;
made ones follow shares by position. Costs are the model's for a 27B pair, never measured on a chip.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dflash2_mlx.chips import read_chip
from dflash2_mlx.config import DrafterConfig
from dflash2_mlx.cost_model import OwnKernels, predict, workload
from dflash2_mlx.costs import PassCosts
from dflash2_mlx.memory import Precision
from dflash2_mlx.widths import WidthPolicy
from tests.published import DFLASH2
from tests.test_memory_estimate import QWEN_27B

RECORDED = Path(__file__).parent / "data" / "traces.json"
BLOCK = 8
LENGTH = 8000  # tokens of a trace: shorter ones have a best fixed width by luck
CHIPS = {
    "M1 Pro": ("applegpu_g13s", "Apple M1 Pro"),
    "M3 Max": ("applegpu_g15s", "Apple M3 Max"),
    "M4 Pro": ("applegpu_g16s", "Apple M4 Pro"),
    "M5 Max": ("applegpu_g17s", "Apple M5 Max"),
}
OWN = OwnKernels(linear=True, attention=True, recurrent=True)


@dataclass(frozen=True)
class Trace:
    """Accepted drafts of a block of `BLOCK` rows at each position."""

    name: str
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """What a policy did: tokens, seconds, and the width of each round."""

    tokens: int
    seconds: float
    widths: tuple[int, ...]

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@cache
def cost_tables() -> Mapping[str, PassCosts]:
    """The 27B pair with 4-bit weights on several chips, with MLX's few-row kernels and with ours."""
    drafter = DrafterConfig.from_dict(DFLASH2["Qwen3.8-27B"].raw, num_target_layers=64)
    work = workload(QWEN_27B, drafter, Precision(draft_bits=4))
    found = {}
    for name, (architecture, chip_name) in CHIPS.items():
        chip = read_chip(architecture, chip_name, "26.4", "0.32.4")
        for kind, own in (("stock", OwnKernels()), ("own", OWN)):
            costs = predict(work, chip, own, range(1, BLOCK + 1))
            assert costs is not None
            found[f"{name} {kind}"] = costs
    return found


def play(policy: WidthPolicy, costs: PassCosts, trace: Trace, depth: int = 0) -> Played:
    """Decode the trace's text by a policy; one round is always unread, as in a session."""
    position, seconds, widths, unread = 0, 0.0, [], None
    times: dict[int, PassCosts] = {}
    while position < len(trace.accepted):
        width = policy.width()
        if unread is not None:
            policy.learn(*unread)
        kept = min(trace.accepted[position], width - 1)
        unread = width, kept
        behind = (depth + position) // 64 * 64
        here = times.get(behind) or times.setdefault(behind, costs.at(behind))
        seconds += round_s(here, width)
        position += kept + 1
        widths.append(width)
    return Played(position, seconds, tuple(widths))


def round_s(costs: PassCosts, width: int) -> float:
    """Seconds of a round."""
    return costs.verify[width] + (costs.draft[width] if width > 1 else 0.0)


def fixed_speed(width: int, costs: PassCosts, trace: Trace, depth: int = 0) -> float:
    """Tokens per second of one width; what `play` finds for `Fixed`, sooner."""
    position, seconds = 0, 0.0
    for behind in range(depth // 64 * 64, depth + len(trace.accepted), 64):
        rounds = 0
        while position < len(trace.accepted) and depth + position < behind + 64:
            position += min(trace.accepted[position], width - 1) + 1
            rounds += 1
        seconds += rounds * round_s(costs.at(behind), width)
    return position / seconds


def oracle_speed(costs: PassCosts, trace: Trace, depth: int = 0) -> float:
    """Tokens per second of the best choice of widths, with every round's accepted count known beforehand."""
    here = costs.at(depth + len(trace.accepted) // 2)
    widths = [(width, round_s(here, width)) for width in (1, *sorted(here.draft))]
    left = [0.0] * (len(trace.accepted) + BLOCK + 1)
    for position in reversed(range(len(trace.accepted))):
        kept = trace.accepted[position]
        left[position] = min(
            seconds + left[min(position + min(kept, width - 1) + 1, len(trace.accepted))] for width, seconds in widths
        )
    return len(trace.accepted) / left[0]


# Families of the recorded prompts that are alike: one alone has too few different replies for a long text.
KINDS = {
    "reasoning": ("calculation", "word problem", "units", "calendar", "series", "sorting"),
    "copying": ("extraction", "table", "rewriting", "echo", "lookup"),
    "writing": ("code", "about", "capitals", "story"),
}


def recorded(length: int = LENGTH) -> list[Trace]:
    """The embedded pair's replies as long texts: of all kinds at temperature 0, and of each kind at 1."""
    entries = json.loads(RECORDED.read_text(encoding="utf-8"))["traces"]
    every = tuple(family for families in KINDS.values() for family in families)
    parts = [("all kinds", 0.0, every), *((kind, 1.0, families) for kind, families in KINDS.items())]
    found = []
    for number, (kind, temperature, families) in enumerate(parts):
        chosen = [one for one in entries if one["temperature"] == temperature and one["family"] in families]
        replies, draw, text = [reply for one in chosen for reply in one["replies"]], random.Random(number), ""
        while len(text) < length:  # again in another order where there are not enough
            draw.shuffle(replies)
            text += "".join(replies)
        found.append(Trace(f"{kind}, T {temperature:g}", tuple(map(int, text[:length]))))
    return found


# Conditional shares by position. Level and falling ones have the form of published tables.
SHARES = {
    "high": [0.93, 0.92, 0.92, 0.91, 0.91, 0.9, 0.9],
    "good": [0.86, 0.84, 0.83, 0.82, 0.82, 0.81, 0.8],
    "middling": [0.75, 0.7, 0.66, 0.62, 0.6, 0.58, 0.55],
    "falling": [0.88, 0.72, 0.5, 0.3, 0.2, 0.1, 0.05],
    "low": [0.45, 0.4, 0.35, 0.3, 0.3, 0.3, 0.3],
    "poor": [0.25, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2],
    "never": [0.0] * 7,
}


def made(length: int = LENGTH) -> list[Trace]:
    """Texts of one kind, and ones that change."""
    found = [_made(name, [shares], length, number) for number, (name, shares) in enumerate(SHARES.items())]
    changes = {
        "high, then never": ["high", "never"],
        "never, then good": ["never", "good"],
        "good and poor in turn": ["good", "poor"] * 3,
        "all kinds": [*SHARES, *reversed(SHARES)],
    }
    for number, (name, kinds) in enumerate(changes.items()):
        found.append(_made(name, [SHARES[kind] for kind in kinds], length, 100 + number))
    return found


def _made(name: str, parts: Sequence[Sequence[float]], length: int, seed: int) -> Trace:
    draw = random.Random(seed)
    each = -(-length // len(parts))
    kept = [
        sum(1 for _ in itertools.takewhile(lambda share: draw.random() < share, parts[place // each]))
        for place in range(length)
    ]
    return Trace(name, tuple(kept))
