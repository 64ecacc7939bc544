"""Runs the arms of a measurement in turn and tells what each request did.

Owns: the order of runs and what is noted of one. Plain decoding (width 1) and every drafted width decode the same
prompts in one process, taking turns request by request, so that a slow moment of the machine hits all alike. What the
numbers amount to is `report`'s business. A reader may stop at any event and use what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine import Engine
from ..errors import ConfigError, PromptError, SettingError
from ..generation.compare import compare_runs
from ..generation.config import GenerationConfig
from ..generation.generate import collect, stream_generate
from ..generation.results import GenerationEvent, GenerationResult
from ..generation.text import Prompt, render_prompt
from ..sampling.config import SamplingConfig
from ..validation import check_integer
from .metrics import Round, Spread, spread
from .observed import time_phases
from .prompts import BenchPrompt, deepen, filler

PLAIN = 1  # the width of plain decoding
WARM_UP_TOKENS = 64  # of the authors' runner
PHASE_PROMPTS, PHASE_TOKENS = 2, 64  # the instrumented runs are slow, and medians over rounds settle soon


@dataclass(frozen=True)
class Plan:
    """What is measured.

    `widths` are rows per verify, 1 for plain decoding; `depths` are tokens of context in front of a prompt; temperature
    None leaves it to a server. Request number n of a set is drawn with `seed` + n in every arm and repeat. `sampling`
    gives everything but temperature and seed; its `lossless_mode` None means rejection, as the published tables were
    measured.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...] = (0,)
    temperatures: tuple[float | None, ...] = (0.0,)
    repeats: int = 3
    max_tokens: int = 256
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int = 0
    chat_template: bool = True
    chat_template_kwargs: Mapping[str, Any] | None = None
    phases: bool = True

    def __post_init__(self) -> None:
        lists: dict[str, Sequence[float | None]] = {
            "widths": self.widths,
            "depths": self.depths,
            "temperatures": self.temperatures,
        }
        for name, values in lists.items():
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name}: got {list(values)}, expected one or more different numbers")
        check_integer("repeats", self.repeats, 1)
        check_integer("max_tokens", self.max_tokens, 1)

    @property
    def settings(self) -> list[Setting]:
        """The combinations of depth and temperature, in the order they are measured."""
        return [Setting(depth, temperature) for depth in self.depths for temperature in self.temperatures]

    def requests(self, prompts: Sequence[BenchPrompt]) -> int:
        """How many timed requests a whole measurement has."""
        turns = sum(prompt.requests for prompt in prompts)
        return len(self.settings) * self.repeats * len(self.widths) * turns

    def config(self, setting: Setting, width: int, place: int) -> GenerationConfig:
        """How prompt number `place` is decoded in one arm.

        Raises:
            ConfigError: the setting leaves the temperature to a server.
        """
        if setting.temperature is None:
            raise ConfigError("temperature: got None, expected a number: here it is us who draw")
        mode = self.sampling.lossless_mode or "rejection"
        sampling = replace(self.sampling, temperature=setting.temperature, seed=self.seed + place, lossless_mode=mode)
        return GenerationConfig(
            max_tokens=self.max_tokens,
            sampling=sampling,
            block_size=None if width == PLAIN else width,
            mode="plain" if width == PLAIN else "dflash2",
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
        )


@dataclass(frozen=True)
class Setting:
    """What all arms have in common while they are compared; temperature None where a server draws as it likes."""

    depth: int
    temperature: float | None


