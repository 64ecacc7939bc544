"""metal/accept.metal, fed by metal/top_candidates.metal, against the twin: the same tokens with the same noise.

The twin itself is held against exact laws by tests/sampling/test_law.py and tests/sampling/test_acceptance.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.accept import accept_call
from dflash2_mlx.kernels.top_candidates import top_candidates, top_candidates_call
from dflash2_mlx.sampling import rng
from dflash2_mlx.sampling.acceptance import Drafted, accept_twin
from dflash2_mlx.sampling.config import SamplingConfig
from tests.reference import acceptance, sampling


@dataclass(frozen=True)
class Case:
    """Random logits, near enough to what was drafted from that every count occurs."""

    rows: int = 6
    vocab: int = 97
    k: int = 10
    drafted: int = 6
    batch: int = 64
    temperature: float = 0.8
    top_p: float = 1.0
    min_p: float = 0.0
    whole: bool = False  # whole logits: ties everywhere
    dtype: mx.Dtype = mx.float32
    seed: int = 0

    @property
    def settings(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temperature, top_k=self.k, top_p=self.top_p, min_p=self.min_p)

    def parts(self) -> tuple[mx.array, mx.array, Drafted, mx.array]:
        """logits, start, drafted, keys."""
        draw = np.random.default_rng(self.seed)
        logits = 2 * draw.normal(size=(self.batch, self.rows, self.vocab))
        logits = mx.array(np.round(logits) if self.whole else logits, dtype=mx.float32).astype(self.dtype)
        noisy = logits[:, :-1].astype(mx.float32) + mx.array(draw.normal(size=(self.batch, self.rows - 1, self.vocab)))
        candidates, values = top_candidates(noisy.astype(mx.float32), self.drafted)
        chosen = mx.argmax(values + mx.array(draw.gumbel(size=values.shape)), axis=-1, keepdims=True)
        tokens = mx.take_along_axis(candidates, chosen, axis=-1)[..., 0]
        start = mx.array(draw.integers(0, 10**6, size=self.batch), dtype=mx.int32)
        drafted = Drafted(tokens, candidates, mx.softmax(values, axis=-1))
        return logits, start, drafted, rng.base_keys(self.seed + 7)


def run(on_metal, case: Case, **rules) -> tuple[np.ndarray, np.ndarray]:
    """count [B] and tokens [B, L] of both kernels, as `accept` calls them."""
    logits, start, drafted, keys = case.parts()
    temperature = case.temperature
    if case.dtype == mx.float32:
        logits, temperature = logits / temperature, 1.0
    flat = logits.reshape(-1, case.vocab)
    lists = on_metal(top_candidates_call(flat.shape, case.k, case.vocab), [flat], **rules)
    lists = [array.reshape(case.batch, case.rows, *array.shape[1:]) for array in lists]
    settings = mx.array([temperature, case.top_p, case.min_p], dtype=mx.float32)
    inputs = [*lists, drafted.tokens, drafted.candidates, drafted.q, start, keys, settings]
    call = accept_call(lists[0].shape, case.drafted, case.vocab)
    return tuple(np.array(array) for array in on_metal(call, inputs, **rules))


def check(got: tuple[np.ndarray, np.ndarray], case: Case) -> None:
    want = accept_twin(*case.parts()[:3], case.settings, case.parts()[3])
    np.testing.assert_array_equal(got[0], np.array(want.num_accepted))
    np.testing.assert_array_equal(got[1], np.array(want.tokens))


CASES = [
    Case(),
    Case(rows=2, vocab=50, k=1, drafted=1, batch=40, seed=1),
    Case(rows=8, vocab=20011, k=20, drafted=16, batch=24, top_p=0.95, seed=2),
    Case(rows=16, vocab=64, k=32, drafted=32, temperature=1.3, min_p=0.05, seed=3),
    Case(rows=17, vocab=33, k=7, drafted=5, top_p=0.6, min_p=0.2, seed=4),
    Case(rows=5, whole=True, top_p=0.7, seed=5),
    Case(rows=5, whole=True, dtype=mx.bfloat16, temperature=0.3, seed=6),
    Case(rows=4, dtype=mx.float16, top_p=0.05, seed=7),
    Case(temperature=3.0, seed=8),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.seed))
def test_equals_the_twin_token_for_token(on_metal, case):
    got = run(on_metal, case, seed=case.seed + 1)
    check(got, case)
    counts = np.bincount(got[0], minlength=case.rows)
    assert counts[0] and counts[1:].any(), "nothing was refused, or nothing accepted"


def test_the_cases_accept_and_refuse_at_every_place(on_metal):
    counts = run(on_metal, replace(CASES[0], batch=400))[0]
    assert set(counts.tolist()) == set(range(6))


def test_equals_the_scalar_rule(on_metal):
    """Whether each token is kept, by the float64 rule and the generator's uniforms."""
    case = Case(rows=5, top_p=0.9, batch=48, seed=11)
    logits, start, drafted, keys = case.parts()
    counts, tokens = run(on_metal, case)
    positions = start[:, None] + mx.arange(1, case.rows, dtype=mx.int32)
    uniforms = np.array(rng.uniform(keys, rng.Purpose.ACCEPT, positions, 1))[..., 0]
    rules = {"temperature": case.temperature, "top_k": case.k, "top_p": case.top_p}
    for b in range(case.batch):
        p = np.stack([sampling.law(row, **rules) for row in np.array(logits[b], dtype=np.float64)])
        proposal, candidates, q = (np.array(a[b]) for a in (drafted.tokens, drafted.candidates, drafted.q))
        want = acceptance.accept_rejection(proposal, candidates, q, p, uniforms[b], 0.5)
        assert counts[b] == want.num_accepted
        np.testing.assert_array_equal(tokens[b, : counts[b]], proposal[: counts[b]])
        added = tokens[b, counts[b]]
        q_row = (
            acceptance.dense(candidates[counts[b]], q[counts[b]], case.vocab) if counts[b] < case.rows - 1 else 0 * p[0]
        )
        assert acceptance.residual(p[counts[b]], q_row)[added] > 0
        assert (tokens[b, counts[b] :] == added).all()


