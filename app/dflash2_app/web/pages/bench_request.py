"""What a page asks to be measured, read strictly and made into a measurement.

Owns: the fields of a request, and what they mean for a served model. The words and defaults are those of the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash2_mlx.sampling.fields import (
    IDLE_AT_ZERO,
    LOSSLESS_MODE,
    NUMBERS,
    SEED,
    TEMPERATURE,
    TOP_K,
)

from ...bench.pair import PairBench, draw_sample, template_args
from ...bench.presets import (
    PRESETS,
    USUAL_REPEATS,
    USUAL_SAMPLES,
    preset_sampling,
    usual_tokens,
    usual_widths,
    without_effect,
)
from ...bench.sets import MINI, NAMES, PromptSet, load_set
from ...reports.machine import busy_note
from ..http.errors import ApiError, from_library, refuse
from ..http.fields import Fields
from ..serving.source import Served

if TYPE_CHECKING:
    from dflash2_mlx import bench

OWN_PROMPTS = "own prompts"
_IDLE = [name for name in IDLE_AT_ZERO if name != SEED.name]  # the seed is the measurement's, not of its sampling


@dataclass(frozen=True)
class BenchAsk:
    """One measurement as it was asked for; None is what a preset, the model or we usually take."""

    model: str
    set: str
    own_prompts: Sequence[bench.BenchPrompt] | None
    samples: int | None
    widths: tuple[int, ...] | None
    depths: tuple[int, ...]
    temperatures: tuple[float, ...] | None
    max_tokens: int
    repeats: int
    seed: int
    preset: str | None
    phases: bool
    chat_template: bool
    chat_template_args: Mapping[str, Any] | None
    sampling: Mapping[str, Any]

    def prepare(self, served: Served) -> PairBench:
        """Fetch the prompts and check everything against the loaded model; may take long.

        Raises:
            AppError: the prompts cannot be fetched.
            Dflash2Error: something does not suit the model.
        """
        from dflash2_mlx import bench

        engine = served.engine
        found = self._prompts()
        chosen = draw_sample(found, self.samples or USUAL_SAMPLES)
        sampling, temperatures = preset_sampling(self.preset, self.sampling, self.temperatures, engine.target_name)
        variables, notes = template_args(engine, self.preset, self.chat_template_args, chat_template=self.chat_template)
        idle = {name: self.sampling.get(name) for name in _IDLE}
        notes = [*self._notes(found, served), *without_effect(idle, temperatures), *notes]
        plan = bench.Plan(
            widths=self.widths or usual_widths(engine.block_size), depths=self.depths, temperatures=temperatures,
            repeats=self.repeats, max_tokens=self.max_tokens, sampling=sampling, seed=self.seed,
            chat_template=self.chat_template, chat_template_kwargs=variables, phases=self.phases,
        )  # fmt: skip
        measurement = PairBench(engine, chosen, plan, self.preset, tuple(notes), busy_note())
        measurement.check()
        return measurement

    def _prompts(self) -> PromptSet:
        if self.own_prompts is not None:
            return PromptSet(OWN_PROMPTS, list(self.own_prompts))
        return load_set(self.set)

    def _notes(self, found: PromptSet, served: Served) -> list[str]:
        notes = []
        if self.samples is not None and self.samples > len(found.prompts):
            notes.append(f"samples: {self.samples} were asked for, {found.name} has {len(found.prompts)}")
        reason = served.report.dflash_fallback_reason
        if not served.report.dflash_active and reason is not None:
            notes.append(f"DFlash is not active for {served.name}: {reason}")
        return notes


def read_bench(body: Any) -> BenchAsk:
    """Read a request.

    Raises:
        ApiError: naming the field, what came and what was expected.
    """
    fields = Fields(body)
    preset = fields.one_of("preset", *PRESETS)
    chat_template = fields.boolean("chat_template") is not False
    variables = fields.mapping("chat_template_args")
    if variables is not None and not chat_template:
        raise refuse("chat_template_args", variables, "nothing: chat_template is false")
    own, name = _own_prompts(fields.text("prompts")), fields.one_of("set", *NAMES)
    if own is not None and name is not None:
        raise refuse("prompts", "text beside a set", "one of the two")
    ask = BenchAsk(
        model=fields.required_text("model"),
        set=name or MINI,
        own_prompts=own,
        samples=fields.integer("samples", 1),
        widths=_numbers(fields, "widths", 1),
        depths=_numbers(fields, "depths", 0) or (0,),
        temperatures=_temperatures(fields),
        max_tokens=fields.integer("max_tokens", 2) or usual_tokens(preset),
        repeats=fields.integer("repeats", 1, 10_000) or USUAL_REPEATS,
        seed=fields.integer("seed", 0, 2**63) or 0,
        preset=preset,
        phases=fields.boolean("phases") is not False,
        chat_template=chat_template,
        chat_template_args=variables,
        sampling=_sampling(fields),
    )
    fields.finish()
    return ask


def _own_prompts(text: str | None) -> list[bench.BenchPrompt] | None:
    if text is None:
        return None
    import dflash2_mlx as d2
    from dflash2_mlx import bench

    try:
        return bench.parse_prompts(text, "prompts")
    except d2.PromptError as error:
        raise ApiError(" ".join(str(error).split()), param="prompts") from None


def _numbers(fields: Fields, name: str, least: int) -> tuple[int, ...] | None:
    """A list of different integers, None when absent."""
    values = fields.items(name)
    if values is None:
        return None
    fitting = all(isinstance(value, int) and not isinstance(value, bool) and value >= least for value in values)
    if not values or not fitting or len(set(values)) != len(values):
        raise refuse(name, values, f"a list of different integers >= {least}")
    return tuple(values)


def _temperatures(fields: Fields) -> tuple[float, ...] | None:
    values = fields.items("temperatures")
    if values is None:
        return None
    fitting = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100 for value in values
    )
    if not values or not fitting or len(set(values)) != len(values):
        raise refuse("temperatures", values, "a list of different numbers in [0, 100]")
    return tuple(map(float, values))


def _sampling(fields: Fields) -> dict[str, Any]:
    """How tokens are drawn at the temperatures above 0, as far as it was stated."""
    import dflash2_mlx as d2

    stated: dict[str, Any] = {
        number.name: fields.number(number.name, number.least, number.request_most)
        for number in NUMBERS
        if number is not TEMPERATURE
    }
    stated[TOP_K.name] = fields.integer(TOP_K.name, TOP_K.least, TOP_K.request_most)
    stated[LOSSLESS_MODE.name] = fields.one_of(LOSSLESS_MODE.name, *LOSSLESS_MODE.choices)
    stated = {name: value for name, value in stated.items() if value is not None}
    try:
        d2.SamplingConfig(**stated)
    except d2.ConfigError as error:
        raise from_library(error) from None
    return stated
