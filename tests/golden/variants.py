"""The tiny drafters behind the golden vectors: configs, random weights, schedules.

Knows the published checkpoint layout and nothing about any implementation.
Sizes are odd and distinct wherever the format lets them be, so that a swapped
axis cannot pass.  Norm weights sit near 1.7, like the published ones: reading
them as ``1 + w`` shows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class Step:
    """Append ``rows`` context rows, then draft a block of ``width`` rows."""

    rows: int
    width: int


@dataclass(frozen=True)
class Variant:
    """One golden case. ``config`` is written as the checkpoint's config.json."""

    name: str
    about: str
    seed: int
    config: dict[str, Any]
    steps: tuple[Step, ...]
    # Rows of the target's tables; never below the config's vocab_size.
    table_rows: int


def steps(pieces: list[int], block_size: int) -> tuple[Step, ...]:
    """One step per piece, at full width except the fourth (shortened near a limit)."""
    return tuple(Step(rows, max(2, block_size - 3) if i == 3 else block_size) for i, rows in enumerate(pieces))


def config_v2(
    *,
    hidden: int,
    layer_types: list[str],
    taps: list[int],
    block_size: int,
    group_size: int,
    rank: int,
    top_k: int,
    vocab: int,
    heads: tuple[int, int],
    intermediate: int,
    mask_id: int,
    window: int | None = None,
    is_causal: bool = False,
    conv_taps: int = 2,
    **nested: float,
) -> dict[str, Any]:
    """A version 2 config.json in the published layout."""
    config = base_config(hidden, layer_types, heads, intermediate, vocab, window)
    return config | {
        "architectures": ["DFlash2DraftModel"],
        "is_causal": is_causal,
        "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default"},
        "dflash_config": {
            "block_size": block_size,
            "mask_token_id": mask_id,
            "target_layer_ids": taps,
            "conv_kernel_size": conv_taps,
            "conv_group_size": group_size,
            "selector_rank": rank,
            "selector_top_k": top_k,
            **nested,
        },
    }


def base_config(
    hidden: int, layer_types: list[str], heads: tuple[int, int], intermediate: int, vocab: int, window: int | None
) -> dict[str, Any]:
    """The keys both versions share."""
    config = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": len(layer_types),
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 16,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": layer_types,
        "max_position_embeddings": 4096,
        "num_target_layers": 12,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    if window is not None:
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": len(layer_types)}
    return config


def config_v1() -> dict[str, Any]:
    """A version 1 config: block size and rotary base at the top, no is_causal."""
    config = base_config(38, [SLIDING, FULL, SLIDING], (3, 1), 39, 67, window=8)
    return config | {
        "architectures": ["DFlashDraftModel"],
        "block_size": 6,
        "rope_theta": 1000000.0,
        "dflash_config": {"mask_token_id": 66, "target_layer_ids": [1, 5, 9]},
    }


VARIANTS = (
    Variant(
        name="published",
        about="published layout: all layers sliding, is_causal false",
        seed=201,
        config=config_v2(
            hidden=40,
            layer_types=[SLIDING, SLIDING],
            taps=[1, 8],
            block_size=8,
            group_size=8,
            rank=7,
            top_k=6,
            vocab=73,
            heads=(4, 2),
            intermediate=45,
            mask_id=71,
            window=16,
        ),
        steps=steps([1, 2, 3, 7, 1, 2, 7, 1, 19, 3], 8),
        table_rows=73,
    ),
    Variant(
        name="narrow_window",
        about="window 8 wrapped by pieces of 1, 2, 3 and 7 rows",
        seed=102,
        config=config_v2(
            hidden=36,
            layer_types=[SLIDING, SLIDING],
            taps=[0, 5],
            block_size=5,
            group_size=12,
            rank=9,
            top_k=5,
            vocab=69,
            heads=(2, 1),
            intermediate=44,
            mask_id=3,
            window=8,
        ),
        steps=steps([7, 1, 2, 3, 7, 1, 1, 1, 2], 5),
        table_rows=69,
    ),
    Variant(
        name="causal",
        about="is_causal true over one sliding and one full layer",
        seed=203,
        config=config_v2(
            hidden=44,
            layer_types=[SLIDING, FULL],
            taps=[2, 7],
            block_size=7,
            group_size=11,
            rank=5,
            top_k=4,
            vocab=79,
            heads=(3, 1),
            intermediate=50,
            mask_id=78,
            window=16,
            is_causal=True,
        ),
        steps=steps([3, 1, 7, 2, 7, 1, 3, 1], 7),
        table_rows=79,
    ),
    Variant(
        name="full",
        about="is_causal false, full attention, no sliding window in the config",
        seed=204,
        config=config_v2(
            hidden=33,
            layer_types=[FULL, FULL],
            taps=[1, 9],
            block_size=6,
            group_size=3,
            rank=6,
            top_k=7,
            vocab=65,
            heads=(4, 2),
            intermediate=47,
            mask_id=64,
        ),
        steps=steps([2, 7, 1, 3, 7, 1], 6),
        table_rows=65,
    ),
    Variant(
        name="mixed_v1",
        about="version 1: sliding and full layers, is_causal absent, top-level block size and rotary base",
        seed=105,
        config=config_v1(),
        steps=steps([5, 1, 1, 3, 7, 2, 1], 6),
        table_rows=67,
    ),
    Variant(
        name="scaled",
        about="output multiplier, logit softcap and input embedding scale",
        seed=406,
        config=config_v2(
            hidden=42,
            layer_types=[SLIDING, SLIDING],
            taps=[3, 6],
            block_size=4,
            group_size=14,
            rank=8,
            top_k=5,
            vocab=83,
            heads=(2, 2),
            intermediate=46,
            mask_id=80,
            window=16,
            output_multiplier=0.37,
            final_logit_softcapping=2.5,
            input_embedding_scale=1.75,
        ),
        steps=steps([6, 3, 1, 2, 7], 4),
        table_rows=83,
    ),
    Variant(
        name="five_taps",
        about="five taps for two layers, three convolution taps",
        seed=107,
        config=config_v2(
            hidden=35,
            layer_types=[SLIDING, SLIDING],
            taps=[0, 2, 4, 7, 9],
            block_size=7,
            group_size=5,
            rank=11,
            top_k=6,
            vocab=71,
            heads=(3, 1),
            intermediate=41,
            mask_id=70,
            window=16,
            conv_taps=3,
        ),
        steps=steps([4, 2, 1, 7, 3, 1], 7),
        table_rows=71,
    ),
    Variant(
        name="wide_block",
        about="block wider than the window: rows far apart do not see each other",
        seed=108,
        config=config_v2(
            hidden=34,
            layer_types=[SLIDING, SLIDING],
            taps=[1, 4],
            block_size=9,
            group_size=17,
            rank=6,
            top_k=5,
            vocab=77,
            heads=(2, 1),
            intermediate=39,
            mask_id=76,
            window=5,
        ),
        steps=steps([3, 1, 2, 7, 1], 9),
        table_rows=77,
    ),
)


