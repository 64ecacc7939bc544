"""All races of a loaded pair: what `tune` runs.

Owns: the list of who makes contests, and the contests of kernels whose only rival is their own twin, at the shapes the
drafter has. Nothing is run here; a contest allocates what it needs when it is first asked to run. Where MLX has no
Metal there are no contests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import mlx.core as mx

from ..drafters.dflash2.config import DrafterConfig
from ..drafters.dflash2.model import DraftModel
from ..kernels.conv_add_norm import conv_add_norm, conv_add_norm_twin
from ..kernels.conv_add_norm import key_of as conv_add_norm_key
from ..kernels.dispatch import KERNELS, METAL, MLX, dispatcher, rounding
from ..kernels.dynamic_conv import convolve, dynamic_conv, split_base
from ..kernels.dynamic_conv import key_of as dynamic_conv_key
from ..kernels.norm_rope import key_of as norm_rope_key
from ..kernels.norm_rope import norm_rope, norm_rope_twin
from ..kernels.qmm_forms import FORMS
from ..kernels.qmm_rows import KERNEL_OF
from ..kernels.qmm_rows import NAME as QMM
from ..kernels.select_walk import Selection, Selector, select, select_twin
from ..kernels.select_walk import key_of as select_walk_key
from ..kernels.top_candidates import MAX_CANDIDATES, CandidateLists, candidate_lists, top_candidates_call, twin_lists
from ..kernels.top_candidates import key_of as top_candidates_key
from ..targets.base import Target
from . import qmm_trials, target_trials
from .trial import Case, Contest, Outputs

Arrays = tuple[mx.array, ...]


def contests(target: Target, drafter: DraftModel | None, rows: Sequence[int]) -> list[Contest]:
    """Every race of this pair.

    Args:
        drafter: None races the target's kernels alone.
        rows: numbers of rows that passes will have, from 1 on.
    """
    if dispatcher().factory is None:
        return []
    # What is worth most comes first: time may run out.
    found = qmm_trials.contests(target, drafter, rows) + target_trials.contests(target, drafter, rows)
    if drafter is not None:
        # Logits come from the target's head, in the target's type; its rows may be more than the drafter's ids.
        head = (target.spec.vocab_size, target.embed(mx.zeros((1, 1), dtype=mx.int32)).dtype)
        found += drafter_contests(drafter.config, drafter.dtype, rows, codebooks_of(drafter), head)
    return found


def can_win(kernel: str, winner: str) -> bool:
    """Whether a contender of this name may run here at all: a record may be of other hands or other days.

    Raises:
        ConfigError: as `Dispatcher.wants_metal`.
    """
    if kernel == QMM:
        return winner in FORMS and (winner not in KERNEL_OF or dispatcher().wants_metal(KERNEL_OF[winner]))
    if kernel not in KERNELS or kernel in KERNEL_OF.values():
        return False
    return winner == MLX or (winner == METAL and dispatcher().wants_metal(kernel))


Books = tuple[mx.array, mx.array]  # the selector's codebooks: predecessors, successors
Head = tuple[int, mx.Dtype]  # columns and type of the logits


def codebooks_of(drafter: DraftModel) -> Books | None:
    """A drafter's codebooks; None where it has no selector."""
    if drafter.config.selector_rank is None:
        return None
    selector = drafter.candidate_selector
    return selector.predecessor_codebook, selector.successor_codebook


def drafter_contests(
    config: DrafterConfig, dtype: mx.Dtype, rows: Sequence[int], books: Books | None, head: Head
) -> list[Contest]:
    """Races of the drafter's own kernels; widths are those of `rows` that are blocks, and the single context row."""
    widths = [width for width in rows if 2 <= width <= config.block_size]
    cases = [case for width in widths for case in drafter_cases(config, dtype, width, books, head)]
    if 1 in rows:  # a round without a draft
        cases.append(_turned(config, dtype, 1, *_context_heads(config)))
    return [case.contest() for case in cases if dispatcher().wants_metal(case.name)]


