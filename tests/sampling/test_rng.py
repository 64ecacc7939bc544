"""Randomness depends on seed, position and purpose, and on nothing else (architecture 3; CK-15, CK-16)."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from dflash2_mlx.sampling import rng
from dflash2_mlx.sampling.acceptance import Proposal
from dflash2_mlx.sampling.config import SamplingConfig
from dflash2_mlx.sampling.rng import Purpose, base_keys, gumbel, uniform
from dflash2_mlx.sampling.sampler import TokenChooser, countable

KEYS = base_keys(7)
MANY = 20_000


def draws(purpose: Purpose, seed: int = 7, count: int = 1) -> np.ndarray:
    return np.array(uniform(base_keys(seed), purpose, mx.arange(MANY, dtype=mx.int32), count))


@pytest.mark.parametrize("draw", [uniform, gumbel])
def test_a_position_draws_the_same_in_any_batch(draw):
    positions = mx.array([[5, 6, 7, 8], [100, 101, 102, 103], [8, 5, 7, 6]], dtype=mx.int32)
    together = np.array(draw(KEYS, Purpose.TARGET, positions, 11))
    assert together.shape == (3, 4, 11)
    for row, column in itertools.product(range(3), range(4)):
        alone = draw(KEYS, Purpose.TARGET, positions[row, column].reshape(1), 11)
        np.testing.assert_array_equal(together[row, column], alone[0])
    np.testing.assert_array_equal(together[2, 1], together[0, 0])
    wider = draw(KEYS, Purpose.TARGET, mx.arange(16, dtype=mx.int32)[None], 11)
    np.testing.assert_array_equal(together[0], wider[0, 5:9])


@pytest.mark.parametrize("purpose", Purpose)
def test_uniforms_are_uniform_over_positions(purpose):
    values = draws(purpose)[:, 0]
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / MANY**0.5  # neighbours


def test_uniforms_within_one_position_are_independent():
    values = draws(Purpose.DRAFT, count=8)
    assert stats.kstest(values.reshape(-1), "uniform").pvalue > 1e-4
    off = np.corrcoef(values.T) - np.eye(8)
    assert np.abs(off).max() < 5 / MANY**0.5


def test_purposes_share_nothing():
    columns = [draws(purpose)[:, 0] for purpose in Purpose]
    for left, right in itertools.combinations(columns, 2):
        assert not np.intersect1d(left[:100], right[:100]).size
        for shift in range(3):  # not even a position apart
            assert abs(np.corrcoef(left[shift:], right[: MANY - shift])[0, 1]) < 4 / MANY**0.5


@pytest.mark.parametrize("other", [6, 8, 7 + 2**32, 0, 2**64 - 1])
def test_seeds_share_nothing(other):
    assert abs(np.corrcoef(draws(Purpose.TARGET)[:, 0], draws(Purpose.TARGET, other)[:, 0])[0, 1]) < 4 / MANY**0.5


def test_gumbel_numbers_are_standard():
    values = np.array(gumbel(KEYS, Purpose.TARGET, mx.arange(MANY, dtype=mx.int32), 1))[:, 0]
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-4
    assert np.isfinite(values).all()


def test_gumbel_numbers_draw_from_p():
    p = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    noise = gumbel(KEYS, Purpose.RESIDUAL, mx.arange(MANY, dtype=mx.int32), 5)
    picks = np.array(mx.argmax(mx.log(mx.array(p)) + noise, axis=-1))
    assert stats.chisquare(np.bincount(picks, minlength=5), p * MANY).pvalue > 1e-4


def test_large_gumbel_numbers_are_not_rounded_together():
    # With a vocabulary of 248,320 they decide every draw. From log(u) with u near 1 there are about 16,000,000
    # numbers in all: those beyond 11 would tie, the lower id would win, and rare tokens would never come.
    values = np.array(gumbel(KEYS, Purpose.TARGET, mx.arange(2000, dtype=mx.int32), 4000)).reshape(-1)
    large = values[values > 10]
    assert abs(len(large) - values.size * np.exp(-10)) < 5 * len(large) ** 0.5
    assert len(np.unique(large)) >= len(large) - 1


def test_a_uniform_of_zero_has_a_finite_gumbel():
    # log(0) would forbid a token for good; MLX's uniform does return 0.
    assert np.isfinite(np.array(gumbel(KEYS, Purpose.TARGET, mx.arange(2000, dtype=mx.int32), 1000))).all()


def test_positions_may_come_from_the_device():
    start = mx.array([12], dtype=mx.int32) + mx.argmax(mx.array([0.0, 1.0]))
    fixed = gumbel(KEYS, Purpose.TARGET, mx.array([13], dtype=mx.int32), 4)
    np.testing.assert_array_equal(gumbel(KEYS, Purpose.TARGET, start.astype(mx.int32), 4), fixed)


def test_a_uniform_of_zero_gives_a_finite_number(monkeypatch):
    monkeypatch.setattr(rng, "uniform", lambda keys, purpose, positions, count: mx.zeros((*positions.shape, count)))
    noise = rng.gumbel(rng.base_keys(1), rng.Purpose.TARGET, mx.array([3]), 4)
    assert mx.isfinite(noise).all().item() and noise.min().item() > 20


def test_every_decision_of_a_round_has_a_stream_of_its_own(monkeypatch):
    asked = []

    def recorded(draw):
        def record(keys, purpose, positions, count):
            asked.append((draw.__name__, rng.Purpose(purpose).name))
            return draw(keys, purpose, positions, count)

        return record

    chooser = TokenChooser(SamplingConfig(temperature=1.0, lossless_mode="rejection"), 30, 7, [1, 2])
    candidates = mx.broadcast_to(mx.arange(4, dtype=mx.int32), (1, 2, 4))
    start = mx.array([5], dtype=mx.int32)
    monkeypatch.setattr(rng, "uniform", recorded(uniform))
    monkeypatch.setattr(rng, "gumbel", lambda *given: asked.append(("gumbel", given[1].name)) or gumbel(*given))
    chooser.draft_noise(start, 2, None)(candidates)
    assert asked[0] == ("gumbel", "DRAFT")
    asked.clear()
    proposal = Proposal(candidates[:, :, 0], candidates, mx.zeros((1, 2, 4)), mx.full((1, 2, 4), 0.25))
    mx.eval(chooser.choose(mx.zeros((1, 3, 30)), start, proposal)[0].tokens)
    assert ("uniform", "ACCEPT") in asked and ("gumbel", "RESIDUAL") in asked
    assert not {purpose for _, purpose in asked} - {"ACCEPT", "RESIDUAL"}


def test_prompt_tokens_beyond_the_head_are_not_counted():
    assert countable([5, 3, 5, 10, 99, 9], 10) == [3, 5, 9]