def json_text(record: Any) -> str:
    """JSON with every list of numbers on one line."""
    text = json.dumps(record, indent=2)
    return re.sub(r"\[[\d\s,]+\]", lambda match: re.sub(r"\s+", " ", match.group()), text) + "\n"


def layer_shapes(config: dict[str, Any], name: str) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer under their published names."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.post_attention_layernorm.weight": (hidden,),
        f"{name}.self_attn.q_proj.weight": (queries, hidden),
        f"{name}.self_attn.k_proj.weight": (keys, hidden),
        f"{name}.self_attn.v_proj.weight": (keys, hidden),
        f"{name}.self_attn.o_proj.weight": (hidden, queries),
        f"{name}.self_attn.q_norm.weight": (head_dim,),
        f"{name}.self_attn.k_norm.weight": (head_dim,),
        f"{name}.mlp.gate_proj.weight": (config["intermediate_size"], hidden),
        f"{name}.mlp.up_proj.weight": (config["intermediate_size"], hidden),
        f"{name}.mlp.down_proj.weight": (hidden, config["intermediate_size"]),
    }
    nested = config["dflash_config"]
    if "conv_kernel_size" in nested:
        taps, groups = nested["conv_kernel_size"], hidden // nested["conv_group_size"]
        for module in ("attention_conv", "mlp_conv"):
            shapes[f"{name}.{module}.base_kernel"] = (2, taps, hidden)
            shapes[f"{name}.{module}.kernel_projection.weight"] = (2 * taps * groups, hidden)
    return shapes


def checkpoint_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint under its published name."""
    hidden, nested = config["hidden_size"], config["dflash_config"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(nested["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"layers.{layer}")
    if "selector_rank" in nested:
        rank = nested["selector_rank"]
        shapes["candidate_selector.predecessor_codebook"] = (config["vocab_size"], rank)
        shapes["candidate_selector.successor_codebook"] = (config["vocab_size"], rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    return shapes


def random_tensor(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random values whose scale keeps every part of the forward visible."""
    values = rng.normal(size=shape)
    if "q_norm" in name or "k_norm" in name:
        # Lower: sharp attention would magnify float32 rounding.
        values = 1.1 + 0.2 * values
    elif "norm" in name:
        values = 1.7 + 0.3 * values
    elif name.endswith("base_kernel"):
        values *= 0.3
        values[:, 0] += 1.0
    elif name.endswith("codebook"):
        values *= 0.8
    else:
        values *= 0.9 / np.sqrt(shape[-1])
    return values.astype(np.float32)


def random_checkpoint(variant: Variant) -> dict[str, np.ndarray]:
    """Weights of a variant's drafter, fixed by its seed."""
    rng = np.random.default_rng(variant.seed)
    shapes = checkpoint_shapes(variant.config)
    return {name: random_tensor(name, shape, rng) for name, shape in sorted(shapes.items())}


def random_inputs(variant: Variant) -> dict[str, np.ndarray]:
    """Borrowed tables, taps of all context rows, and one anchor per step."""
    rng = np.random.default_rng([variant.seed, 1])
    hidden = variant.config["hidden_size"]
    taps = len(variant.config["dflash_config"]["target_layer_ids"])
    context = sum(step.rows for step in variant.steps)
    return {
        "embedding": rng.normal(size=(variant.table_rows, hidden)).astype(np.float32),
        "head": (rng.normal(size=(variant.table_rows, hidden)) / np.sqrt(hidden)).astype(np.float32),
        "target_hidden": (1.5 * rng.normal(size=(context, taps * hidden))).astype(np.float32),
        "anchors": rng.integers(variant.config["vocab_size"], size=len(variant.steps)).astype(np.int32),
        "rows": np.array([step.rows for step in variant.steps], dtype=np.int32),
        "widths": np.array([step.width for step in variant.steps], dtype=np.int32),
    }