def drafter_cases(
    config: DrafterConfig, dtype: mx.Dtype, width: int, books: Books | None, head: Head | None = None
) -> Iterator[Case]:
    """Each kernel of a draft pass of `width` rows, at its shape; without codebooks, all but the walk.

    Args:
        dtype: of the drafter; what is left out in `head` is the drafter's.
    """
    yield from _norm_rope(config, dtype, width)
    if config.conv_kernel_size is not None and config.conv_group_size is not None:
        yield from _convolutions(config, dtype, width)
    yield from _candidates(config, dtype, width - 1, books, head or (config.vocab_size, dtype))


def _random(shapes: Sequence[tuple[int, ...]], dtype: mx.Dtype, key: mx.array) -> Arrays:
    keys = mx.random.split(key, len(shapes))
    return tuple(mx.random.normal(shape, key=own).astype(dtype) for shape, own in zip(shapes, keys, strict=True))


def _norm_rope(config: DrafterConfig, dtype: mx.Dtype, width: int) -> Iterator[Case]:
    # The block's queries and keys, beside values; then the keys and values of all layers for new context rows.
    heads, kv_heads = config.num_heads + config.num_kv_heads, config.num_kv_heads
    yield _turned(config, dtype, width, heads, kv_heads)
    yield _turned(config, dtype, width, *_context_heads(config))


def _context_heads(config: DrafterConfig) -> tuple[int, int]:
    return config.num_kv_heads * config.num_layers, config.num_kv_heads * config.num_layers


def _turned(config: DrafterConfig, dtype: mx.Dtype, rows: int, used: int, others: int) -> Case:
    """Rows of `used` heads that are turned and `others` that are not."""
    rules = {"theta": config.rope_theta, "eps": config.rms_norm_eps}
    start = mx.array([1000], dtype=mx.int32)
    shapes = [(1, rows, used + others, config.head_dim), (used, config.head_dim)]
    like, norms = (mx.zeros(shape, dtype=dtype) for shape in shapes)
    return Case(
        "norm_rope",
        norm_rope_key(like, norms),
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

    def made(key: mx.array, shapes: Sequence[tuple[int, ...]]) -> Arrays:
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
    config: DrafterConfig, dtype: mx.Dtype, positions: int, books: Books | None, head: Head
) -> Iterator[Case]:
    columns, head_dtype = head
    vocab, k, rank = min(config.vocab_size, columns), config.selector_top_k, config.selector_rank
    if k > MAX_CANDIDATES:
        return
    logits = (1, positions, columns)
    yield Case(
        "top_candidates",
        top_candidates_key(mx.zeros(logits, dtype=head_dtype), k),
        partial(_random, [logits], head_dtype),
        lambda rows: (candidate_lists(rows, k, vocab_size=vocab).merged().ids,),
        lambda rows: (twin_lists(rows, k, vocab).ids,),
        0.0,
    )
    if rank is None or books is None:
        return
    anchor, blocks = mx.zeros((1,), dtype=mx.int32), top_candidates_call((positions, columns), k, vocab)
    # Lists as the kernel leaves them, and merged ones: by its twin, and where the noise belongs to ids.
    for lists in sorted({1, blocks.output_shapes[0][1]}):
        for noise in (None, mx.random.gumbel((1, positions, k), key=mx.random.key(2))):
            walk = partial(_walk, anchor=anchor, noise=noise, books=books)
            shape = (1, positions, lists, k)
            empty = CandidateLists(mx.zeros(shape), mx.zeros(shape))
            yield Case(
                "select_walk",
                select_walk_key(empty, mx.zeros((1, positions, rank), dtype=dtype), noise),
                partial(_walk_inputs, shape, vocab, rank, dtype),
                partial(walk, select),
                partial(walk, select_twin),
                0.0,
            )


def _walk_inputs(shape: tuple[int, int, int, int], vocab: int, rank: int, dtype: mx.Dtype, key: mx.array) -> Arrays:
    """A gate, and lists of the best of each block: values in order, ids of the block without order."""
    scores, places, gate = mx.random.split(key, 3)
    _, positions, blocks, k = shape
    size = vocab // blocks
    places = mx.argsort(mx.random.uniform(shape=(*shape[:3], size), key=places), axis=-1)[..., :k].astype(mx.int32)
    ids = places + size * mx.arange(blocks, dtype=mx.int32)[:, None]
    values = -mx.sort(-mx.random.normal(shape, key=scores), axis=-1)
    return mx.random.normal((1, positions, rank), key=gate).astype(dtype), values, ids


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
