"""What tuning a 27B pair would take, from its shapes alone: the figures of docs/performance.md.

Arrays are described and never made, so that no memory is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.checkpoints.memory import memory_estimate
from dflash2_mlx.checkpoints.shapes import target_shape
from dflash2_mlx.decode.costs import seconds_to_measure
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.kernels.qmm_rows import Packed
from dflash2_mlx.tuning import target_trials
from dflash2_mlx.tuning.drafter_trials import drafter_contests
from dflash2_mlx.tuning.measure import most_seconds
from dflash2_mlx.tuning.qmm_trials import contests as qmm_contests
from dflash2_mlx.tuning.run import DEEP, MOST_BYTES, MOST_SECONDS
from dflash2_mlx.tuning.trial import Contest
from tests.checkpoints.test_memory_estimate import QWEN_27B
from tests.decode.width_traces import cost_tables
from tests.published import DFLASH2

TARGET = target_shape(QWEN_27B)
DRAFTER = DrafterConfig.from_dict(DFLASH2["Qwen3.8-27B"].raw, num_target_layers=64)
ROWS = range(1, DRAFTER.block_size + 1)


@pytest.fixture(autouse=True)
def believing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A dispatcher that believes in Metal; no kernel is run."""
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (lambda **_: pytest.fail("a kernel ran"), True))
    dispatcher.cache_clear()
    yield
    dispatcher.cache_clear()


def packed(outputs: int, inputs: int) -> Packed:
    scales = mx.zeros((outputs, inputs // 64), dtype=mx.bfloat16)
    return Packed(mx.zeros((outputs, inputs // 8), dtype=mx.uint32), scales, scales + 0, 64, 4)


def model(*matrices: Packed) -> Any:
    return SimpleNamespace(quantized_matrices=lambda: list(matrices))


def drafted() -> Any:
    """The drafter's products, with q, k and v joined, gate and up, and the context's keys and values of all layers."""
    size, dim, heads, kv = DRAFTER.hidden_size, DRAFTER.head_dim, DRAFTER.num_heads, DRAFTER.num_kv_heads
    layer = [((heads + 2 * kv) * dim, size), (size, heads * dim), (2 * DRAFTER.intermediate_size, size),
             (size, DRAFTER.intermediate_size)]  # fmt: skip
    whole = [(size, len(DRAFTER.target_layer_ids) * size), (2 * kv * dim * DRAFTER.num_layers, size)]
    return model(*(packed(*dims) for dims in (*layer * DRAFTER.num_layers, *whole)))


def races() -> list[Contest]:
    matrices = [dims for name, dims in TARGET.tensors.items() if len(dims) == 2 and "embed_tokens" not in name]
    found = qmm_contests(model(*(packed(*dims) for dims in matrices)), drafted(), ROWS)
    attention, half = target_trials._Attention, mx.bfloat16
    own = (DRAFTER.num_heads, DRAFTER.num_kv_heads, DRAFTER.head_dim)
    shapes: list[Any] = [
        *(attention(TARGET.heads, TARGET.kv_heads, TARGET.head_dim, half, None, True, context)
          for context in target_trials._contexts(None, 262_144)),
        *(attention(*own, half, DRAFTER.sliding_window, False, context)
          for context in target_trials._contexts(DRAFTER.sliding_window, None)),
        target_trials._Delta(48, 16, 128, 128, half),
    ]  # fmt: skip
    found += [shape.contest(rows) for shape in shapes for rows in ROWS[1:]]
    vocab = TARGET.tensors["lm_head.weight"][0]
    target: Any = SimpleNamespace(spec=SimpleNamespace(vocab_size=vocab), embed=lambda ids: mx.zeros((1,), dtype=half))
    drafter: Any = SimpleNamespace(config=DRAFTER)
    found += [case.contest() for case in target_trials.acceptances(target, drafter, ROWS)]
    books = (mx.zeros((vocab, DRAFTER.selector_rank or 0), dtype=half),) * 2
    return found + drafter_contests(DRAFTER, half, ROWS, books, (vocab, half))


def test_the_figures_of_the_documentation():
    active = mx.get_active_memory()
    found = races()
    assert mx.get_active_memory() - active < 10**6, "nothing is made before a race begins"
    assert len({(race.kernel, race.key) for race in found}) == len(found) == 190
    assert sum(len(race.chains) for race in found) == 464
    most: Counter[str] = Counter()
    for race in found:
        most[race.kernel] = max(most[race.kernel], race.bytes)
    assert most["qmm_rows"] < 74e6 and most["few_row_attention"] < 135e6 and max(most.values()) < 135e6
    states = sum(memory_estimate(QWEN_27B, DRAFTER, context).target_cache for context in (16, DEEP))
    assert 1.45e9 < states < 1.55e9 < MOST_BYTES
    assert 2.5 < sum(map(most_seconds, found)) / 60 < 3 < MOST_SECONDS / 60
    drafter: Any = SimpleNamespace(config=DRAFTER)
    passes = {name: seconds_to_measure(costs, drafter, ROWS, DEEP) for name, costs in cost_tables().items()}
    assert min(passes, key=passes.__getitem__) == "M5 Max own" and max(passes, key=passes.__getitem__) == "M1 Pro stock"
    assert (round(min(passes.values())), round(max(passes.values()))) == (4, 28)
    text = " ".join((Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8").split())
    for figure in (
        "190 trials of 464 variants",
        "about 3 minutes",
        "74 MB",
        "135 MB",
        "1.5 GB",
        "2 GB",
    ):
        assert figure in text
