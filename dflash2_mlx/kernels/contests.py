"""All races of a loaded pair: what `tune` runs.

Owns: the list of who makes contests, and the contests of kernels whose only rival is their own twin, at the shapes the
drafter has. Nothing is run here; a contest allocates what it needs when it is first asked to run. Where MLX has no
Metal there are no contests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import mlx.core as mx

from ..config import DrafterConfig
from . import _metal, qmm_contests, target_contests
from ._contest import Chain, Contest
from ._dispatch import METAL, MLX, KernelMismatch, check_equal, dispatcher, rounding
from .conv_add_norm import conv_add_norm, conv_add_norm_twin
from .conv_add_norm import key_of as conv_add_norm_key
from .dynamic_conv import convolve, dynamic_conv, split_base
from .dynamic_conv import key_of as dynamic_conv_key
from .norm_rope import key_of as norm_rope_key
from .norm_rope import norm_rope, norm_rope_twin
from .select_walk import Selection, Selector, select, select_twin
from .select_walk import key_of as select_walk_key
from .top_candidates import CandidateLists, candidate_lists, twin_lists
from .top_candidates import key_of as top_candidates_key

COPIES = 3  # of the inputs, in turn, so that none of them stays in a cache
Outputs = tuple[mx.array, ...]
Inputs = tuple[mx.array, ...]


class Case:
    """One kernel beside its twin at one shape.

    Args:
        make: the inputs, from a random key; called once for each copy, when the case is first run.
        kernel, twin: both ways; what they return is compared part by part.
        tolerance: of the comparison; 0 for ids, which must be equal.
    """

    def __init__(
        self,
        name: str,
        key: str,
        make: Callable[[mx.array], Inputs],
        kernel: Callable[..., Outputs],
        twin: Callable[..., Outputs],
        tolerance: float,
    ):
        self.name, self.key, self.kernel, self.twin, self.tolerance = name, key, kernel, twin, tolerance
        self.inputs = cache(partial(self._made, make))

    @staticmethod
    def _made(make: Callable[[mx.array], Inputs]) -> list[Inputs]:
        copies = [make(key) for key in mx.random.split(mx.random.key(0), COPIES)]
        mx.eval(copies)
        return copies

    def contest(self) -> Contest:
        """The race of the two; the twin is what MLX itself offers."""
        ways = {MLX: self.twin, METAL: self.kernel}
        chains: dict[str, Chain] = {name: partial(self._chain, way) for name, way in ways.items()}
        return Contest(self.name, self.key, MLX, chains, self._check)

    def _chain(self, way: Callable[..., Outputs], calls: int) -> mx.array:
        copies, last = self.inputs(), mx.zeros((1,))
        for number in range(calls):
            first, *rest = copies[number % COPIES]
            # By its numbers, not by `mx.depends`: a GPU waits for what it reads, and lets the rest overlap.
            nothing = (last.reshape(-1)[:1] * 0).astype(first.dtype)
            last = way(first + nothing, *rest)[0]
        return last

    def _check(self, contender: str) -> None:
        if contender == MLX:
            return
        inputs = self.inputs()[0]
        for got, want in zip(self.kernel(*inputs), self.twin(*inputs), strict=True):
            if not self.tolerance and not mx.array_equal(got, want).item():
                raise KernelMismatch(f"{self.name}: other numbers than the twin's")
            check_equal(got, want, tolerance=self.tolerance, what=self.name)


def contests(target: Any, drafter: Any, rows: Sequence[int]) -> list[Contest]:
    """Every race of this pair.

    Args:
        target, drafter: the loaded `Target` and `DraftModel`; a drafter of None races the target's kernels alone.
        rows: numbers of rows that passes will have, from 1 on.
    """
    if dispatcher().factory is None:
        return []
    found: list[Contest] = []
    if drafter is not None:
        # Logits come from the target's head, in the target's type.
        head = target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype
        found += drafter_contests(drafter.config, drafter.dtype, rows, codebooks_of(drafter), head)
    found += qmm_contests.contests(target, drafter, rows)
    found += target_contests.contests(target, drafter, rows)
    return found


Books = tuple[mx.array, mx.array]  # the selector's codebooks: predecessors, successors


def codebooks_of(drafter: Any) -> Books | None:
    """A drafter's codebooks; None where it has no selector."""
    if drafter.config.selector_rank is None:
        return None
    selector = drafter.candidate_selector
    return selector.predecessor_codebook, selector.successor_codebook


def drafter_contests(
    config: DrafterConfig, dtype: mx.Dtype, rows: Sequence[int], books: Books | None, head: mx.Dtype
) -> list[Contest]:
    """Races of the drafter's own kernels; widths are those of `rows` that are blocks."""
    widths = [width for width in rows if 2 <= width <= config.block_size]
    cases = (case for width in widths for case in drafter_cases(config, dtype, width, books, head))
    return [case.contest() for case in cases if dispatcher().wants_metal(case.name)]


def drafter_cases(
    config: DrafterConfig, dtype: mx.Dtype, width: int, books: Books | None, head: mx.Dtype | None = None
) -> Iterator[Case]:
    """Each kernel of a draft pass of `width` rows, at its shape; without codebooks, all but the walk.

    Args:
        dtype: of the drafter; `head` is that of the logits, the same if left out.
    """
    yield from _norm_rope(config, dtype, width)
    if config.conv_kernel_size is not None and config.conv_group_size is not None:
        yield from _convolutions(config, dtype, width)
    yield from _candidates(config, dtype, width - 1, books, head or dtype)