@pytest.mark.parametrize("vocab", [32, 20011])
def test_noise_of_every_id_is_that_of_the_generator(on_metal, vocab):
    """With one id allowed at a time nothing else could be chosen; so two equal ones show whose noise is larger."""
    draw = np.random.default_rng(vocab)
    batch = 64
    pairs = np.stack([draw.choice(vocab, size=2, replace=False) for _ in range(batch)])
    pairs[:4] = [[0, vocab - 1], [vocab // 2, 0], [vocab // 2 - 1, vocab // 2], [vocab // 2, vocab - 1]]
    ids = mx.array(pairs.reshape(batch, 1, 1, 2), dtype=mx.int32)
    ids = mx.sort(ids, axis=-1)
    lists = [mx.broadcast_to(a, (batch, 2, 1, 2)) for a in (mx.zeros(ids.shape), ids)]
    # The one proposed token is allowed for certain, so the token after the last row is looked at.
    tokens = ids[:, 0, :, 0]
    start, keys = mx.arange(batch, dtype=mx.int32) * 31, rng.base_keys(5)
    q = mx.full((batch, 1, 1), 1e-6)
    settings = mx.array([1.0, 1.0, 0.0], dtype=mx.float32)
    call = accept_call(lists[0].shape, 1, vocab)
    count, got = on_metal(call, [*lists, tokens, tokens[..., None], q, start, keys, settings])
    noise = np.array(rng.gumbel(keys, rng.Purpose.RESIDUAL, start[:, None] + 2, vocab))[:, 0]
    pairs = np.array(ids[:, 0, 0])
    want = pairs[np.arange(batch), np.take_along_axis(noise, pairs, axis=-1).argmax(axis=-1)]
    np.testing.assert_array_equal(np.array(count), np.ones(batch))
    np.testing.assert_array_equal(np.array(got)[:, 1], want)


def test_no_mass_left_falls_back_to_p(on_metal):
    # q equals p: after a refusal (u drawn as 0 never refuses, so q is one larger) the residual is empty.
    ids = mx.broadcast_to(mx.array([3, 8], dtype=mx.int32), (32, 2, 1, 2))
    lists = [mx.zeros(ids.shape), ids]
    tokens = mx.full((32, 1), 3, dtype=mx.int32)
    candidates = mx.broadcast_to(mx.array([3, 8], dtype=mx.int32), (32, 1, 2))
    q = mx.broadcast_to(mx.array([100.0, 0.5]), (32, 1, 2))
    start, keys = mx.arange(32, dtype=mx.int32), rng.base_keys(1)
    settings = mx.array([1.0, 1.0, 0.0], dtype=mx.float32)
    call = accept_call(ids.shape, 2, 20)
    count, got = on_metal(call, [*lists, tokens, candidates, q, start, keys, settings])
    refused = np.array(count) == 0
    assert refused.sum() > 20
    assert set(np.array(got)[refused, 0].tolist()) == {3, 8}


def test_with_fused_multiply_add(on_metal):
    check(run(on_metal, CASES[4], fused=True), CASES[4])


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    case = Case(rows=4, vocab=9, k=8, drafted=3, batch=3, top_p=0.9)
    check(run(on_metal, case, sanitizer=sanitizer), case)


@pytest.mark.parametrize("case", [Case(rows=2, vocab=9, k=1, drafted=1, batch=1), CASES[2]])
def test_address_spaces(on_metal, case):
    lists = [mx.zeros((case.batch, case.rows, 1, case.k), dtype=dtype) for dtype in (mx.float32, mx.int32)]
    _, start, drafted, keys = case.parts()
    inputs = [*lists, drafted.tokens, drafted.candidates, drafted.q, start, keys, mx.zeros(3)]
    on_metal.check_address_spaces(accept_call(lists[0].shape, case.drafted, case.vocab), inputs)


@pytest.mark.parametrize(("k", "drafted"), [(0, 4), (33, 4), (4, 0), (4, 33)])
def test_impossible_sizes_are_refused(k, drafted):
    with pytest.raises(ValueError, match="candidates: got"):
        accept_call((1, 2, 2, k), drafted, 100)
