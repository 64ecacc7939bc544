"""Where width policies are tried: traces of acceptance, tables of costs, and a player of policies over both.

A trace says for every position of a text how many drafts a block beginning there has accepted, so that every policy
can be played over the same text. Recorded ones (`benchmarks.record_traces`) are real replies of the embedded pair;
made ones follow shares by position. Costs are a roofline's for a 27B pair, never measured on a chip, and made-up ones.

The policy's constants were chosen on one half (`TUNING`: tables, `tuning`: traces) and are judged on the other
(`HELD_OUT`, `held_out`): other chips and shapes of cost, other prompts, other ways to sample, texts the embedded pair
never learnt, and made texts of other rates, changes and shapes. Whoever changes a constant looks at the first half.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dflash2_mlx.decode.costs import PassCosts, expected_tokens
from dflash2_mlx.decode.widths import WidthPolicy

_DATA = Path(__file__).parents[1] / "data"
BLOCK = 8
LUCK = 20
LENGTH = 6000  # tokens of a trace: shorter ones have a best fixed width by luck


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


class Fixed:
    """The policy of the same width in every round."""

    def __init__(self, width: int):
        self._width = width

    def width(self) -> int:
        return self._width

    def learn(self, width: int, num_accepted: int) -> None:
        """Nothing: the width stays."""


TUNING = ("M1 Pro stock", "M1 Pro own", "M3 Max stock", "M5 Max own", "linear", "steep", "step at 5")
HELD_OUT = ("M3 Max own", "M4 Pro stock", "M4 Pro own", "M5 Max stock", "flat", "gentle", "step at 6", "wall at 8")


@cache
def cost_tables() -> Mapping[str, PassCosts]:
    """A 27B pair with 4-bit weights on several chips, with MLX's few-row kernels and with ours: by a roofline."""
    found = json.loads((_DATA / "pass_costs.json").read_text())
    return {name: PassCosts.from_dict(costs) for name, costs in found.items()}


def all_tables() -> Mapping[str, PassCosts]:
    """Those of the chips, and made-up ones with other shapes."""
    return {
        **cost_tables(),
        "flat": made_up(row=0.005),
        "gentle": made_up(row=0.07, draft=0.15),
        "linear": made_up(row=0.2),
        "steep": made_up(row=0.5, draft=0.2),
        "step at 5": made_up(row=0.03, jump=0.8),
        "step at 6": made_up(row=0.03, jump=0.5, first=6, draft=0.2),
        "wall at 8": made_up(row=0.03, jump=3.0, first=8),
    }


def made_up(row: float, jump: float = 0.0, first: int = 5, draft: float = 0.1) -> PassCosts:
    """A plain pass takes 1, each further row `row`, passes of `first` rows or more a `jump`, a draft pass `draft`."""
    verify = {rows: 1.0 + row * (rows - 1) + jump * (rows >= first) for rows in range(1, BLOCK + 1)}
    return PassCosts(verify, {width: draft + 0.01 * width for width in range(2, BLOCK + 1)})


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
    "never learnt": ("strange",),
}


def recorded(file: str) -> Mapping[tuple[str, float], list[str]]:
    """Replies of a recorded file by kind of prompt and temperature: a digit for each token."""
    found: dict[tuple[str, float], list[str]] = {}
    for one in json.loads((_DATA / file).read_text(encoding="utf-8"))["traces"]:
        kind = next(name for name, families in KINDS.items() if one["family"] in families)
        found.setdefault((kind, one["temperature"]), []).extend(one["replies"])
    return found


def as_text(name: str, replies: Sequence[str], length: int, seed: int) -> Trace:
    """Replies one after another, again in another order where there are not enough."""
    replies, draw, text = list(replies), random.Random(seed), ""
    while len(text) < length:
        draw.shuffle(replies)
        text += "".join(replies)
    return Trace(name, tuple(map(int, text[:length])))


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


def level(share: float) -> list[float]:
    """The same share at every position."""
    return [share] * (BLOCK - 1)


def tuning(length: int = LENGTH) -> list[Trace]:
    """What the constants were chosen on."""
    replies = recorded("traces.json")
    every = [reply for (_, temperature), some in replies.items() if temperature == 0 for reply in some]
    found = [as_text("all kinds, T 0", every, length, 0)]
    for number, (kind, temperature) in enumerate(key for key in replies if key[1] == 1):
        found.append(as_text(f"{kind}, T 1", replies[kind, temperature], length, 1 + number))
    found += [made(name, [shares], length, 50 + number) for number, (name, shares) in enumerate(SHARES.items())]
    changes: dict[str, list[Sequence[float]]] = {
        "high, then never": [SHARES["high"], SHARES["never"]],
        "never, then good": [SHARES["never"], SHARES["good"]],
        "good and poor in turn": [SHARES["good"], SHARES["poor"]] * 3,
        "0.95 and 0.3 in turn": [level(0.95), level(0.3)] * 4,
        "middling and low in turn": [SHARES["middling"], SHARES["low"]] * 3,
    }
    found += [made(name, parts, length, 150 + number) for number, (name, parts) in enumerate(changes.items())]
    return [*found, streaks("streaks", level(0.92), SHARES["never"], (15, 25), length, 200)]


