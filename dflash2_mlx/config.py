"""Frozen settings and the strict reading of published drafter configs.

Owns: what a `config.json` of a DFlash / DFlash 2 drafter may say, and the ranges of the sampling and
generation settings. Knows nothing of tensors, models or files. Invariant: a value that exists was
checked; nothing is dropped and nothing falls back to a silent default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .errors import ConfigError

DFLASH2 = "DFlash2DraftModel"
DFLASH1 = ("DFlashDraftModel", "MuseGlimmerAssistantModel")

# Keys that say nothing about the forward pass of the drafter (spec 2.1): read, not acted on.
_INFORMATIVE = frozenset(
    """architectures model_type use_sliding_window max_window_layers use_cache initializer_range
    tie_word_embeddings transformers_version max_position_embeddings bos_token_id eos_token_id
    pad_token_id attention_dropout torch_dtype dtype auto_map name_or_path _name_or_path
    return_dict output_hidden_states output_attentions license training num_target_layers
    projector_type""".split()
)
_USED = frozenset(
    """hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    intermediate_size vocab_size rms_norm_eps hidden_act attention_bias mlp_bias is_causal
    layer_types sliding_window rope_parameters rope_theta rope_scaling dflash_config
    quantization quantization_config""".split()
)
# Keys looked up under `dflash_config` first, then at top level.
_DRAFTER = frozenset(
    """block_size mask_token_id target_layer_ids conv_kernel_size conv_group_size selector_rank
    selector_top_k output_multiplier final_logit_softcapping input_embedding_scale
    sample_from_anchor""".split()
)


def _fail(field_name: str, received: object, expected: str) -> ConfigError:
    return ConfigError(f"{field_name}: got {received!r}, expected {expected}")


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    span = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fail(name, value, span)
    if value < low or (high is not None and value > high):
        raise _fail(name, value, span)
    return value


def _number(name: str, value: Any, *, above: float = -math.inf) -> float:
    wanted = "a finite number" if above == -math.inf else f"a number > {above:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fail(name, value, wanted)
    if not math.isfinite(value) or value <= above:
        raise _fail(name, value, wanted)
    return float(value)


@dataclass(frozen=True)
class DrafterConfig:
    """Shape and rules of one drafter, as its checkpoint states them.

    `causal` holds one flag per layer, already resolved by the rule of spec 3.6.
    `conv_kernel_size` and `selector_rank` are None for DFlash v1 drafters.

    Reference: DFlash 2 (Inco AI / Z Lab, 2026), published `config.json` files.
    """

    version: int  # 1 = DFlash, 2 = DFlash 2
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    layer_types: tuple[str, ...]
    causal: tuple[bool, ...]
    sliding_window: int | None
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int = 16
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)
    sink: int = 0  # first positions that stay visible behind a sliding window; no checkpoint states it

    @property
    def context_window(self) -> int | None:
        """Committed rows any block row can still see, or None when a layer sees all of them."""
        if self.sliding_window is None or "full_attention" in self.layer_types:
            return None
        return self.sliding_window - 1

    def first_visible(self, prompt_length: int) -> int:
        """First context row that a block after a prompt of this length sees, besides the sink."""
        window = self.context_window
        first = 0 if window is None else max(0, prompt_length - window)
        return 0 if first <= self.sink else first  # no gap behind the sink

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, num_target_layers: int | None = None) -> DrafterConfig:
        """Read a published `config.json`.

        Args:
            raw: the parsed JSON object.
            num_target_layers: the target's layer count, used only where a v1 file names no taps.
        Raises:
            ConfigError: a key is missing, unknown or out of range; the message names it.
        """
        return _DrafterConfigReader(raw, num_target_layers).read()


class _DrafterConfigReader:
    """Reads one raw config; split into steps so that each rule stands alone."""

    def __init__(self, raw: Mapping[str, Any], num_target_layers: int | None):
        if not isinstance(raw, Mapping):
            raise _fail("drafter config", type(raw).__name__, "a JSON object")
        self.raw = raw
        self.nested = raw.get("dflash_config") or {}
        if not isinstance(self.nested, Mapping):
            raise _fail("dflash_config", self.nested, "a JSON object")
        self.num_target_layers = num_target_layers

    def read(self) -> DrafterConfig:
        version = self._version()
        self._refuse_unknown()
        layers = self._need_int("num_hidden_layers")
        layer_types = self._layer_types(layers)
        window = self._window(layer_types)
        hidden = self._need_int("hidden_size")
        vocab = self._need_int("vocab_size")
        stated_layers = self._drafter("num_target_layers")
        if stated_layers is not None:
            stated_layers = _integer("num_target_layers", stated_layers, 1)
        top_k = self._drafter_int("selector_top_k", required=version == 2, default=16)
        quantization = self.raw.get("quantization") or self.raw.get("quantization_config")
        if quantization is not None and not isinstance(quantization, Mapping):
            raise _fail("quantization", quantization, "a JSON object")
        config = DrafterConfig(
            version=version,
            hidden_size=hidden,
            num_layers=layers,
            num_heads=self._need_int("num_attention_heads"),
            num_kv_heads=self._need_int("num_key_value_heads"),
            head_dim=self._need_int("head_dim"),
            intermediate_size=self._need_int("intermediate_size"),
            vocab_size=vocab,
            rms_norm_eps=_number("rms_norm_eps", self._need("rms_norm_eps"), above=0.0),
            rope_theta=self._rope_theta(),
            layer_types=layer_types,
            causal=self._causal(version, layer_types),
            sliding_window=window,
            block_size=self._drafter_int("block_size", required=True, low=1),
            mask_token_id=self._drafter_int("mask_token_id", required=True, low=0),
            target_layer_ids=self._taps(version, layers, stated_layers),
            num_target_layers=stated_layers,
            conv_kernel_size=self._drafter_int("conv_kernel_size", required=True) if version == 2 else None,
            conv_group_size=self._drafter_int("conv_group_size", required=True) if version == 2 else None,
            selector_rank=self._drafter_int("selector_rank", required=True) if version == 2 else None,
            selector_top_k=min(top_k, vocab) if version == 1 else top_k,
            output_multiplier=_number("output_multiplier", self._drafter("output_multiplier", 1.0), above=0.0),
            final_logit_softcapping=self._softcap(),
            input_embedding_scale=_number("input_embedding_scale", self._drafter("input_embedding_scale", 1.0)),
            quantization=quantization,
        )
        self._check(config)
        return config

    def _version(self) -> int:
        if "speculators_model_type" in self.raw:
            raise _fail(
                "speculators_model_type",
                self.raw["speculators_model_type"],
                "the published DFlash layout (convert this checkpoint first)",
            )
        architectures = self.raw.get("architectures")
        names = [DFLASH2, *DFLASH1]
        if not isinstance(architectures, list) or not any(a in names for a in architectures):
            raise _fail("architectures", architectures, "one of " + ", ".join(names))
        return 2 if DFLASH2 in architectures else 1

    def _refuse_unknown(self) -> None:
        for key in self.nested:
            if key not in _DRAFTER and key not in ("num_target_layers", "projector_type"):
                raise _fail(f"dflash_config.{key}", self.nested[key], "no such key: it is not part of DFlash 2")
        for key in self.raw:
            if key not in _INFORMATIVE and key not in _USED and key not in _DRAFTER:
                raise _fail(key, self.raw[key], "no such key: a drafter that needs it is not supported")
        if self._drafter("sample_from_anchor", False):
            raise _fail("sample_from_anchor", True, "false: row 0 does not predict in DFlash 2")
        for key in ("attention_bias", "mlp_bias"):
            if self.raw.get(key):
                raise _fail(key, self.raw[key], "false")
        act = self.raw.get("hidden_act", "silu")
        if act != "silu":
            raise _fail("hidden_act", act, "'silu'")

    def _need(self, key: str) -> Any:
        if self.raw.get(key) is None:
            raise _fail(key, self.raw.get(key), "a value: the key is missing")
        return self.raw[key]

    def _need_int(self, key: str) -> int:
        return _integer(key, self._need(key), 1)

    def _drafter(self, key: str, default: Any = None) -> Any:
        if self.nested.get(key) is not None:
            return self.nested[key]
        value = self.raw.get(key)
        return default if value is None else value

    def _drafter_int(self, key: str, *, required: bool, default: int = 0, low: int = 1) -> int:
        value = self._drafter(key)
        if value is None:
            if required:
                raise _fail(key, None, "an integer, under dflash_config or at top level")
            return default
        return _integer(key, value, low)

    def _softcap(self) -> float | None:
        value = self._drafter("final_logit_softcapping")
        if value is None:
            return None
        value = _number("final_logit_softcapping", value)
        return value if value > 0 else None

    def _layer_types(self, layers: int) -> tuple[str, ...]:
        kinds = self.raw.get("layer_types")
        if kinds is None:
            return ("full_attention",) * layers
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise _fail("layer_types", kinds, f"a list of {layers} entries")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise _fail("layer_types", kind, "full_attention or sliding_attention")
        return tuple(kinds)

    def _window(self, layer_types: tuple[str, ...]) -> int | None:
        if "sliding_attention" not in layer_types:
            return None
        return _integer("sliding_window", self.raw.get("sliding_window"), 1)

    def _causal(self, version: int, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
        flag = self.raw.get("is_causal")
        if flag is None and version == 2:
            raise _fail("is_causal", None, "true or false: DFlash2DraftModel files must state it")
        if flag is None:  # v1 files: sliding layers are causal, full ones are not
            return tuple(kind == "sliding_attention" for kind in layer_types)
        if not isinstance(flag, bool):
            raise _fail("is_causal", flag, "true or false")
        return (flag,) * len(layer_types)

    def _rope_theta(self) -> float:
        parameters = self._rope_group("rope_parameters", ("rope_type", "type", "rope_theta"))
        self._rope_group("rope_scaling", ("rope_type", "type"))
        nested, flat = (
            None if value is None else _number("rope_theta", value, above=0.0)
            for value in (parameters.get("rope_theta"), self.raw.get("rope_theta"))
        )
        if nested is not None and flat is not None and nested != flat:
            raise _fail("rope_theta", flat, f"the same value as rope_parameters.rope_theta ({nested})")
        theta = flat if nested is None else nested
        if theta is None:
            raise _fail("rope_theta", None, "a value in rope_parameters or at top level")
        return theta

    def _rope_group(self, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        group = self.raw.get(name) or {}
        if not isinstance(group, Mapping):
            raise _fail(name, group, "a JSON object")
        kind = group.get("rope_type", group.get("type", "default"))
        if kind != "default":
            raise _fail(f"{name}.rope_type", kind, "'default'")
        for key in group:
            if key not in known:
                raise _fail(f"{name}.{key}", group[key], "no such key: only default RoPE is supported")
        return group

    def _taps(self, version: int, layers: int, stated: int | None) -> tuple[int, ...]:
        taps = self._drafter("target_layer_ids")
        total = stated if stated is not None else self.num_target_layers
        if taps is None:
            if version == 2 or total is None:
                raise _fail("target_layer_ids", None, "a list of target layer numbers")
            return default_target_layer_ids(total, layers)
        if not isinstance(taps, list) or not taps:
            raise _fail("target_layer_ids", taps, "a list of target layer numbers")
        for tap in taps:
            _integer("target_layer_ids", tap, 0, None if total is None else total - 1)
        if any(a >= b for a, b in pairwise(taps)):
            raise _fail("target_layer_ids", taps, "strictly increasing layer numbers")
        return tuple(taps)

    def _check(self, config: DrafterConfig) -> None:
        if config.num_heads % config.num_kv_heads:
            raise _fail(
                "num_attention_heads",
                config.num_heads,
                f"a multiple of num_key_value_heads ({config.num_kv_heads})",
            )
        if config.head_dim % 2:
            raise _fail("head_dim", config.head_dim, "an even number")
        if config.conv_group_size is not None and config.hidden_size % config.conv_group_size:
            raise _fail("conv_group_size", config.conv_group_size, f"a divisor of hidden_size ({config.hidden_size})")
        if config.selector_top_k > config.vocab_size:
            raise _fail("selector_top_k", config.selector_top_k, f"an integer in 1..{config.vocab_size}")
        if config.block_size < 2:
            raise _fail("block_size", config.block_size, "an integer >= 2 (the anchor and at least one proposal)")


def default_target_layer_ids(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """Taps of a v1 drafter whose config names none (spec 2.6; Python's half-to-even rounding)."""
    if num_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_layers))


