"""Measures a server with the prompts and settings that a pair is measured with.

Owns: what is sent, and how the answers become the reports of the library. A conversation's first turn only is sent, as
the authors' runner does. Acceptance is reported only where the server tells of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import FIELDS, TEMPERATURE

from .endpoint import Answer, Server

CHARACTERS_PER_TOKEN = 4  # a server's tokenizer is not known; what the context came to is in its token counts
_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(?P<name>drafts|accepted_tokens|accepted_tokens_per_pos)(?:_total)?"
    r"(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'position="(\d+)"')


class Quarters:
    """Stands in for a server's tokenizer: a token is four characters, its id the number of the piece."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def encode(self, text: str, **_: Any) -> list[int]:
        first = len(self._pieces)
        self._pieces += [text[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(text), CHARACTERS_PER_TOKEN)]
        return list(range(first, len(self._pieces)))

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self._pieces[number] for number in ids)


@dataclass(frozen=True)
class Counters:
    """vLLM's counters of speculative decoding: rounds, accepted drafts, and accepted drafts by position."""

    drafts: float = 0.0
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()

    def since(self, before: Counters) -> Counters:
        old = (*before.by_position, *[0.0] * len(self.by_position))
        steps = tuple(now - then for now, then in zip(self.by_position, old, strict=False))
        return Counters(self.drafts - before.drafts, self.accepted - before.accepted, steps)

    @property
    def acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def acceptance_by_position(self) -> list[float | None]:
        """Conditional, as everywhere: of the rounds that accepted all drafts before this one."""
        reached = [self.drafts, *self.by_position]
        return [later / earlier if earlier else None for earlier, later in pairwise(reached)]


def read_counters(page: str) -> Counters:
    """Add up vLLM's counters over all engines of a Prometheus page; zeros where there are none."""
    sums = {"drafts": 0.0, "accepted_tokens": 0.0}
    positions: dict[int, float] = {}
    for found in _COUNTER.finditer(page):
        name, value = found["name"], float(found["value"])
        if name in sums:
            sums[name] += value
        elif place := _POSITION.search(found["labels"] or ""):
            positions[int(place[1])] = positions.get(int(place[1]), 0.0) + value
    by_position = tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1))
    return Counters(sums["drafts"], sums["accepted_tokens"], by_position)


@dataclass(frozen=True)
class Served:
    """One request, with the server's own word on its acceptance."""

    run: d2.bench.Run
    acceptance_length: float | None
    source: str | None


@dataclass(frozen=True)
class Counted:
    """What a server's counters say of one setting, all requests together."""

    setting: d2.bench.Setting
    counters: Counters


def request_options(
    plan: d2.bench.Plan, setting: d2.bench.Setting, place: int, chat_template_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The settings of one request; what stands at its neutral value is not sent, so that no server trips over it."""
    sampling: d2.SamplingConfig = plan.sampling
    options: dict[str, Any] = {"max_tokens": plan.max_tokens}
    if chat_template_kwargs:
        options["chat_template_kwargs"] = dict(chat_template_kwargs)
    if setting.temperature is None:
        return options
    options |= {"temperature": setting.temperature, "seed": plan.seed + place}
    for field in FIELDS:
        value = getattr(sampling, field.name)
        if field.settings and field is not TEMPERATURE and value != field.default:
            options[field.name] = value
    if sampling.logit_bias:
        options["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return options


def measure_server(
    server: Server, prompts: Sequence[d2.bench.BenchPrompt], plan: d2.bench.Plan
) -> Iterator[d2.bench.Stage | Served | Counted]:
    """Ask everything the plan asks for, one request at a time; an event per thing done."""
    for setting in plan.settings:
        deep = [
            d2.bench.deepen(prompt, d2.bench.filler(prompts, place, setting.depth, Quarters()))
            for place, prompt in enumerate(prompts)
        ]
        yield d2.bench.Stage(setting, "warming up")
        options = request_options(plan, setting, 0, plan.chat_template_kwargs)
        server.ask(deep[0].first, {**options, "max_tokens": min(64, plan.max_tokens)}, chat=plan.chat_template)
        yield d2.bench.Stage(setting, "measuring")
        before = read_counters(server.metrics())
        for repeat in range(plan.repeats):
            for place, prompt in enumerate(deep):
                options = request_options(plan, setting, place, plan.chat_template_kwargs)
                answer = server.ask(prompt.first, options, chat=plan.chat_template)
                run = _run(setting, repeat, place, answer)
                yield Served(run, answer.acceptance_length, answer.acceptance_source)
        yield Counted(setting, read_counters(server.metrics()).since(before))


def _run(setting: d2.bench.Setting, repeat: int, place: int, answer: Answer) -> d2.bench.Run:
    return d2.bench.Run(
        setting, d2.bench.PLAIN, repeat, place, 0, answer.prompt_tokens, answer.completion_tokens,
        answer.first_token_s, answer.decode_s, 0, answer.finish_reason, (),
    )  # fmt: skip


def summarize_server(
    events: Sequence[d2.bench.Stage | Served | Counted],
) -> tuple[list[d2.bench.SettingReport], list[str]]:
    """One arm per setting, and where its acceptance is from."""
    served = [event for event in events if isinstance(event, Served)]
    counted = {event.setting: event.counters for event in events if isinstance(event, Counted)}
    sources = {event.source for event in served if event.source}
    reports = []
    for report in d2.bench.summarize([event.run for event in served]):
        (arm,) = report.arms
        mine = [event for event in served if event.run.setting == report.setting]
        length = d2.bench.mean_over_requests(_by_request(mine))
        shares: list[float | None] = []
        counters = counted.get(report.setting, Counters())
        if length is None and counters.drafts:
            length, shares = counters.acceptance_length, counters.acceptance_by_position
            sources.add("/metrics (vLLM), all requests together")
        expected = d2.bench.expected_length(shares) if shares else None
        reports.append(
            replace(
                report,
                arms=[
                    replace(
                        arm, rounds=0, speedup=None, acceptance_length=length,
                        acceptance_by_position=shares, expected_length=expected,
                    )
                ],
            )
        )  # fmt: skip
    return reports, sorted(sources)


def _by_request(served: Sequence[Served]) -> list[float | None]:
    """One value per request: repeats of it are averaged."""
    places = sorted({event.run.prompt for event in served})
    return [
        d2.bench.mean_over_requests(event.acceptance_length for event in served if event.run.prompt == place)
        for place in places
    ]