def streaks(
    name: str, easy: Sequence[float], hard: Sequence[float], mean: tuple[int, int], length: int, seed: int
) -> Trace:
    """A text of easy and hard stretches in turn, of random lengths with these means."""
    draw, parts = random.Random(seed), []
    while len(parts) < length:
        for shares, tokens in zip((easy, hard), mean, strict=True):
            parts += [shares] * (1 + int(draw.expovariate(1 / tokens)))
    return made(name, parts[:length], length, seed)


def held_out(length: int = LENGTH) -> list[Trace]:
    """What they are judged on."""
    ordinary: dict[float, list[str]] = {}
    strange: list[str] = []
    for (kind, temperature), some in recorded("traces_held_out.json").items():
        (strange if kind == "never learnt" else ordinary.setdefault(temperature, [])).extend(some)
    found = [as_text(f"ordinary, T {warmth:g}", some, length, 300) for warmth, some in ordinary.items()]
    found.append(as_text("never learnt", strange, length, 301))
    levels = {f"always {share:g}": [level(share)] for share in (1.0, 0.97, 0.8, 0.6, 0.35, 0.0)}
    draw = random.Random(400)
    texts: dict[str, list[Sequence[float]]] = {
        **levels,
        "rises with position": [[0.5, 0.7, 0.8, 0.9, 0.95, 0.95, 0.95]],
        "falls with position": [[0.95, 0.9, 0.6, 0.6, 0.3, 0.3, 0.1]],
        "gets harder slowly": [level(0.95 - 0.7 * part / 49) for part in range(50)],
        "0.9 and 0.2, 500 tokens each": [level(0.9), level(0.2)] * max(1, length // 1000),
        "0.95 to 0.3 and back": [level(0.95), level(0.3), level(0.95)],
        "a new kind every 150 tokens": [level(draw.uniform(0.2, 0.97)) for _ in range(length // 150)],
    }
    return found + [made(name, parts, length, 500 + number) for number, (name, parts) in enumerate(texts.items())]


def made(name: str, parts: Sequence[Sequence[float]], length: int, seed: int) -> Trace:
    """A text whose parts, of the same length, have these shares."""
    draw = random.Random(seed)
    each = -(-length // len(parts))
    kept = [
        sum(1 for _ in itertools.takewhile(lambda share: draw.random() < share, parts[place // each]))
        for place in range(length)
    ]
    return Trace(name, tuple(kept))


@dataclass(frozen=True)
class Change:
    """What a change of text costs: rounds until the width suits the new text, and plain passes lost until then."""

    rounds: float
    lost: float


def change(
    policy_of: Callable[[], WidthPolicy], costs: PassCosts, before: Sequence[float], after: Sequence[float]
) -> Change:
    """A text that changes after 100 rounds, followed for 100 more: the median and the mean over some luck.

    A width suits once five rounds in a row are expected to bring 95 % of what the best width brings.
    """
    one, rounds, lost = costs.verify[1], [], 0.0
    speeds = {width: expected_tokens(after, width) * one / round_s(costs, width) for width in (1, *costs.draft)}
    for seed in range(LUCK):
        widths = simulate(policy_of(), costs, lambda number: before if number < 100 else after, 200, seed).widths[100:]
        suits = [speeds[width] >= 0.95 * max(speeds.values()) for width in widths]
        rounds.append(next((place for place in range(95) if all(suits[place : place + 5])), 100))
        lost += sum(round_s(costs, w) / one * (1 - speeds[w] / max(speeds.values())) for w in widths)
    return Change(statistics.median(rounds), lost / LUCK)


def simulate(
    policy: WidthPolicy, costs: PassCosts, shares_at: Callable[[int], Sequence[float]], rounds: int, seed: int = 1
) -> Played:
    """Rounds whose drafts are accepted with shares that depend on the number of the round."""
    draw, tokens, seconds, widths, unread = random.Random(seed), 0, 0.0, [], None
    for number in range(rounds):
        width = policy.width()
        if unread is not None:
            policy.learn(*unread)
        kept = sum(1 for _ in itertools.takewhile(lambda share: draw.random() < share, shares_at(number)[: width - 1]))
        unread = width, kept
        tokens += kept + 1
        seconds += round_s(costs, width)
        widths.append(width)
    return Played(tokens, seconds, tuple(widths))


def play_replies(policy_of: Callable[[], WidthPolicy], costs: PassCosts, replies: Iterable[Trace]) -> float:
    """Tokens per second of short replies, each with a policy that has seen nothing yet."""
    played = [play(policy_of(), costs, reply) for reply in replies]
    return sum(one.tokens for one in played) / sum(one.seconds for one in played)
