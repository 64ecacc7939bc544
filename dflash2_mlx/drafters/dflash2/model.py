"""The drafter: one parallel pass over a block, then a walk through its candidates.

Owns: the checkpoint's module tree (the selector's codebooks and gate among it), context features, the block pass,
logits and the proposal. Takes embedding and output head from the target at call time and holds no state between rounds
(that is `DrafterContext`). Invariant: a proposal depends only on the committed context, the anchor and the noise.

Reference: DFlash 2 (Inco AI / Z Lab, 2026); docs/dflash2.md 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...device.layout import on_cpu
from ...kernels.dispatch import KERNELS, dispatcher
from ...kernels.few_row_attention import Sight
from ...kernels.norm_rope import norm_rope, norm_rope_twin
from ...kernels.qmm_rows import Packed
from ...kernels.select_walk import Selection, Selector, scale_logits, select, select_walk
from ...kernels.top_candidates import CandidateLists, candidate_lists
from ...layers.fused import Joined, join, run_joined
from ...layers.kv_cache import RowView, Written
from ...layers.quantized import RowsLinear, row_layers, use_row_kernels
from ...sampling.acceptance import Proposal
from ...sampling.rng import SlotNoise
from ..base import Lender
from .attention import block_sight
from .config import DrafterConfig
from .context import DrafterContext
from .decoder import DrafterLayer


class DraftModel(nn.Module):
    """A DFlash 2 drafter, or a DFlash v1 drafter (no convolution, no selector)."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.layers = [DrafterLayer(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        if config.selector_rank is not None:
            self.candidate_selector = CandidateSelector(config.vocab_size, config.selector_rank, hidden)
        self.project = self._project
        self._context_kv: Joined | None = None
        self._norms: mx.array | None = None
        self._compiled = False
        self._lender: Lender | None = None
        self._version = 0

    @property
    def dtype(self) -> mx.Dtype:
        """Activation dtype."""
        return self.norm.weight.dtype

    @property
    def prepared(self) -> bool:
        """Whether weights were joined and passes compiled for inference."""
        return self._norms is not None

    def new_context(self, batch: int = 1) -> DrafterContext:
        """An empty context for `batch` sequences."""
        window = None if self.config.context_window is None else self.config.sliding_window
        context = DrafterContext(self.config.num_layers, batch, window, self.config.sink)
        context.buffers.allocate(self.config.num_kv_heads, self.config.head_dim, self.dtype)
        return context

    def append_context(self, taps: mx.array, context: DrafterContext, keep: int | mx.array) -> None:
        """Project target hidden states to context rows, and commit the first `keep` of them.

        Shapes:
            taps: [B, L, T*D], rows that start at the context's length
            keep: host count, or [B] int32
        """
        rows = taps.shape[1]
        self._follow_races()
        context.reserve(rows)
        context.buffers.run(self.project, taps, context.length)
        context.advance(rows, keep)

    def _project(
        self,
        taps: mx.array,
        start: mx.array,
        base: mx.array,
        buffer_keys: list[mx.array],
        buffer_values: list[mx.array],
    ) -> Written[None]:
        buffers = RowView(buffer_keys, buffer_values, base, self.config.sink)
        for number, (keys, values) in enumerate(self.context_rows(taps, start)):
            buffers.write(number, keys, values, start)
        return None, buffers.keys, buffers.values

    def context_rows(self, taps: mx.array, start: mx.array) -> list[tuple[mx.array, mx.array]]:
        """Keys and values of context rows, layer by layer.

        Shapes:
            taps: [B, L, T*D], start: [B] int32 -> [B, Hkv, L, Dh] twice per layer
        """
        features = self.hidden_norm(self.fc(taps.astype(self.dtype)))
        heads, dim = self.config.num_kv_heads, self.config.head_dim
        rows = run_joined(self._context_kv, self._context_parts(), features)
        rows = rows.reshape(*features.shape[:2], 2 * heads * len(self.layers), dim)
        # Keys of all layers come first, then all values.
        theta, eps = self.config.rope_theta, self.config.rms_norm_eps
        if self._norms is None:  # as long as weights may change: the twin, which has gradients
            keys = norm_rope_twin(rows, self._context_norms(), start, theta=theta, eps=eps)
        else:
            keys = norm_rope(rows, self._norms, start, theta=theta, eps=eps)
        values = rows[:, :, heads * len(self.layers) :].transpose(0, 2, 1, 3)
        layers = [slice(number * heads, (number + 1) * heads) for number in range(len(self.layers))]
        return [(keys[:, mine], values[:, mine]) for mine in layers]

    def _context_parts(self) -> list[nn.Module]:
        attention = [layer.self_attn for layer in self.layers]
        return [*(module.k_proj for module in attention), *(module.v_proj for module in attention)]

    def quantized_matrices(self) -> list[Packed]:
        """Every matrix that a few rows are multiplied by through `quantized_rows`; those that were joined as one."""
        joined: list[tuple[Joined | None, list[nn.Module]]] = []
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            joined.append((attention.joined, [attention.q_proj, attention.k_proj, attention.v_proj]))
            joined.append((mlp.joined, [mlp.gate_proj, mlp.up_proj]))
        parts = {id(part) for whole, several in joined if whole is not None for part in several}
        wholes = [whole.layer for whole, _ in (*joined, (self._context_kv, [])) if whole is not None]
        layers = [layer for _, layer in row_layers(self) if id(layer) not in parts]
        return [layer.packed() for layer in (*layers, *wholes) if isinstance(layer, RowsLinear)]

    def _context_norms(self) -> mx.array:
        """Norm weights of every layer's key heads: [layers x Hkv, Dh]."""
        weights = mx.stack([layer.self_attn.k_norm.weight for layer in self.layers])
        return mx.repeat(weights, self.config.num_kv_heads, axis=0)

    def hidden(self, block: mx.array, context: DrafterContext) -> mx.array:
        """The block pass.

        Shapes:
            block: [B, L, D] input embeddings: anchor, then mask rows -> [B, L, D], final norm applied
        """
        context.reserve(block.shape[1])
        return context.buffers.run(self._block_pass, block, context.length)

    def _block_pass(
        self, block: mx.array, start: mx.array, base: mx.array, keys: list[mx.array], values: list[mx.array]
    ) -> Written[mx.array]:
        config, length = self.config, block.shape[1]
        buffers = RowView(keys, values, base, config.sink)
        sights: dict[tuple[str, bool], Sight] = {}
        for kind in zip(config.layer_types, config.causal, strict=True):
            if kind not in sights:
                window = config.sliding_window if kind[0] == "sliding_attention" else None
                sights[kind] = block_sight(buffers, start, length, window=window, causal=kind[1])
        # Without a batch axis, every product saves folding and unfolding it.
        hidden = (block.squeeze(0) if block.shape[0] == 1 else block).astype(self.dtype)
        normed = self.layers[0].input_layernorm(hidden)
        for number, (layer, next_norm) in enumerate(zip(self.layers, self.next_norms(), strict=True)):
            sight = sights[config.layer_types[number], config.causal[number]]
            hidden, normed = layer(hidden, normed, next_norm, buffers, number, sight)
        return normed.reshape(block.shape), buffers.keys, buffers.values

    def next_norms(self) -> list[nn.RMSNorm]:
        """The norm that follows each layer."""
        return [*(layer.input_layernorm for layer in self.layers[1:]), self.norm]

    def block_embeddings(self, anchor: mx.array, length: int, lender: Lender) -> mx.array:
        """Raw target embeddings of [anchor, mask, mask, ...]: [B] -> [B, length, D]."""
        filler = mx.full((anchor.shape[0], length - 1), self.config.mask_token_id, dtype=anchor.dtype)
        rows = lender.embed(mx.concatenate([anchor[:, None], filler], axis=1))
        if self.config.input_embedding_scale != 1.0:
            rows = rows * self.config.input_embedding_scale
        return rows

    def scale_logits(self, logits: mx.array) -> mx.array:
        """The checkpoint's multiplier, then its cap, in float32; both keep the order of logits."""
        return scale_logits(logits, self.config.output_multiplier, self.config.final_logit_softcapping)

    def propose(
        self,
        anchor: mx.array,
        context: DrafterContext,
        width: int,
        lender: Lender,
        *,
        temperature: float = 0.0,
        noise: Callable[[mx.array], mx.array] | None = None,
    ) -> Proposal:
        """Draft the `width - 1` tokens after the anchor.

        Args:
            anchor: [B] int32, last committed token; the context holds everything before it.
            width: rows of the block, 2..block_size.
            temperature: 0 walks greedily.
            noise: candidates [B, N, K] -> Gumbel noise [B, N, K]; given exactly when temperature > 0. A `SlotNoise`
                spares merging the candidates before the walk does it.
        """
        context.reserve(width)
        drafted = context.buffers.run(self._pass_for(lender), anchor, context.length, width, noise is None)
        if noise is None:
            tokens, candidates, unary = drafted
            return Proposal(tokens, candidates, unary, None)
        values, ids, *gate = drafted
        lists = CandidateLists(values, ids)
        if not isinstance(noise, SlotNoise):
            lists = lists.merged()
        chosen = self._select(lists, gate, anchor, temperature, noise(lists.ids[:, :, 0]))
        return Proposal(chosen.tokens, chosen.candidates, chosen.unary, chosen.q)

    def _select(
        self,
        lists: CandidateLists,
        gate: list[mx.array],
        anchor: mx.array,
        temperature: float = 0.0,
        noise: mx.array | None = None,
    ) -> Selection:
        """Walk through the candidates; without a selector (no gate), each position on its own."""
        multiplier, cap = self.config.output_multiplier, self.config.final_logit_softcapping
        if gate:
            codebooks = self.candidate_selector
            selector = Selector(codebooks.predecessor_codebook, codebooks.successor_codebook, multiplier, cap)
            return select(lists, gate[0], anchor, selector, temperature=temperature, noise=noise)
        merged = lists.merged()
        candidates, unary = merged.ids[:, :, 0], self.scale_logits(merged.values[:, :, 0])
        walk = select_walk(candidates, unary, None, temperature=temperature, noise=noise)
        return Selection(walk.tokens, candidates, unary, walk.q)

    def _pass_for(self, lender: Lender) -> Callable[..., Written[list[mx.array]]]:
        """The draft pass with this lender's tables; compiled once for each lender, if at all."""
        if not self._compiled:
            return partial(self._draft_pass, lender)
        self._follow_races()
        if self._lender is not lender:
            self._test_kernels(lender)
            self._lender, self._graph = lender, mx.compile(partial(self._draft_pass, lender))
        return self._graph

    def _follow_races(self) -> None:
        """Compile anew where races were run since: a graph keeps the kernels it was made with."""
        if self._compiled and self._version != dispatcher().version:
            self._version, self._lender = dispatcher().version, None
            self.project = mx.compile(self._project)

    def warm_up(self, lender: Lender) -> None:
        """Draft once each way, so that no test and no compilation of a Metal kernel falls into a reply."""
        if dispatcher().factory is None:
            return
        anchor, width = mx.zeros((1,), dtype=mx.int32), self.config.block_size
        for temperature, noise in ((0.0, None), (1.0, mx.zeros_like)):
            context = self.new_context()
            mx.eval(self.propose(anchor, context, width, lender, temperature=temperature, noise=noise).tokens)

    def _test_kernels(self, lender: Lender) -> None:
        """Run the pass before it becomes a graph: inside one, nothing could be compared with anything."""
        if dispatcher().factory is None:
            return
        anchor, width = mx.zeros((1,), dtype=mx.int32), self.config.block_size
        for greedy in (True, False):
            context = self.new_context()
            context.reserve(width)
            mx.eval(context.buffers.run(partial(self._draft_pass, lender), anchor, context.length, width, greedy))

    def _draft_pass(
        self,
        lender: Lender,
        anchor: mx.array,
        start: mx.array,
        width: int,
        greedy: bool,
        base: mx.array,
        keys: list[mx.array],
        values: list[mx.array],
    ) -> Written[list[mx.array]]:
        """From the anchor to tokens, candidates and logits (greedy), or to lists of candidates and gate (sampled)."""
        embeddings = self.block_embeddings(anchor, width, lender)
        hidden, keys, values = self._block_pass(embeddings, start, base, keys, values)
        hidden = hidden[:, 1:]
        raw = lender.head(hidden.astype(embeddings.dtype))
        lists = candidate_lists(raw, self.config.selector_top_k, vocab_size=self.config.vocab_size)
        gate = [] if self.config.selector_rank is None else [self.candidate_selector.gate(hidden)]
        if greedy:
            chosen = self._select(lists, gate, anchor)
            return [chosen.tokens, chosen.candidates, chosen.unary], keys, values
        return [lists.values, lists.ids, *gate], keys, values

    def compile_for_inference(self) -> None:
        """Join weights that share an input and compile the passes; no training after this.

        Raises:
            ConfigError: `DFLASH2_KERNELS` cannot be read, or asks for Metal where there is none.

        The weights become constants of the graphs. K and V weights are kept twice, once beside the queries and
        once for the context rows of all layers.
        """
        for name in KERNELS:
            dispatcher().wants_metal(name)  # an impossible wish is refused here, not in the middle of a reply
        for layer in self.layers:
            layer.self_attn.join_weights()
            layer.attention_conv.freeze_base()
            layer.mlp_conv.freeze_base()
            if not on_cpu():  # OpenBLAS is quick below a size that the joined product would exceed
                layer.mlp.join_weights()
        self._context_kv, self._norms = join(self._context_parts()), self._context_norms()
        mx.eval(self._norms)
        use_row_kernels(self)
        if dispatcher().eager:  # kernels that run when they are called cannot be inside a graph
            return
        self.project, self._version = mx.compile(self._project), dispatcher().version
        self._compiled = True


class CandidateSelector(nn.Module):
    """Low-rank predecessor -> successor scores, gated by the hidden state of the position.

    Args:
        vocab_size: V, rows of the codebooks.
        rank: R.
        hidden_size: D.
    """

    def __init__(self, vocab_size: int, rank: int, hidden_size: int):
        super().__init__()
        self.predecessor_codebook = mx.zeros((vocab_size, rank))
        self.successor_codebook = mx.zeros((vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def gate(self, hidden: mx.array) -> mx.array:
        """What a position's hidden row [..., D] weighs the codebooks' columns by: [..., R]."""
        gate: mx.array = self.hidden_projection(hidden)
        return gate
