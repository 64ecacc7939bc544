"""What a drafter's `config.json` says, read strictly, and a narrower view of the context.

Knows nothing of tensors, models or files. Invariant: a value that exists was checked; nothing is dropped and nothing
falls back to a silent default. A narrower window or a sink changes only which context rows are visible: the text stays
the target's, acceptance may change either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ...errors import SettingError
from ...names import bare_drafter_quantization
from ...validation import check_integer, check_number, refusal

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
            raise refusal("drafter config", type(raw).__name__, "a JSON object")
        self.raw = raw
        self.nested = raw.get("dflash_config") or {}
        if not isinstance(self.nested, Mapping):
            raise refusal("dflash_config", self.nested, "a JSON object")
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
            stated_layers = check_integer("num_target_layers", stated_layers, 1)
        top_k = self._drafter_int("selector_top_k", required=version == 2, default=16)
        quantization = self.raw.get("quantization") or self.raw.get("quantization_config")
        if quantization is not None and not isinstance(quantization, Mapping):
            raise refusal("quantization", quantization, "a JSON object")
        if quantization is not None:
            quantization = bare_drafter_quantization(quantization)
        config = DrafterConfig(
            version=version,
            hidden_size=hidden,
            num_layers=layers,
            num_heads=self._need_int("num_attention_heads"),
            num_kv_heads=self._need_int("num_key_value_heads"),
            head_dim=self._need_int("head_dim"),
            intermediate_size=self._need_int("intermediate_size"),
            vocab_size=vocab,
            rms_norm_eps=check_number("rms_norm_eps", self._need("rms_norm_eps"), above=0.0),
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
            output_multiplier=check_number("output_multiplier", self._drafter("output_multiplier", 1.0), above=0.0),
            final_logit_softcapping=self._softcap(),
            input_embedding_scale=check_number("input_embedding_scale", self._drafter("input_embedding_scale", 1.0)),
            quantization=quantization,
        )
        self._check(config)
        return config

    def _version(self) -> int:
        if "speculators_model_type" in self.raw:
            raise refusal(
                "speculators_model_type",
                self.raw["speculators_model_type"],
                "the published DFlash layout (convert this checkpoint first)",
            )
        architectures = self.raw.get("architectures")
        names = [DFLASH2, *DFLASH1]
        if not isinstance(architectures, list) or not any(a in names for a in architectures):
            raise refusal("architectures", architectures, "one of " + ", ".join(names))
        return 2 if DFLASH2 in architectures else 1

    def _refuse_unknown(self) -> None:
        for key in self.nested:
            if key not in _DRAFTER and key not in ("num_target_layers", "projector_type"):
                raise refusal(f"dflash_config.{key}", self.nested[key], "no such key: it is not part of DFlash 2")
        for key in self.raw:
            if key not in _INFORMATIVE and key not in _USED and key not in _DRAFTER:
                raise refusal(key, self.raw[key], "no such key: a drafter that needs it is not supported")
        if self._drafter("sample_from_anchor", False):
            raise refusal("sample_from_anchor", True, "false: row 0 does not predict in DFlash 2")
        for key in ("attention_bias", "mlp_bias"):
            if self.raw.get(key):
                raise refusal(key, self.raw[key], "false")
        act = self.raw.get("hidden_act", "silu")
        if act != "silu":
            raise refusal("hidden_act", act, "'silu'")

    def _need(self, key: str) -> Any:
        if self.raw.get(key) is None:
            raise refusal(key, self.raw.get(key), "a value: the key is missing")
        return self.raw[key]

    def _need_int(self, key: str) -> int:
        return check_integer(key, self._need(key), 1)

    def _drafter(self, key: str, default: Any = None) -> Any:
        if self.nested.get(key) is not None:
            return self.nested[key]
        value = self.raw.get(key)
        return default if value is None else value

    def _drafter_int(self, key: str, *, required: bool, default: int = 0, low: int = 1) -> int:
        value = self._drafter(key)
        if value is None:
            if required:
                raise refusal(key, None, "an integer, under dflash_config or at top level")
            return default
        return check_integer(key, value, low)

    def _softcap(self) -> float | None:
        value = self._drafter("final_logit_softcapping")
        if value is None:
            return None
        value = check_number("final_logit_softcapping", value)
        return value if value > 0 else None

    def _layer_types(self, layers: int) -> tuple[str, ...]:
        kinds = self.raw.get("layer_types")
        if kinds is None:
            return ("full_attention",) * layers
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise refusal("layer_types", kinds, f"a list of {layers} entries")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise refusal("layer_types", kind, "full_attention or sliding_attention")
        return tuple(kinds)

    def _window(self, layer_types: tuple[str, ...]) -> int | None:
        if "sliding_attention" not in layer_types:
            return None
        return check_integer("sliding_window", self.raw.get("sliding_window"), 1)

    def _causal(self, version: int, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
        flag = self.raw.get("is_causal")
        if flag is None and version == 2:
            raise refusal("is_causal", None, "true or false: DFlash2DraftModel files must state it")
        if flag is None:  # v1 files: sliding layers are causal, full ones are not
            return tuple(kind == "sliding_attention" for kind in layer_types)
        if not isinstance(flag, bool):
            raise refusal("is_causal", flag, "true or false")
        return (flag,) * len(layer_types)

    def _rope_theta(self) -> float:
        parameters = self._rope_group("rope_parameters", ("rope_type", "type", "rope_theta"))
        self._rope_group("rope_scaling", ("rope_type", "type"))
        nested, flat = (
            None if value is None else check_number("rope_theta", value, above=0.0)
            for value in (parameters.get("rope_theta"), self.raw.get("rope_theta"))
        )
        if nested is not None and flat is not None and nested != flat:
            raise refusal("rope_theta", flat, f"the same value as rope_parameters.rope_theta ({nested})")
        theta = flat if nested is None else nested
        if theta is None:
            raise refusal("rope_theta", None, "a value in rope_parameters or at top level")
        return theta

    def _rope_group(self, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        group = self.raw.get(name) or {}
        if not isinstance(group, Mapping):
            raise refusal(name, group, "a JSON object")
        kind = group.get("rope_type", group.get("type", "default"))
        if kind != "default":
            raise refusal(f"{name}.rope_type", kind, "'default'")
        for key in group:
            if key not in known:
                raise refusal(f"{name}.{key}", group[key], "no such key: only default RoPE is supported")
        return group

    def _taps(self, version: int, layers: int, stated: int | None) -> tuple[int, ...]:
        taps = self._drafter("target_layer_ids")
        total = stated if stated is not None else self.num_target_layers
        if taps is None:
            if version == 2 or total is None:
                raise refusal("target_layer_ids", None, "a list of target layer numbers")
            return default_target_layer_ids(total, layers)
        if not isinstance(taps, list) or not taps:
            raise refusal("target_layer_ids", taps, "a list of target layer numbers")
        for tap in taps:
            check_integer("target_layer_ids", tap, 0, None if total is None else total - 1)
        if any(a >= b for a, b in pairwise(taps)):
            raise refusal("target_layer_ids", taps, "strictly increasing layer numbers")
        return tuple(taps)

    def _check(self, config: DrafterConfig) -> None:
        if config.num_heads % config.num_kv_heads:
            raise refusal(
                "num_attention_heads",
                config.num_heads,
                f"a multiple of num_key_value_heads ({config.num_kv_heads})",
            )
        if config.head_dim % 2:
            raise refusal("head_dim", config.head_dim, "an even number")
        if config.conv_group_size is not None and config.hidden_size % config.conv_group_size:
            raise refusal("conv_group_size", config.conv_group_size, f"a divisor of hidden_size ({config.hidden_size})")
        if config.selector_top_k > config.vocab_size:
            raise refusal("selector_top_k", config.selector_top_k, f"an integer in 1..{config.vocab_size}")
        if config.block_size < 2:
            raise refusal("block_size", config.block_size, "an integer >= 2 (the anchor and at least one proposal)")


def default_target_layer_ids(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """Taps of a v1 drafter whose config names none (spec 2.6; Python's half-to-even rounding)."""
    if num_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_layers))


