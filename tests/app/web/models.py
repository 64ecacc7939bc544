"""A tiny chat model for the server's tests: random weights, real tokenizer with thinking and tool calls.

Every byte is a token, so any text can be written and every grammar has its tokens. The output head knows printable
ASCII only, which keeps free replies readable.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools, qwen3_coder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import dflash2_mlx as d2
from dflash2_app.engine.loading import Loaded
from dflash2_app.engine.model import Configured, Prompt, Report
from dflash2_app.engine.setup import prepare
from dflash2_app.settings.names import Named
from dflash2_app.settings.paths import Base
from dflash2_app.settings.plan import make_plan
from dflash2_app.settings.resolve import MODEL, resolve
from dflash2_app.web.serving.catalogue import SERVER_DEFAULTS, ConfiguredSource
from dflash2_app.web.serving.source import Card, Served
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.engine import Engine
from dflash2_mlx.targets.registry import make_target
from tests.tiny import TARGET_CONFIGS, drafter_config, drafter_weights, make_mlx_model

SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<think>", "</think>", "<tool_call>",
            "</tool_call>"]  # fmt: skip
VOCAB = 272
PARSERS = {"json_tools": json_tools, "qwen3_coder": qwen3_coder}
PRINTABLE = range(32, 127)
# Speaks of everything the server may ask of a template; `tool_call.name` is how mlx-lm knows the form of calls.
TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}<tool_call>{{ tool_call.function.name }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking %}{{ '<think>\n' if open_thinking else '' }}{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


@functools.cache
def byte_order() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level tokenizers, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    signs, spare = {byte: chr(byte) for byte in shown}, 256
    for byte in range(256):
        if byte not in signs:
            signs[byte], spare = chr(spare), spare + 1
    return [signs[byte] for byte in range(256)]


def chat_tokenizer(*, template: str | None = TEMPLATE, parser: Any = json_tools) -> TokenizerWrapper:
    """Byte b is token b; then the special tokens."""
    raw = Tokenizer(models.BPE({sign: at for at, sign in enumerate(byte_order())}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([SPECIALS[0]])
    raw.add_tokens(SPECIALS[1:])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=SPECIALS[0], clean_up_tokenization_spaces=False)
    fast.chat_template = template
    calls = {} if parser is None else {
        "tool_call_start": parser.tool_call_start, "tool_call_end": parser.tool_call_end,
        "tool_parser": parser.parse_tool_call,
    }  # fmt: skip
    return TokenizerWrapper(fast, eos_token_ids=[256], **calls)


@functools.cache
def _weights() -> tuple[Any, DraftModel]:
    def make() -> tuple[Any, DraftModel]:
        config = {**TARGET_CONFIGS["qwen3_untied"], "vocab_size": VOCAB}
        model = make_mlx_model(config, seed=3)
        rows = mx.array([1.0 if row in PRINTABLE else 0.0 for row in range(VOCAB)])
        model.lm_head.weight = model.lm_head.weight * rows[:, None]
        target = make_target(model, config)
        raw = d2.DrafterConfig.from_dict(drafter_config(vocab_size=VOCAB))
        drafter = DraftModel(raw)
        drafter.load_weights(list(drafter_weights(raw).items()))
        mx.eval(model.parameters(), drafter.parameters())
        return target, drafter

    return owner().call(make)


def tiny_engine(*, drafts: bool = True, **tokenizer: Any) -> Engine:
    target, drafter = _weights()
    return Engine(
        target=target, drafter=drafter if drafts else None, tokenizer=chat_tokenizer(**tokenizer), target_name="tiny",
        drafter_name="tiny-drafter" if drafts else None, stop_token_ids=frozenset({256}),
    )  # fmt: skip


def defaults(**changes: Any) -> d2.GenerationConfig:
    return replace(d2.GenerationConfig(max_tokens=64), **changes)


def report(drafts: bool = True) -> Report:
    return Report("dflash2" if drafts else "plain", drafts, drafts, None if drafts else "no drafter given")


def tiny_pair(
    engine: Engine | None = None, *, drafts: bool = True, cache: d2.PrefixCache | None = None, **settings: Any
) -> Configured:
    """An engine under settings by key, as a model's record would give them."""
    effective = resolve({MODEL: {"max_tokens": 64, **settings}})
    engine = engine or tiny_engine(drafts=drafts)
    plan = make_plan(effective, "tiny")
    loaded = Loaded(engine, prefix_cache=cache)
    return Configured(loaded, Named("tiny", "tiny", False), effective, plan, report(drafts))