def _random(shapes: Sequence[tuple[int, ...]], dtype: mx.Dtype, key: mx.array) -> Inputs:
    keys = mx.random.split(key, len(shapes))
    return tuple(mx.random.normal(shape, key=own).astype(dtype) for shape, own in zip(shapes, keys, strict=True))


def _norm_rope(config: DrafterConfig, dtype: mx.Dtype, width: int) -> Iterator[Case]:
    heads, dim = config.num_heads + config.num_kv_heads, config.head_dim
    rules = {"theta": config.rope_theta, "eps": config.rms_norm_eps}
    start = mx.array([1000], dtype=mx.int32)
    # The block's queries and keys, then the keys of all layers for new context rows.
    for used, others in ((heads, config.num_kv_heads), (config.num_kv_heads * config.num_layers,) * 2):
        shapes = [(1, width, used + others, dim), (used, dim)]
        rows, norms = (mx.zeros(shape, dtype=dtype) for shape in shapes)
        yield Case(
            "norm_rope",
            norm_rope_key(rows, norms),
            partial(_random, shapes, dtype),
            lambda rows, norms: (norm_rope(rows, norms, start, **rules),),
            lambda rows, norms: (norm_rope_twin(rows, norms, start, **rules),),
            2 * rounding(dtype),
        )


def _convolutions(config: DrafterConfig, dtype: mx.Dtype, width: int) -> Iterator[Case]:
    assert config.conv_kernel_size is not None and config.conv_group_size is not None
    taps, size, eps = config.conv_kernel_size, config.hidden_size, config.rms_norm_eps
    groups = size // config.conv_group_size
    rows, base, delta = (1, width, size), (2, taps, size), (1, width, 2, taps, groups)

    def made(key: mx.array, shapes: Sequence[tuple[int, ...]]) -> Inputs:
        x, kernel, *rest = _random(shapes, dtype, key)
        return (x, kernel, *rest, *split_base(kernel, groups))

    like = mx.zeros(rows, dtype=dtype)
    yield Case(
        "dynamic_conv",
        dynamic_conv_key(like),
        lambda key: made(key, [rows, base, delta]),
        lambda x, kernel, change, *split: (dynamic_conv(x, kernel, change, 0),),
        lambda x, kernel, change, *split: (convolve(x, list(split), change, 0),),
        rounding(dtype),
    )
    yield Case(
        "conv_add_norm",
        conv_add_norm_key(like),
        lambda key: made(key, [rows, base, delta, rows, (size,)]),
        lambda y, kernel, change, stream, weight, *split: conv_add_norm(y, kernel, change, stream, weight, eps),
        lambda y, kernel, change, stream, weight, *split: conv_add_norm_twin(
            y, list(split), change, stream, weight, eps
        ),
        2 * rounding(dtype),
    )


def _candidates(
    config: DrafterConfig, dtype: mx.Dtype, positions: int, books: Books | None, head: mx.Dtype
) -> Iterator[Case]:
    vocab, k, rank = config.vocab_size, config.selector_top_k, config.selector_rank
    logits = (1, positions, vocab)
    yield Case(
        "top_candidates",
        top_candidates_key(mx.zeros(logits, dtype=head), k),
        partial(_random, [logits], head),
        lambda rows: (candidate_lists(rows, k, vocab_size=vocab).merged().ids,),
        lambda rows: (twin_lists(rows, k, vocab).ids,),
        0.0,
    )
    if rank is None or books is None:
        return
    anchor, blocks = mx.zeros((1,), dtype=mx.int32), 1
    if dispatcher().wants_metal("top_candidates"):
        blocks = _metal.top_candidates((positions, vocab), k, vocab).output_shapes[0][1]
    for noise in (None, mx.random.gumbel((1, positions, k), key=mx.random.key(2))):
        walk = partial(_walk, anchor=anchor, noise=noise, books=books)
        empty = CandidateLists(mx.zeros((1, positions, blocks, k)), mx.zeros((1, positions, blocks, k)))
        yield Case(
            "select_walk",
            select_walk_key(empty, mx.zeros((1, positions, rank), dtype=dtype), noise),
            partial(_walk_inputs, logits, dtype, k, blocks, rank),
            partial(walk, select),
            partial(walk, select_twin),
            0.0,
        )


def _walk_inputs(logits: tuple[int, ...], dtype: mx.Dtype, k: int, blocks: int, rank: int, key: mx.array) -> Inputs:
    raw, gate = _random([logits, (*logits[:2], rank)], dtype, key)
    lists = candidate_lists(raw, k) if blocks > 1 else twin_lists(raw, k, logits[-1])
    return gate, lists.values, lists.ids


def _walk(
    run: Callable[..., Selection],
    gate: mx.array,
    values: mx.array,
    ids: mx.array,
    *,
    anchor: mx.array,
    noise: mx.array | None,
    books: Books,
) -> Outputs:
    lists = CandidateLists(values, ids)
    return (run(lists, gate, anchor, Selector(*books), temperature=0.0 if noise is None else 1.0, noise=noise).tokens,)
