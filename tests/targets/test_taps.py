"""A tap is the residual stream after its layer, and taps outside of the target are refused (CK-6, T6)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash2_mlx.checkpoints.configs import check_pair
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.errors import ConfigError, PairError
from dflash2_mlx.targets.layer_loop import FULL, LayerLoopTarget
from tests.runs import FAMILIES, assert_same_rows, lively_model, lively_target, target_config
from tests.tiny import LAYERS, drafter_config

pytestmark = pytest.mark.bits

TEXT = [(11 * i * i + 5 * i + 3) % 211 for i in range(20)]


def residuals(family: str, monkeypatch: pytest.MonkeyPatch) -> list[mx.array]:
    """What each decoder layer hands on in mlx-lm's own forward."""
    model = lively_model(family)
    text = model.language_model if "language_model" in model else model
    kind = type(text.model.layers[0])
    assert {type(layer) for layer in text.model.layers} == {kind}
    seen: dict[int, mx.array] = {}
    number = {id(layer): i for i, layer in enumerate(text.model.layers)}
    call = kind.__call__

    def recorded(self, *arguments, **keywords):
        seen[number[id(self)]] = call(self, *arguments, **keywords)
        return seen[number[id(self)]]

    with monkeypatch.context() as patch:
        patch.setattr(kind, "__call__", recorded)
        text(mx.array([TEXT]))
    return [seen[i] for i in range(LAYERS)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("taps", [(0,), (LAYERS - 1,), (0, 2), (0, 1, 3), (0, 1, 2, 3)], ids=str)
def test_taps_are_the_residuals_after_their_layers(family, taps, monkeypatch):
    expected = residuals(family, monkeypatch)
    target = lively_target(family)
    out = target.forward(mx.array([TEXT]), target.new_state(), taps=taps, last_only=True)
    # In the order of the list, side by side, and for all rows although only the last logits were asked for.
    assert out.taps.shape == (1, len(TEXT), len(taps) * target.spec.hidden_size)
    for part, layer in zip(mx.split(out.taps, len(taps), axis=-1), taps, strict=True):
        assert_same_rows(part, expected[layer], f"tap {layer}")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_taps_unless_asked(family):
    target = lively_target(family)
    assert target.forward(mx.array([TEXT]), target.new_state()).taps is None


class _Adds(nn.Module):
    """A layer that adds a constant."""

    def __init__(self, amount: float):
        super().__init__()
        self.amount = amount

    def __call__(self, hidden, mask=None, cache=None):
        rows = mx.zeros((*hidden.shape[:2], 1, 2)).transpose(0, 2, 1, 3)
        cache.update_and_fetch(rows, rows)
        return hidden + self.amount


class _Body(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 6)
        self.embed_tokens.weight = mx.zeros((11, 6))
        self.layers = [_Adds(number + 1) for number in range(layers)]
        self.norm = nn.RMSNorm(6)


class _Toy(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.model = _Body(layers)


@pytest.mark.parametrize("tap", range(5))
def test_the_tap_of_a_target_that_counts(tap):
    target = LayerLoopTarget(
        _Toy(5), family="toy", kinds=[FULL] * 5, window=None, context_length=None, quantization=None
    )
    out = target.forward(mx.array([[1, 2, 3]]), target.new_state(), taps=(tap,))
    assert out.taps.tolist() == [[[(tap + 1) * (tap + 2) / 2] * 6] * 3]


def drafter_of(taps: list[int], **changes) -> DrafterConfig:
    return DrafterConfig.from_dict(drafter_config(target_layer_ids=taps, **changes))


@pytest.mark.parametrize(
    ("taps", "named"),
    [([0, LAYERS], (LAYERS, LAYERS - 1)), ([-1, 2], (-1, LAYERS - 1)), ([2, 2], (2,)), ([2, 0], (2, 0))],
)
def test_impossible_taps_are_refused_by_the_config(taps, named):
    with pytest.raises(ConfigError, match="target_layer_ids") as error:
        drafter_of(taps)
    assert all(str(number) in str(error.value) for number in named)


@pytest.mark.parametrize("family", FAMILIES)
def test_taps_beyond_the_target_are_refused_with_both_numbers(family):
    # A config that does not state the target's depth can only be checked against the target itself.
    config = target_config(family)
    check_pair(drafter_of([0, LAYERS - 1], num_target_layers=None), config)
    with pytest.raises(PairError, match=rf"target_layer_ids.* {LAYERS + 3}.* {LAYERS} ") as error:
        check_pair(drafter_of([0, LAYERS + 3], num_target_layers=None), config)
    assert "\n" not in str(error.value)
    with pytest.raises(PairError, match=r"num_target_layers.* 6.* 4"):
        check_pair(drafter_of([0, 2], num_target_layers=6), config)
