"""Races of the verify pass's kernels at the shapes of a loaded pair.

Owns: which shapes there are, and inputs like those of decoding. Knows nothing of how races are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from ..drafter.model import DraftModel
from ..targets.adapter import LayerLoopTarget
from ..targets.base import Target
from ..targets.gated_delta import layer_shape
from . import _target_calls, few_row_attention, gated_delta_verify
from ._contest import Contest
from ._dispatch import check_equal, dispatcher, rounding
from .few_row_attention import SHORT, attention_twin, mask_of, run_kernels
from .gated_delta_verify import Rows, gated_delta_twin

CONTEXTS = (1024, 8192)  # one for a short context, one for a long one
SETS = 3  # buffers that take turns, so that none stays in a cache
_STATE_BYTES = 2**26  # of the states that take turns


def contests(target: Target, drafter: DraftModel | None, rows: Sequence[int]) -> list[Contest]:
    """One race for each shape of attention and of gated-delta layers of the pair, and each number of rows.

    None for a target in exact mode, which has no choice.

    To be called, and the races run, in the owner's thread.
    """
    found: dict[str, Contest] = {}
    few = [n for n in rows if few_row_attention.FEWEST_ROWS <= n <= few_row_attention.MOST_ROWS]
    for attention in _attentions(target, drafter):
        for number in few:
            contest = attention.contest(number)
            found.setdefault(contest.key, contest)
    for delta in _deltas(target):
        for number in few:
            contest = delta.contest(number)
            found.setdefault(contest.key, contest)
    return list(found.values())


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

    @cached_property
    def buffers(self) -> list[tuple[mx.array, mx.array]]:
        shape = (1, self.kv_heads, self.capacity, self.dim)
        pairs = [tuple(_random(shape, self.dtype, seed=2 * n + part) for part in range(2)) for n in range(SETS)]
        mx.eval(pairs)
        return [(keys, values) for keys, values in pairs]

    def contest(self, rows: int) -> Contest:
        queries = (1, self.heads, rows, self.dim)
        keys = (1, self.kv_heads, self.capacity, self.dim)
        start = mx.array([self.context], dtype=mx.int32)
        mask = mask_of(start, 0, rows, self.capacity, causal=self.causal, window=self.window, sink=0)
        base = mx.array([0], dtype=mx.int32)
        call = _target_calls.few_row_attention(
            queries, keys, self.dtype, window=self.window, sink=0, causal=self.causal
        )

        def ours(few: mx.array, keys: mx.array, values: mx.array) -> mx.array:
            return run_kernels(call, (few, keys, values, start, base))

        def stock(few: mx.array, keys: mx.array, values: mx.array) -> mx.array:
            return attention_twin(few, keys, values, mask)

        def chain(once: Callable[[mx.array, mx.array, mx.array], mx.array], calls: int) -> mx.array:
            few = _random(queries, self.dtype, seed=99)
            for number in range(calls):
                few = once(few, *self.buffers[number % SETS])
            return few

        def check(name: str) -> None:
            if name == few_row_attention.OURS:
                inputs = (_random(queries, self.dtype, seed=98), *self.buffers[0])
                check_equal(ours(*inputs), stock(*inputs), tolerance=rounding(self.dtype), what=few_row_attention.NAME)

        return Contest(
            kernel=few_row_attention.NAME,
            key=few_row_attention.race_key(queries, keys, self.dtype, self.window),
            stock=few_row_attention.STOCK,
            chains={
                few_row_attention.STOCK: lambda calls: chain(stock, calls),
                few_row_attention.OURS: lambda calls: chain(ours, calls),
            },
            check=check,
        )


@dataclass(frozen=True)
class _Delta:
    """Gated-delta layers of one shape."""

    heads: int
    key_heads: int
    values: int
    dim: int
    dtype: mx.Dtype

    @cached_property
    def states(self) -> list[mx.array]:
        shape = (1, self.heads, self.values, self.dim)
        number = max(2, _STATE_BYTES // (4 * self.heads * self.values * self.dim))
        states = [_random(shape, mx.float32, seed=n) for n in range(number)]
        mx.eval(states)
        return states

    def contest(self, rows: int) -> Contest:
        state = (1, self.heads, self.values, self.dim)
        keep = mx.array([(rows + 1) // 2], dtype=mx.int32)
        old, new = self._rows(rows, 0), self._rows(rows, 1)
        call = _target_calls.gated_delta_verify(state, new.k.shape, self.dtype)

        def ours(memory: mx.array, before: Rows) -> list[mx.array]:
            return dispatcher().run(call, (memory, before.k, before.v, before.g, before.beta, keep, *new.inputs))

        def stock(memory: mx.array, before: Rows) -> list[mx.array]:
            return list(gated_delta_twin(memory, before, keep, new))

        def chain(once: Callable[[mx.array, Rows], list[mx.array]], calls: int) -> mx.array:
            values = old.v
            for number in range(calls):
                memory = self.states[number % len(self.states)]
                # What one call reads out, the next one applies: each waits for the one before.
                values = once(memory, Rows(old.q, old.k, values, old.g, old.beta))[0]
            return values

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
                gated_delta_verify.STOCK: lambda calls: chain(stock, calls),
                gated_delta_verify.OURS: lambda calls: chain(ours, calls),
            },
            check=check,
        )

    def _rows(self, rows: int, side: int) -> Rows:
        q, k = (
            _random((1, rows, self.key_heads, self.dim), mx.float32, seed=10 * side + number) for number in range(2)
        )
        q, k = (array / mx.linalg.norm(array, axis=-1, keepdims=True) for array in (q, k))
        v = _random((1, rows, self.heads, self.values), self.dtype, seed=10 * side + 2)
        g, beta = (mx.sigmoid(_random((1, rows, self.heads), mx.float32, seed=10 * side + number)) for number in (3, 4))
        arrays = Rows(q.astype(self.dtype), k.astype(self.dtype), v, g, beta.astype(self.dtype))
        mx.eval(arrays.inputs)
        return arrays


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
    """Lengths of context to race at: a sliding layer's buffer holds hardly more than its window."""
    most = min(number for number in (window, longest, CONTEXTS[-1]) if number is not None)
    short = min(most, CONTEXTS[0])
    return [short, most] if most > SHORT else [short]


def _deltas(target: Target) -> list[_Delta]:
    if not isinstance(target, LayerLoopTarget) or target.exact:
        return []
    dtype = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
    shapes = {layer_shape(layer.linear_attn) for layer in target.layers if "linear_attn" in layer}
    kept = [shape for shape in sorted(shapes) if gated_delta_verify.possible(shape[3], dtype)]
    return [_Delta(heads, key_heads, values, dim, dtype) for heads, key_heads, values, dim in kept]


def _random(shape: tuple[int, ...], dtype: mx.Dtype, *, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
