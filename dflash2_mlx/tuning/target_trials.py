"""Races of the verify pass's kernels at the shapes of a loaded pair.

Owns: which shapes there are, and inputs like those of decoding. Knows nothing of how races are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import mlx.core as mx

from ..drafters.dflash2.model import DraftModel
from ..kernels import few_row_attention, gated_delta_verify
from ..kernels.dispatch import check_equal, dispatcher, rounding
from ..kernels.few_row_attention import SHORT, attention_twin, few_row_attention_call, mask_of, run_kernels
from ..kernels.gated_delta_verify import Rows, gated_delta_twin, gated_delta_verify_call
from ..kernels.top_candidates import MAX_CANDIDATES
from ..layers.gated_delta import layer_shape
from ..layers.kv_cache import GROWTH
from ..sampling import rng
from ..sampling.acceptance import NAME as ACCEPT
from ..sampling.acceptance import Acceptance, Drafted, accept, accept_twin, most_kept, random_pass
from ..sampling.acceptance import key_of as accept_key
from ..sampling.config import SamplingConfig
from ..targets.base import Target
from ..targets.layer_loop import LayerLoopTarget
from .trial import Case, Contest, Inputs, Outputs, Way, chain_of, sets_needed

CONTEXTS = (1024, 8192)  # one for a short context, one for a long one


def contests(target: Target, drafter: DraftModel | None, rows: Sequence[int]) -> list[Contest]:
    """One race for each shape of attention and of gated-delta layers of the pair, and each number of rows, and of
    the acceptance of each width.

    None of a target in exact mode, which has no choice.

    To be called, and the races run, in the owner's thread.
    """
    found: dict[tuple[str, str], Contest] = {}
    few = [n for n in rows if few_row_attention.FEWEST_ROWS <= n <= few_row_attention.MOST_ROWS]
    shapes: list[_Attention | _Delta] = []
    if dispatcher().wants_metal(few_row_attention.NAME):
        shapes += _attentions(target, drafter)
    if dispatcher().wants_metal(gated_delta_verify.NAME):
        shapes += _deltas(target)
    for shape in shapes:
        for number in few:
            contest = shape.contest(number)
            found.setdefault((contest.kernel, contest.key), contest)
    if drafter is not None and dispatcher().wants_metal(ACCEPT):
        found |= {(ACCEPT, case.key): case.contest() for case in acceptances(target, drafter, rows)}
    return list(found.values())


def acceptances(target: Target, drafter: DraftModel, rows: Sequence[int]) -> Iterator[Case]:
    """Rejection sampling of a verify pass of each width, from logits to tokens."""
    vocab, width = target.spec.vocab_size, drafter.config.selector_top_k
    if width > MAX_CANDIDATES or vocab < 2:
        return
    dtype = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
    sampling = SamplingConfig(temperature=0.7, top_k=most_kept(vocab), top_p=0.95)
    keys = rng.base_keys(3)
    for count in rows:
        if 2 <= count <= drafter.config.block_size:
            yield _acceptance((1, count, vocab), dtype, width, sampling, keys)


def _acceptance(
    shape: tuple[int, int, int], dtype: mx.Dtype, width: int, sampling: SamplingConfig, keys: mx.array
) -> Case:
    def make(key: mx.array) -> tuple[mx.array, ...]:
        logits, start, drafted = random_pass(shape, dtype, width, key)
        return logits, start, drafted.tokens, drafted.candidates, drafted.q

    def way(rule: Callable[..., Acceptance]) -> Way:
        def run(logits: mx.array, start: mx.array, *drafted: mx.array) -> Outputs:
            kept = rule(logits, start, Drafted(*drafted), sampling, keys)
            return kept.num_accepted, kept.tokens

        return run

    return Case(ACCEPT, accept_key(*shape[1:], width), make, way(accept), way(accept_twin), 0.0)


@dataclass(frozen=True)
class _Attention:
    """Attention layers of one kind over a context of one length."""

    heads: int
    kv_heads: int
    dim: int
    dtype: mx.Dtype
    window: int | None
    causal: bool
    context: int

    @property
    def capacity(self) -> int:
        return self.context + few_row_attention.MOST_ROWS

    @property
    def bytes_each(self) -> int:
        return 2 * self.kv_heads * self.capacity * self.dim * self.dtype.size

    @cached_property
    def buffers(self) -> list[tuple[mx.array, mx.array]]:
        """Keys and values of the layers that take turns; the races of all numbers of rows share them."""
        shape, count = (1, self.kv_heads, self.capacity, self.dim), sets_needed(self.bytes_each)
        pairs = [tuple(_random(shape, self.dtype, seed=2 * n + part) for part in range(2)) for n in range(count)]
        mx.eval(pairs)
        return [(keys, values) for keys, values in pairs]

    def contest(self, rows: int) -> Contest:
        queries = (1, self.heads, rows, self.dim)
        keys = (1, self.kv_heads, self.capacity, self.dim)
        start = mx.array([self.context], dtype=mx.int32)
        mask = mask_of(start, 0, rows, self.capacity, causal=self.causal, window=self.window, sink=0)
        base = mx.array([0], dtype=mx.int32)
        call = few_row_attention_call(queries, keys, self.dtype, window=self.window, sink=0, causal=self.causal)

        few = _random(queries, self.dtype, seed=99)

        def ours(few: mx.array, keys: mx.array, values: mx.array) -> Outputs:
            return (run_kernels(call, (few, keys, values, start, base)),)

        def stock(few: mx.array, keys: mx.array, values: mx.array) -> Outputs:
            return (attention_twin(few, keys, values, mask),)

        def sets() -> list[Inputs]:
            return [(few, *pair) for pair in self.buffers]

        def feed(inputs: Inputs, last: mx.array) -> Inputs:
            return (last, *inputs[1:])  # what one call returns, the next one asks with

        def check(name: str) -> None:
            if name == few_row_attention.OURS:
                inputs = (few, *self.buffers[0])
                check_equal(
                    ours(*inputs)[0], stock(*inputs)[0], tolerance=rounding(self.dtype), what=few_row_attention.NAME
                )

        return Contest(
            kernel=few_row_attention.NAME,
            key=few_row_attention.race_key(queries, keys, self.dtype, self.window),
            stock=few_row_attention.STOCK,
            chains={
                few_row_attention.STOCK: chain_of(stock, sets, feed),
                few_row_attention.OURS: chain_of(ours, sets, feed),
            },
            check=check,
            bytes=self.bytes_each * sets_needed(self.bytes_each),
        )


@dataclass(frozen=True)
class _Delta:
    """Gated-delta layers of one shape."""

    heads: int
    key_heads: int
    values: int
    dim: int
    dtype: mx.Dtype

    @property
    def bytes_each(self) -> int:
        return 4 * self.heads * self.values * self.dim

    @cached_property
    def states(self) -> list[mx.array]:
        """States of the layers that take turns; the races of all numbers of rows share them."""
        shape, count = (1, self.heads, self.values, self.dim), sets_needed(self.bytes_each)
        states = [_random(shape, mx.float32, seed=n) for n in range(count)]
        mx.eval(states)
        return states

    def contest(self, rows: int) -> Contest:
        state = (1, self.heads, self.values, self.dim)
        keep = mx.array([(rows + 1) // 2], dtype=mx.int32)
        old, new = self._rows(rows, 0), self._rows(rows, 1)
        call = gated_delta_verify_call(state, new.k.shape, self.dtype)

        def ours(memory: mx.array, before: Rows) -> Outputs:
            inputs = (memory, before.k, before.v, before.g, before.beta, keep, *new.inputs)
            return tuple(dispatcher().run(call, inputs))

        def stock(memory: mx.array, before: Rows) -> Outputs:
            return gated_delta_twin(memory, before, keep, new)

        def sets() -> list[Inputs]:
            return [(memory, old) for memory in self.states]

        def feed(inputs: Inputs, last: mx.array) -> Inputs:
            return inputs[0], replace(old, v=last)  # what one call reads out, the next one applies

        def check(name: str) -> None:
            if name == gated_delta_verify.OURS:
                pairs = zip(ours(self.states[0], old), stock(self.states[0], old), strict=True)
                for (got, want), dtype in zip(pairs, (self.dtype, mx.float32), strict=True):
                    check_equal(got, want, tolerance=rounding(dtype), what=gated_delta_verify.NAME)

        return Contest(
            kernel=gated_delta_verify.NAME,
            key=gated_delta_verify.race_key(state, new.k.shape, self.dtype),
            stock=gated_delta_verify.STOCK,
            chains={
                gated_delta_verify.STOCK: chain_of(stock, sets, feed),
                gated_delta_verify.OURS: chain_of(ours, sets, feed),
            },
            check=check,
            bytes=self.bytes_each * sets_needed(self.bytes_each),
        )

    def _rows(self, rows: int, side: int) -> Rows:
        q, k = (
            _random((1, rows, self.key_heads, self.dim), mx.float32, seed=10 * side + number) for number in range(2)
        )
        q, k = (array / mx.linalg.norm(array, axis=-1, keepdims=True) for array in (q, k))
        v = _random((1, rows, self.heads, self.values), self.dtype, seed=10 * side + 2)
        g, beta = (mx.sigmoid(_random((1, rows, self.heads), mx.float32, seed=10 * side + number)) for number in (3, 4))
        return Rows(q.astype(self.dtype), k.astype(self.dtype), v, g, beta.astype(self.dtype))


def _attentions(target: Target, drafter: DraftModel | None) -> list[_Attention]:
    found = []
    if isinstance(target, LayerLoopTarget) and not target.exact:
        dtype = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
        for kind, shape in target.attention.items():
            window = target.window if kind == "sliding" else None
            if shape is not None:
                found += [
                    _Attention(shape.heads, shape.kv_heads, shape.dim, dtype, window, True, context)
                    for context in _contexts(window, target.spec.context_length)
                ]
    if drafter is not None:
        config = drafter.config
        for layer, causal in sorted(set(zip(config.layer_types, config.causal, strict=True))):
            window = config.sliding_window if layer == "sliding_attention" else None
            found += [
                _Attention(
                    config.num_heads, config.num_kv_heads, config.head_dim, drafter.dtype, window, causal, context
                )
                for context in _contexts(window, None)
            ]
    return found


def _contexts(window: int | None, longest: int | None) -> list[int]:
    """Lengths of context to race at: what buffers hold. That of a sliding layer is bounded, but above its window."""
    most = min(number for number in (longest, CONTEXTS[-1]) if number is not None)
    if window is not None:
        most = min(most, window - 1 + GROWTH)
    short = min(most, CONTEXTS[0])
    # A buffer has room for the rows of a pass as well, and grows in steps.
    return [short, most] if most + few_row_attention.MOST_ROWS > SHORT else [short]


def _deltas(target: Target) -> list[_Delta]:
    if not isinstance(target, LayerLoopTarget) or target.exact:
        return []
    dtype = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
    shapes = {layer_shape(layer.linear_attn) for layer in target.layers if "linear_attn" in layer}
    kept = [shape for shape in sorted(shapes) if gated_delta_verify.possible(shape[3], dtype)]
    return [_Delta(heads, key_heads, values, dim, dtype) for heads, key_heads, values, dim in kept]


def _random(shape: tuple[int, ...], dtype: mx.Dtype, *, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
