"""Names and shapes of a target's tensors, from its `config.json` alone.

Owns: what mlx-lm's modules of the supported families hold, as arithmetic on the config, so that memory can be
estimated before anything is downloaded. Knows nothing of MLX arrays or files. A vision tower is left out: the text
model is all that is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..targets.registry import family_of, text_config
from ..validation import check_integer
from .configs import check_target

FULL, SLIDING, RECURRENT = "full", "sliding", "recurrent"
_HYBRID = ("qwen3_5", "qwen3_5_moe")
_QK_NORMS = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", *_HYBRID)


@dataclass(frozen=True)
class TargetShape:
    """What a target is made of.

    `tensors` maps mlx-lm's names inside the text model to shapes; `kinds` says per layer what it keeps of the text.
    """

    hidden_size: int
    inner_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    head_dim: int
    kinds: tuple[str, ...]
    window: int | None
    tensors: Mapping[str, tuple[int, ...]]
    state_floats: int
    conv_inputs: int

    def layers(self, kind: str) -> int:
        """How many layers are of one kind."""
        return self.kinds.count(kind)


def target_shape(config: Mapping[str, Any]) -> TargetShape:
    """Read a target's shape out of its `config.json`.

    Raises:
        ConfigError, UnsupportedModelError: the config cannot be a target's.
    """
    check_target(config)
    return _Reader(config).read()


class _Reader:
    """Reads one config; the family decides what a layer holds."""

    def __init__(self, config: Mapping[str, Any]):
        self.family = family_of(config)
        self.text = text_config(config)
        self.hidden = self._int("hidden_size")
        self.layers = self._int("num_hidden_layers")
        self.heads = self._int("num_attention_heads")
        self.kv_heads = self._int("num_key_value_heads", self.heads)
        self.head_dim = self._int("head_dim", self.hidden // self.heads)
        self.experts = self._int("num_experts", 0)

    def read(self) -> TargetShape:
        kinds = self._kinds()
        tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self._int("vocab_size"), self.hidden)}
        for number, kind in enumerate(kinds):
            layer = {**self._norms(), **self._mlp(number)}
            layer.update(self._gated_delta() if kind == RECURRENT else self._attention())
            tensors.update({f"model.layers.{number}.{name}": shape for name, shape in layer.items()})
        tensors["model.norm.weight"] = (self.hidden,)
        if not self._tied():
            tensors["lm_head.weight"] = (self._int("vocab_size"), self.hidden)
        window = self.text.get("sliding_window") if SLIDING in kinds else None
        return TargetShape(
            hidden_size=self.hidden,
            inner_size=self._inner_rows(),
            vocab_size=self._int("vocab_size"),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            kinds=kinds,
            window=window,
            tensors=tensors,
            state_floats=self._recurrent("linear_num_value_heads", "linear_value_head_dim", "linear_key_head_dim"),
            conv_inputs=(self._int("linear_conv_kernel_dim", 1) - 1) * self._conv_channels(),
        )

    def _int(self, key: str, default: int | None = None) -> int:
        value = self.text.get(key)
        if value is None and default is not None:
            return default
        return check_integer(f"target {key}", value, 0)

    def _recurrent(self, *keys: str) -> int:
        """Product of sizes of a gated-delta layer; 0 in families that have none."""
        product = 1
        for key in keys:
            product *= self._int(key) if self.family in _HYBRID else 0
        return product

    def _conv_channels(self) -> int:
        keys = self._recurrent("linear_num_key_heads", "linear_key_head_dim")
        return 2 * keys + self._recurrent("linear_num_value_heads", "linear_value_head_dim")

    def _kinds(self) -> tuple[str, ...]:
        if self.family in _HYBRID:
            step = self._int("full_attention_interval", 4)
            return tuple(FULL if (number + 1) % step == 0 else RECURRENT for number in range(self.layers))
        stated = self.text.get("layer_types")
        if stated is None and self.family == "muse_glimmer":
            stated = (["sliding_attention"] * 3 + ["full_attention"]) * self.layers
        if stated is None or self.text.get("sliding_window") is None:
            return (FULL,) * self.layers
        return tuple(SLIDING if kind == "sliding_attention" else FULL for kind in stated[: self.layers])

    def _tied(self) -> bool:
        if self.family == "muse_glimmer":
            return bool(self.text.get("tie_word_embeddings", False))
        # mlx-lm's defaults: these tie unless told otherwise.
        tying = self.family in ("llama", "mistral", "qwen2", "ministral3")
        return bool(self.text.get("tie_word_embeddings", tying))

    def _norms(self) -> dict[str, tuple[int, ...]]:
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.family == "muse_glimmer":
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        return {f"{name}.weight": (self.hidden,) for name in names}

    def _attention(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        gated = 2 if self.family in _HYBRID else 1  # the gate is half of q_proj
        rows = {"q_proj": gated * queries, "k_proj": keys, "v_proj": keys}
        found: dict[str, tuple[int, ...]] = {f"{name}.weight": (size, self.hidden) for name, size in rows.items()}
        found["o_proj.weight"] = (self.hidden, queries)
        if self.family == "muse_glimmer":
            found["gate_proj.weight"] = (queries, self.hidden)
        if self.family == "qwen2":
            found.update({f"{name}.bias": (size,) for name, size in rows.items()})
        elif self.text.get("attention_bias"):
            found.update({f"{name}.bias": (size,) for name, size in {**rows, "o_proj": self.hidden}.items()})
        if self.family in _QK_NORMS:
            found.update({"q_norm.weight": (self.head_dim,), "k_norm.weight": (self.head_dim,)})
        return {f"self_attn.{name}": shape for name, shape in found.items()}

    def _gated_delta(self) -> dict[str, tuple[int, ...]]:
        heads, channels = self._int("linear_num_value_heads"), self._conv_channels()
        values = heads * self._int("linear_value_head_dim")
        found: dict[str, tuple[int, ...]] = {
            "in_proj_qkv.weight": (channels, self.hidden),
            "in_proj_z.weight": (values, self.hidden),
            "in_proj_b.weight": (heads, self.hidden),
            "in_proj_a.weight": (heads, self.hidden),
            "conv1d.weight": (channels, self._int("linear_conv_kernel_dim"), 1),
            "A_log": (heads,),
            "dt_bias": (heads,),
            "norm.weight": (self._int("linear_value_head_dim"),),
            "out_proj.weight": (self.hidden, values),
        }
        return {f"linear_attn.{name}": shape for name, shape in found.items()}

    def _is_mixture(self, number: int) -> bool:
        if not self.experts or not self.family.endswith("_moe"):
            return False
        if self.family == "qwen3_5_moe":
            return True
        dense = self.text.get("mlp_only_layers") or []
        return number not in dense and (number + 1) % self._int("decoder_sparse_step", 1) == 0

    def _mlp(self, number: int) -> dict[str, tuple[int, ...]]:
        if not self._is_mixture(number):
            return _gated_mlp("mlp", self._int("intermediate_size"), self.hidden)
        inner = self._int("moe_intermediate_size")
        found: dict[str, tuple[int, ...]] = {
            "mlp.gate.weight": (self.experts, self.hidden),
            "mlp.switch_mlp.gate_proj.weight": (self.experts, inner, self.hidden),
            "mlp.switch_mlp.up_proj.weight": (self.experts, inner, self.hidden),
            "mlp.switch_mlp.down_proj.weight": (self.experts, self.hidden, inner),
        }
        if self.family == "qwen3_5_moe":
            shared = self._int("shared_expert_intermediate_size")
            found.update(_gated_mlp("mlp.shared_expert", shared, self.hidden))
            found["mlp.shared_expert_gate.weight"] = (1, self.hidden)
        return found

    def _inner_rows(self) -> int:
        """Numbers per token in the widest part of the MLPs."""
        if not any(self._is_mixture(number) for number in range(self.layers)):
            return self._int("intermediate_size")
        routed = self._int("num_experts_per_tok") * self._int("moe_intermediate_size")
        return max(routed, self._int("intermediate_size", 0))


def _gated_mlp(where: str, inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{where}.gate_proj.weight": (inner, hidden),
        f"{where}.up_proj.weight": (inner, hidden),
        f"{where}.down_proj.weight": (hidden, inner),
    }