@dataclass(frozen=True)
class Run:
    """One timed request. `prompt` and `turn` say which; `rounds` are its own, none of the prefill."""

    setting: Setting
    width: int
    repeat: int
    prompt: int
    turn: int
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float
    decode_s: float
    peak_memory_bytes: int
    finish_reason: str
    rounds: tuple[Round, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Whether a drafted reply is plain decoding's, token for token; made where it has to be."""

    setting: Setting
    width: int
    repeat: int
    prompt: int
    turn: int
    identical: bool
    first_difference: dict[str, Any] | None


@dataclass(frozen=True)
class PhaseTimes:
    """Milliseconds per round, from the instrumented runs."""

    setting: Setting
    width: int
    milliseconds: dict[str, Spread]


@dataclass(frozen=True)
class Stage:
    """What begins now; nothing was measured."""

    setting: Setting
    doing: str


Event = Run | Comparison | PhaseTimes | Stage


def check_plan(engine: Engine, prompts: Sequence[BenchPrompt], plan: Plan) -> None:
    """Refuse what would fail in the middle.

    Raises:
        SettingError: a width beyond the drafter's block size, or a depth beyond the context.
        PromptError: no prompts, or one the target cannot take.
    """
    if not prompts:
        raise PromptError("prompts: got none, expected at least one")
    most = engine.block_size or PLAIN
    for width in plan.widths:
        if not PLAIN <= width <= most:
            without = "" if engine.drafter is not None else ": there is no drafter"
            raise SettingError(f"widths: got {width}, expected integers in {PLAIN}..{most}{without}")
    longest = 0
    for prompt in prompts:
        if prompt.follow_ups and not (plan.chat_template and engine.tokenizer.has_chat_template):
            raise PromptError("prompts: got a conversation, expected single prompts: no chat template is used")
        ids = render_prompt(
            engine.tokenizer,
            prompt.first,
            chat_template=plan.chat_template,
            template_kwargs=plan.chat_template_kwargs,
        ).ids
        longest = max(longest, len(ids))
    limit = engine.context_length
    for depth in plan.depths:
        if limit is not None and depth + longest + plan.max_tokens > limit:
            raise SettingError(
                f"depths: got {depth}, expected at most {max(0, limit - longest - plan.max_tokens)}: prompts of up to "
                f"{longest} tokens and {plan.max_tokens} of reply share a context of {limit}"
            )


def _go_on() -> None:
    """The check of a measurement that nobody wants to stop."""


def measure(
    engine: Engine, prompts: Sequence[BenchPrompt], plan: Plan, check: Callable[[], None] = _go_on
) -> Generator[Event, None, None]:
    """Run everything the plan asks for, one event per thing done.

    Args:
        check: called after every round of the timed and the warming runs; what it raises ends the measurement there,
            so that a reader need not wait for the end of a long reply.
    Raises:
        SettingError, PromptError: before anything runs, see `check_plan`.
    """
    check_plan(engine, prompts, plan)
    for setting in plan.settings:
        deep = [
            deepen(prompt, filler(prompts, place, setting.depth, engine.tokenizer))
            for place, prompt in enumerate(prompts)
        ]
        yield Stage(setting, "warming up")
        _warm_up(engine, deep[0], setting, plan, check)
        yield Stage(setting, "measuring")
        for repeat in range(plan.repeats):
            for place, prompt in enumerate(deep):
                yield from _turns(engine, prompt, place, setting, plan, repeat, check)
        if plan.phases:
            yield Stage(setting, "timing the phases of a round")
            yield from _phases(engine, deep[:PHASE_PROMPTS], setting, plan, check)


def _phases(
    engine: Engine, prompts: Sequence[BenchPrompt], setting: Setting, plan: Plan, check: Callable[[], None]
) -> Iterator[PhaseTimes]:
    """The instrumented runs, in turn as well; all rounds of an arm are summed up together."""
    found: dict[int, dict[str, list[float]]] = {width: {} for width in plan.widths}
    for prompt in prompts:
        for width in plan.widths:
            check()
            config = replace(plan.config(setting, width, 0), max_tokens=min(PHASE_TOKENS, plan.max_tokens))
            for name, values in time_phases(engine, prompt.first, config).items():
                found[width].setdefault(name, []).extend(values)
    for width, phases in found.items():
        yield PhaseTimes(setting, width, {name: spread(values) for name, values in phases.items() if values})


def _warm_up(engine: Engine, prompt: BenchPrompt, setting: Setting, plan: Plan, check: Callable[[], None]) -> None:
    """Let every arm meet its shapes once, or the first timed run would pay for their compilation."""
    for width in plan.widths:
        config = plan.config(setting, width, 0)
        _timed(engine, prompt.first, replace(config, max_tokens=min(WARM_UP_TOKENS, config.max_tokens)), check)


@dataclass(frozen=True)
class _Answer:
    """One turn of one arm, kept until it was compared."""

    asked: Prompt
    result: GenerationResult
    run: Run


def _turns(
    engine: Engine,
    prompt: BenchPrompt,
    place: int,
    setting: Setting,
    plan: Plan,
    repeat: int,
    check: Callable[[], None],
) -> Iterator[Run | Comparison]:
    """One prompt with every arm; which arm begins changes with the repeat and the prompt."""
    shift = (repeat + place) % len(plan.widths)
    answers: dict[int, list[_Answer]] = {}
    for width in plan.widths[shift:] + plan.widths[:shift]:
        answers[width] = []
        for answer in _converse(engine, prompt, place, setting, plan, (width, repeat), check):
            answers[width].append(answer)
            yield answer.run
    config = plan.config(setting, PLAIN, place)
    if PLAIN in answers and (config.sampling.greedy or config.sampling.coupled):
        for width in sorted(set(answers) - {PLAIN}):
            yield from _compare(engine, config, answers[PLAIN], answers[width])


def _converse(
    engine: Engine,
    prompt: BenchPrompt,
    place: int,
    setting: Setting,
    plan: Plan,
    arm: tuple[int, int],
    check: Callable[[], None],
) -> Iterator[_Answer]:
    """All turns of one prompt in one arm; each arm goes on from its own replies."""
    width, repeat = arm
    config, asked = plan.config(setting, width, place), prompt.first
    for turn in range(prompt.requests):
        result, rounds = _timed(engine, asked, config, check)
        stats = result.stats
        yield _Answer(
            asked,
            result,
            Run(
                setting, width, repeat, place, turn, stats.prompt_tokens, stats.generated_tokens, stats.prefill_s,
                stats.decode_s, stats.peak_memory_bytes, result.finish_reason, rounds, tuple(stats.notices),
            ),
        )  # fmt: skip
        if turn < len(prompt.follow_ups):
            asked = prompt.answered(asked, result.text, turn)


def _timed(
    engine: Engine, prompt: Prompt, config: GenerationConfig, check: Callable[[], None]
) -> tuple[GenerationResult, tuple[Round, ...]]:
    rounds: list[Round] = []

    def watched(events: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        for event in events:
            if event.round is not None:
                done = event.round
                rounds.append(Round(done.num_accepted, done.width - 1, done.committed))
            check()
            yield event

    with closing(stream_generate(engine, prompt, config)) as events:
        return collect(engine, watched(events)), tuple(rounds)


def _compare(
    engine: Engine, config: GenerationConfig, plain: Sequence[_Answer], drafted: Sequence[_Answer]
) -> Iterator[Comparison]:
    """Turn by turn, as long as both were asked the same: after a difference the conversations part."""
    for ours, theirs in zip(plain, drafted, strict=True):
        verdict = compare_runs(engine, ours.asked, config, ours.result, theirs.result)
        run = theirs.run
        yield Comparison(
            run.setting, run.width, run.repeat, run.prompt, run.turn, verdict.identical, verdict.first_difference
        )
        if not verdict.identical:
            return