def tiny_served(
    name: str = "tiny", *, drafts: bool = True, cache: d2.PrefixCache | None = None,
    settings: dict[str, Any] | None = None, **tokenizer: Any,
) -> Served:  # fmt: skip
    engine = tiny_engine(drafts=drafts, **tokenizer)
    return Served.of(name, tiny_pair(engine, drafts=drafts, cache=cache, **(settings or {})))


@dataclass(frozen=True)
class Scripted(Served):
    """A model that always writes the same text, a few tokens per round; counts what was made of it."""

    script: str = ""
    per_round: int = 3
    round_s: float = 0.0
    fault: Exception | None = None
    prompts: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def render(self, prompt: Prompt, config: d2.GenerationConfig) -> d2.RenderedPrompt:
        self.prompts.append(prompt)
        return super().render(prompt, config)

    def stream(
        self, prompt: d2.RenderedPrompt, config: d2.GenerationConfig, constraint: d2.LogitConstraint | None = None
    ) -> Generator[d2.GenerationEvent, None, None]:
        super().stream(prompt, config).close()  # the library's own checks
        self.asked.append((self.prompts[-1], config, constraint))
        return self._events(config)

    def _events(self, config: d2.GenerationConfig) -> Generator[d2.GenerationEvent, None, None]:
        stats = d2.GenerationStats("dflash2", 5, prompt_tokens=7, cached_tokens=2)
        ids = self.tokenizer.encode(self.script)[: config.max_tokens]
        cut = len(ids) == config.max_tokens
        for at in range(0, len(ids), self.per_round):
            time.sleep(self.round_s)
            self.rounds.append(at)
            piece = ids[at : at + self.per_round]
            stats.generated_tokens += len(piece)
            last = at + self.per_round >= len(ids)
            yield d2.GenerationEvent(
                self.tokenizer.decode(piece), tuple(piece), stats.copy(),
                ("length" if cut else "stop") if last else None,
                logprobs=tuple(d2.TokenLogprob(token, -0.5, ((token, -0.5), (63, float("-inf")))) for token in piece)
                if config.logprobs is not None else (),
            )  # fmt: skip
            if self.fault is not None:
                raise self.fault


def scripted(script: str, name: str = "scripted", *, parser: Any = json_tools, **options: Any) -> Scripted:
    return Scripted.of(name, tiny_pair(tiny_engine(parser=parser)), script=script, **options)


@dataclass
class ReadySource:
    """A source whose model is made at once."""

    name: str
    make: Callable[[], Served]
    weight_bytes: int | None = 1000
    loads: int = 0
    fault: Exception | None = None
    load_s: float = 0.0
    card: Card = field(default_factory=Card)

    @property
    def key(self) -> Hashable:
        return self.name

    def check(self) -> None:
        """It always fits."""

    def view(self, served: Served) -> Served:
        return served

    def load(self) -> Served:
        self.loads += 1
        time.sleep(self.load_s)
        if self.fault is not None:
            raise self.fault
        return self.make()


def source_of(served: Served, **options: Any) -> ReadySource:
    return ReadySource(served.name, lambda: served, **options)


def mini_source(**settings: Any) -> ConfiguredSource:
    """The embedded pair under settings by key, whatever this machine has configured."""
    nowhere = Base(Path("/nonexistent"), "default")
    setup = prepare("mini", command_line=settings, environment={}, base=nowhere, defaults=SERVER_DEFAULTS)
    return ConfiguredSource("mini", Card(model_id="mini"), setup)


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}, **more}}


def plain_text(engine: Engine, messages: Sequence[dict[str, Any]], **config: Any) -> str:
    """What the library itself replies."""
    return d2.generate(engine, list(messages), replace(defaults(), **config)).text
