"""The layer loop shared by all target adapters.

Owns: embedding, one mask per layer kind, the loop over mlx-lm's decoder layers with taps after each layer,
final norm and head. A family's own file says which layers are of which kind and how one is run. The tap of
layer i is the residual stream after layer i, before the final norm (docs/dflash2.md 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..kernels.dispatch import EXACT_ROWS, inexact
from ..kernels.few_row_attention import Sight, exactness_problem
from ..kernels.few_row_attention import wanted as few_row_wanted
from ..kernels.qmm_rows import Packed
from ..layers.kv_cache import RowBuffers
from ..layers.quantized import RowsLinear, row_layers, trainable_product
from .attention import attention_shape, run_attention_layer
from .base import PassOutput, TargetSpec
from .state import TargetState

FULL, SLIDING, RECURRENT = "full", "sliding", "recurrent"


@dataclass(frozen=True)
class Seen:
    """What the rows of a pass see in attention layers of one kind.

    `by_kernel`: the layers are run from their parts, so that `few_row_attention` can take part.
    """

    sight: Sight
    by_kernel: bool


class LayerLoopTarget:
    """A target whose layers run one after another on one residual stream.

    Args:
        text_model: mlx-lm's language model with `.model` (embed_tokens, layers, norm) and a head.
        family: the name users see.
        kinds: kind of each layer, FULL, SLIDING or RECURRENT.
        window: of the sliding layers.
        context_length: longest sequence the config allows, or None.
        quantization: how the weights are stored, or None.
    Raises:
        SettingError: the model's linear layers are exact, and its attention cannot be.
    """

    def __init__(
        self,
        text_model: Any,
        *,
        family: str,
        kinds: Sequence[str],
        window: int | None,
        context_length: int | None,
        quantization: str | None,
    ):
        self.text_model = text_model
        self.body = text_model.model
        self.layers = list(self.body.layers)
        self.kinds = tuple(kinds)
        self.window = window
        self._table = self.body.embed_tokens if "lm_head" not in text_model else text_model.lm_head
        self._head = self._table if "lm_head" in text_model else self._table.as_linear
        head_rows = _rows(self._table)
        # Then attention and recurrence are as well.
        self.exact = any(layer.exact for _, layer in row_layers(text_model))
        # Of each kind's layers, which are alike; None where they are run by mlx-lm alone.
        shapes = {kind: {attention_shape(layer) for layer in self._layers_of(kind)} for kind in (FULL, SLIDING)}
        self.attention = {kind: found.pop() if len(found) == 1 else None for kind, found in shapes.items()}
        if self.exact:
            self._check_exact_attention()
        # Index of each layer among those of its kind.
        self.index = [self.kinds[:i].count(kind) for i, kind in enumerate(self.kinds)]
        self.spec = TargetSpec(
            family=family,
            hidden_size=self.body.norm.weight.shape[0],
            num_layers=len(self.layers),
            vocab_size=head_rows,
            embedding_rows=_rows(self.body.embed_tokens),
            recurrent=RECURRENT in self.kinds,
            context_length=context_length,
            quantization=quantization,
        )

    def new_state(self, batch: int = 1) -> TargetState:
        return TargetState(
            batch,
            full_layers=self.kinds.count(FULL),
            sliding_layers=self.kinds.count(SLIDING),
            recurrent_layers=self.kinds.count(RECURRENT),
            window=self.window,
        )

    def forward(
        self, ids: mx.array, state: TargetState, *, taps: Sequence[int] = (), last_only: bool = False
    ) -> PassOutput:
        """One pass over token ids [B, L]; see `Target.forward`."""
        rows = state.begin(ids.shape[1])
        hidden = self.embed_input(ids)
        seen = {}
        if FULL in self.kinds:
            seen[FULL] = self._seen(FULL, state.full, rows, hidden.dtype, state)
        if SLIDING in self.kinds:
            seen[SLIDING] = self._seen(SLIDING, state.sliding, rows, hidden.dtype, state)
        tapped = []
        for number, (layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            hidden = self.run_layer(layer, kind, self.index[number], hidden, seen.get(kind), state)
            if number in taps:
                tapped.append(hidden)
        if last_only:
            hidden = hidden[:, -1:]
        logits = self.finish_logits(self.head(self.body.norm(hidden)))
        return PassOutput(logits, mx.concatenate(tapped, axis=-1) if tapped else None)

    def commit(self, state: TargetState, keep: int | mx.array) -> None:
        state.commit(keep)

    def embed(self, ids: mx.array) -> mx.array:
        return self.body.embed_tokens(ids)

    def head(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)

    def trainable_head(self, hidden: mx.array) -> mx.array:
        return trainable_product(self._table, hidden)

    def quantized_matrices(self) -> list[Packed]:
        """Every matrix with which `quantized_rows` has a choice; the table only where it is the head.

        Layers of experts are MLX's own and not among them, and an exact layer has one form for all rows.
        """
        layers = [layer for _, layer in row_layers(self.text_model) if not layer.exact]
        used = [layer for layer in layers if isinstance(layer, RowsLinear) or layer is self._table]
        return [layer.packed() for layer in used]

    def _layers_of(self, kind: str) -> list[nn.Module]:
        return [layer for layer, own in zip(self.layers, self.kinds, strict=True) if own == kind]

    def _check_exact_attention(self) -> None:
        dtype = self.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
        for kind, shape in self.attention.items():
            if not self._layers_of(kind):
                continue
            if shape is None:
                raise inexact(f"{kind} attention layers that our kernel does not know")
            window = self.window if kind == SLIDING else None
            problem = exactness_problem(shape.heads, shape.kv_heads, shape.dim, dtype, window)
            if problem is not None:
                raise inexact(problem)

    def _seen(self, kind: str, buffers: RowBuffers, rows: mx.array, dtype: mx.Dtype, state: TargetState) -> Seen:
        sight = Sight(buffers.causal_mask(rows), state.length, buffers.base, window=buffers.window)
        shape, (batch, length) = self.attention[kind], rows.shape
        if self.exact:
            few = batch * length <= EXACT_ROWS
            return Seen(replace(sight, exact=few), few)
        if shape is None:
            return Seen(sight, False)
        queries = (batch, shape.heads, length, shape.dim)
        keys = (batch, shape.kv_heads, buffers.capacity, shape.dim)
        return Seen(sight, few_row_wanted(queries, keys, dtype, buffers.window))

    # What a family may do differently.

    def embed_input(self, ids: mx.array) -> mx.array:
        """What the first layer reads: [B, L] token ids to [B, L, D]."""
        return self.body.embed_tokens(ids)

    def run_layer(
        self, layer: nn.Module, kind: str, index: int, hidden: mx.array, seen: Seen | None, state: TargetState
    ) -> mx.array:
        """One layer over the residual stream [B, L, D].

        Args:
            kind, index: which of the state's parts is its own.
            seen: what attention rows see; None for recurrent layers.
        """
        assert seen is not None, "only recurrent layers see nothing"
        cache = state.attention_cache(kind, index)
        if seen.by_kernel:
            return run_attention_layer(layer, hidden, cache, seen.sight)
        return layer(hidden, mask=seen.sight.mask, cache=cache)

    def finish_logits(self, logits: mx.array) -> mx.array:
        """What the target makes of its head's output [B, L, V]."""
        return logits


def _rows(table: nn.Module) -> int:
    """Rows of an embedding or head, quantized or not (quantization packs columns, never rows)."""
    return table.weight.shape[0]