def narrow_view(config: DrafterConfig, window: int | None, sink: int) -> DrafterConfig:
    """The config of a drafter that sees less.

    Args:
        window: positions every layer sees, itself included, as `sliding_window`; None keeps the checkpoint's.
        sink: first positions of the sequence that stay visible besides.
    Raises:
        SettingError: a window narrower than a block or wider than what was trained, or a sink that is larger than the
            window or has nothing to add to.
    """
    trained = config.sliding_window
    if window is not None:
        at_most = "" if trained is None else f"..{trained} (the checkpoint's sliding_window)"
        expected = f"an integer in {config.block_size}{at_most}" if at_most else f"an integer >= {config.block_size}"
        if isinstance(window, bool) or not isinstance(window, int) or window < config.block_size:
            raise SettingError(f"draft_window: got {window!r}, expected {expected}")
        if trained is not None and window > trained:
            raise SettingError(f"draft_window: got {window!r}, expected {expected}")
        config = replace(config, sliding_window=window, layer_types=("sliding_attention",) * config.num_layers)
    if isinstance(sink, bool) or not isinstance(sink, int) or sink < 0:
        raise SettingError(f"draft_sink: got {sink!r}, expected an integer >= 0")
    if sink == 0:
        return config
    if config.context_window is None or config.sliding_window is None:
        raise SettingError(f"draft_sink: got {sink}, expected 0: the drafter sees the whole context (no draft_window)")
    if sink > config.sliding_window:
        raise SettingError(f"draft_sink: got {sink}, expected an integer in 0..{config.sliding_window} (the window)")
    return replace(config, sink=sink)