VERIFY_MODES = ("dflash", "adaptive", "off")
GREEDY_TEMPERATURE = 1e-5  # below this, sampling is greedy (spec D-8)


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is drawn from the target's logits.

    Order everywhere: bias and penalties, temperature, top-k, top-p, min-p. Repetition penalty looks at
    prompt and reply, presence and frequency penalties at the reply only.

    `lossless_mode` picks how drafting keeps the distribution at temperature > 0: "rejection" (best
    acceptance) or "coupled" (the text equals plain sampling with the same seed). None means coupled
    when a seed is given, else rejection. It has no effect on greedy decoding.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    lossless_mode: str | None = None

    def __post_init__(self) -> None:
        if _number("temperature", self.temperature) < 0:
            raise _fail("temperature", self.temperature, "a number >= 0")
        if not 0 < _number("top_p", self.top_p) <= 1:
            raise _fail("top_p", self.top_p, "a number in (0, 1]")
        _integer("top_k", self.top_k, 0)
        if not 0 <= _number("min_p", self.min_p) <= 1:
            raise _fail("min_p", self.min_p, "a number in [0, 1]")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= _number(name, getattr(self, name)) <= 2:
                raise _fail(name, getattr(self, name), "a number in [-2, 2]")
        _number("repetition_penalty", self.repetition_penalty, above=0.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**64 - 1)
        if self.lossless_mode not in (None, "rejection", "coupled"):
            raise _fail("lossless_mode", self.lossless_mode, "'rejection' or 'coupled'")
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise _fail("logit_bias", self.logit_bias, "a mapping from token id to bias")
        for token, bias in (self.logit_bias or {}).items():
            _integer("logit_bias", token, 0)
            _number("logit_bias", bias)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def coupled(self) -> bool:
        """Whether draft and target share one noise per position."""
        if self.lossless_mode is None:
            return self.seed is not None
        return self.lossless_mode == "coupled"

    @property
    def needs_history(self) -> bool:
        """Whether p depends on which tokens came before."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


@dataclass(frozen=True)
class GenerationConfig:
    """One reply: its length, its sampling, where it stops and how it is drafted.

    `block_size` is the verify width (rows per round); None means the checkpoint's own.
    `verify_mode`: "dflash" verifies that many rows in every round, "adaptive" at most that many, by measured gain (see
    `widths.py`), "off" decodes plainly.
    `logprobs`: None for none, 0 for the emitted tokens', k for the k best alternatives as well.
    """

    max_tokens: int = 512
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    verify_mode: str = "dflash"
    mode: str = "auto"
    logprobs: int | None = None
    chat_template: bool = True
    chat_template_kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    prefill_chunk: int = 512

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1)
        if not isinstance(self.sampling, SamplingConfig):
            raise _fail("sampling", self.sampling, "a SamplingConfig")
        if not isinstance(self.stop, (tuple, list)) or not all(isinstance(s, str) and s for s in self.stop):
            raise _fail("stop", self.stop, "a tuple of non-empty strings")
        if not isinstance(self.stop_token_ids, (tuple, list, set, frozenset, type(None))):
            raise _fail("stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        for token in self.stop_token_ids or ():
            _integer("stop_token_ids", token, 0)
        if self.block_size is not None:
            _integer("block_size", self.block_size, 2)
        if self.mode not in ("auto", "plain", "dflash2"):
            raise _fail("mode", self.mode, "'auto', 'plain' or 'dflash2'")
        if self.verify_mode not in VERIFY_MODES:
            raise _fail("verify_mode", self.verify_mode, "'dflash', 'adaptive' or 'off'")
        if self.verify_mode == "off" and self.mode == "dflash2":
            raise _fail("verify_mode", "off", "'dflash' or 'adaptive': mode 'dflash2' was asked for")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, 20)
        if not isinstance(self.chat_template, bool):
            raise _fail("chat_template", self.chat_template, "true or false")
        if self.chat_template_kwargs is not None and not isinstance(self.chat_template_kwargs, Mapping):
            raise _fail("chat_template_kwargs", self.chat_template_kwargs, "a mapping")
        _integer("prefill_chunk", self.prefill_chunk, 1)
