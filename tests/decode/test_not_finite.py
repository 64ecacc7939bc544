"""Logits that are not finite end a reply with an error, and nothing is kept of what was computed with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session, best_logits, cut
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.errors import LogitsError
from dflash2_mlx.targets.base import PassOutput, Target
from dflash2_mlx.targets.registry import make_target
from dflash2_mlx.training.batch import ReplySettings, batch_replies
from tests.automata import Automaton, budget
from tests.decode.test_pipeline import SAMPLINGS
from tests.engines import tiny_engine
from tests.runs import PROMPT, lively_reply, lively_target, run, target_config
from tests.tiny import VOCAB, make_mlx_model, make_tiny_drafter

MINI = Path(d2.__file__).parent / "data" / "mini"
BLOCK = 5
HUGE, NAN, INF = 3e38, float("nan"), float("inf")


def overflowing(text: Any) -> None:
    text.model.norm.weight = mx.full(text.model.norm.weight.shape, HUGE, dtype=text.model.norm.weight.dtype)


def one_nan(text: Any) -> None:
    text.lm_head.weight[7, 3] = NAN


def nan_inside(text: Any) -> None:
    text.model.layers[1].mlp.up_proj.weight[0, 0] = NAN


def spoilt_target(family: str, spoil: Callable[[Any], None], dtype: mx.Dtype = mx.float32) -> Target:
    config = target_config(family)
    model = make_mlx_model(config, dtype=dtype)
    spoil(model.language_model if "language_model" in model else model)
    return make_target(model, config)


class Altered:
    """A target whose logits are changed from its n-th pass on."""

    def __init__(self, target: Target, change: Callable[[mx.array], mx.array], first: int = 0):
        self._target, self._change, self._first, self.passes = target, change, first, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, ids: mx.array, state: Any, *, taps: Sequence[int] = (), last_only: bool = False) -> PassOutput:
        out = self._target.forward(ids, state, taps=taps, last_only=last_only)
        self.passes += 1
        return PassOutput(self._change(out.logits), out.taps) if self.passes > self._first else out


def with_value(value: float, tokens: slice | int) -> Callable[[mx.array], mx.array]:
    def change(logits: mx.array) -> mx.array:
        logits = logits + 0
        logits[..., tokens] = value
        return logits

    return change


def session_of(target: Any, drafts: bool) -> Session:
    return DFlash2Session(target, make_tiny_drafter()) if drafts else PlainSession(target)


# What is a fault, and what is none.


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("row", "fine"),
    [([1.0, -INF, 2.0], True), ([-INF, -INF, -3.0], True), ([1.0, NAN, 2.0], False), ([NAN] * 3, False),
     ([1.0, INF, 2.0], False), ([INF, NAN, 0.0], False), ([-INF] * 3, False), ([-INF, NAN, -INF], False)],
)  # fmt: skip
def test_rows_that_choose_a_token(row, fine, dtype):
    logits = mx.array([[row * 50, [0.0] * 150]], dtype=dtype)
    assert mx.isfinite(best_logits(logits)).tolist() == [[fine, True]]


@pytest.mark.parametrize(("bad", "spoilt"), [(0, 1), (1, 1), (2, 0)])
def test_rows_that_were_refused_are_nobody_s(bad, spoilt):
    best = mx.where(mx.arange(3) == bad, mx.array(NAN), mx.array(1.0))[None]
    tokens, one = mx.array([[4, 5, 6]], dtype=mx.int32), mx.array([1], dtype=mx.int32)
    packed, *_ = cut(tokens, one, tokens[:, :2], best, mx.array([-1]), one, 9 * one, mx.array([False]))
    assert packed[0, :3].tolist() == [2, 1, spoilt]
    packed, *_ = cut(tokens, one, tokens[:, :2], best, mx.array([-1]), one, 9 * one, mx.array([True]))
    assert packed[0, 2].item() == 0, "what follows the end was never said"


@pytest.mark.parametrize("change", [with_value(-INF, slice(150, None)), with_value(-INF, 7)])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("drafts", [False, True])
def test_tokens_that_the_target_excludes_are_no_fault(drafts, sampling, change):
    session = session_of(Altered(lively_target("qwen3_untied"), change), drafts)
    assert len(run(session, Request(PROMPT, 12, sampling, width=BLOCK)).tokens) == 12


@pytest.mark.parametrize("drafts", [False, True])
def test_masks_and_biases_are_no_fault(drafts):
    for request in (
        Request(PROMPT, 12, width=BLOCK, constraint=Automaton(budget(10, end=9, never=11), VOCAB)),
        Request(PROMPT, 12, d2.SamplingConfig(logit_bias=dict.fromkeys(range(200), -3e38)), width=BLOCK),
    ):
        assert len(run(session_of(lively_target("qwen3_untied"), drafts), request).tokens) == 12


# Every way in which a token is chosen.


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_reply_ends_where_logits_are_not_finite(value, first, drafts, sampling):
    target: Any = Altered(lively_target("qwen3_untied"), with_value(value, 9), first)
    session = session_of(target, drafts)
    session.begin(Request(PROMPT, 30, sampling, width=BLOCK, logprobs=1))
    seen = []
    with pytest.raises(LogitsError, match="logits: got numbers that are not finite from Qwen3 in float32"):
        while (result := session.step()) is not None:
            seen.append(result)
    assert len(seen) == 1 + first, "what was chosen before is handed out"  # the first one is of the prompt
    assert (session.busy, session.tokens, session.memory.position, session.finish_reason) == (False, [], 0, "error")
    target._change = lambda logits: logits
    after = run(session, Request(PROMPT, 20, width=BLOCK)).tokens
    assert after == list(lively_reply("qwen3_untied")[:20]), "something was kept"


@pytest.mark.parametrize("drafts", [False, True])
def test_a_constrained_reply(drafts):
    session = session_of(Altered(lively_target("qwen3_untied"), with_value(NAN, 9), 2), drafts)
    with pytest.raises(LogitsError):
        run(session, Request(PROMPT, 30, width=BLOCK, constraint=Automaton(budget(10, end=9, never=11), VOCAB)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("spoil", [overflowing, one_nan, nan_inside])
@pytest.mark.parametrize("family", ["qwen3_untied", "qwen3_5", "mistral"])
def test_weights_that_spoil_every_token(family, spoil, dtype):
    for drafts in (False, True):
        session = session_of(spoilt_target(family, spoil, dtype), drafts)
        with pytest.raises(LogitsError, match=f"in {str(dtype).split('.')[-1]}, expected finite"):
            run(session, Request(PROMPT, 8, width=BLOCK))


# As callers meet it.


def test_the_embedded_target_with_a_norm_that_overflows(tmp_path):
    shutil.copytree(MINI / "target", tmp_path / "target")
    file = tmp_path / "target" / "model.safetensors"
    weights: Any = mx.load(str(file))
    (name,) = [name for name in weights if name.endswith("model.norm.weight")]
    weights[name] = mx.full(weights[name].shape, HUGE, dtype=weights[name].dtype)
    mx.save_safetensors(str(file), weights, {"format": "mlx"})
    cache = d2.PrefixCache()
    engine = d2.load(tmp_path / "target", MINI / "drafter")
    session = d2.new_session(engine)
    for mode in ("dflash2", "plain"):
        own = session if mode == "dflash2" else None
        config = d2.GenerationConfig(max_tokens=4, mode=mode)
        with pytest.raises(LogitsError) as caught:
            d2.generate(engine, "Convert 3 kilometres to metres.", config, session=own, prefix_cache=cache)
        assert str(tmp_path / "target") in str(caught.value) and "float32" in str(caught.value)
    assert len(cache) == 0
    assert session.tokens == []


@pytest.mark.parametrize("family", ["qwen3_untied", "qwen3_5"])  # the latter is put aside while its prompt is read
def test_a_spoilt_prefix_is_not_kept(family):
    target: Any = Altered(lively_target(family), with_value(NAN, 9))
    engine, cache, config = tiny_engine(target=target), d2.PrefixCache(), d2.GenerationConfig(max_tokens=6)
    with pytest.raises(LogitsError, match="from qwen3 in float32"):
        d2.generate(engine, PROMPT, config, prefix_cache=cache)
    assert len(cache) == 0
    target._change = lambda logits: logits
    assert d2.generate(engine, PROMPT, config, prefix_cache=cache).token_ids == list(lively_reply(family)[:6])
    assert len(cache) > 0


def test_replies_for_training():
    engine = tiny_engine(target=owner().call(lambda: spoilt_target("qwen3_untied", overflowing)))
    with pytest.raises(LogitsError):
        list(batch_replies(engine, [PROMPT, PROMPT[:3]], ReplySettings(max_tokens=4)))
