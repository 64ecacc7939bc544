"""A tiny drafter learns, a killed run goes on exactly, and the result is a checkpoint like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

import dflash2_mlx as d2
from dflash2_mlx import training
from dflash2_mlx.decode.request import Request
from dflash2_mlx.decode.session import DFlash2Session
from dflash2_mlx.training import (
    Document,
    Trainer,
    TrainSettings,
    export_drafter,
    load_initial,
    new_drafter,
    resume_checkpoint,
    save_checkpoint,
)
from tests.runs import PROMPT, lively_reply, lively_target, run, slow_unless
from tests.tiny import VOCAB, drafter_config
from tests.training import one_by_one

FAMILY = "qwen3"
SETTINGS = TrainSettings(steps=30, sequences=2, anchors=16, learning_rate=5e-3)


def document(length: int = 80, first: int = 4) -> Document:
    """The target's own text, which is what a drafter must predict."""
    tokens = np.array([*PROMPT, *lively_reply(FAMILY, max_tokens=length)], dtype=np.int32)
    supervised = np.arange(len(tokens)) >= first
    return Document(tokens, supervised)


def trainer(settings: TrainSettings = SETTINGS, **changes: object) -> Trainer:
    drafter = new_drafter(drafter_config(**changes), seed=3)
    return Trainer(lively_target(FAMILY), drafter, [document(), document(40, first=10)], settings)


def weights(run: Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in tree_flatten(run.drafter.parameters())}


def test_an_untrained_drafter_is_a_dflash_drafter():
    drafter = new_drafter(drafter_config(), seed=1)
    for layer in drafter.layers:
        x = mx.random.normal((2, 5, 64))
        mixed, delta = layer.mlp_conv.prepare(x)
        stream, _ = layer.mlp_conv.finish(x, delta, mx.zeros_like(x), layer.input_layernorm)
        assert mx.array_equal(mixed, x) and mx.array_equal(stream, x)
    assert not mx.any(drafter.candidate_selector.successor_codebook).item()


def test_initial_weights_depend_on_the_seed_only():
    one, same, other = (dict(tree_flatten(new_drafter(drafter_config(), seed=seed).parameters())) for seed in (1, 1, 2))
    assert all(mx.array_equal(one[name], same[name]) for name in one)
    assert not mx.array_equal(one["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize(
    "changes",
    [{}, slow_unless(False, {"architectures": ["DFlashDraftModel"]}), slow_unless(False, {"output_multiplier": 0.5})],
)
def test_the_loss_falls_and_drafts_are_accepted(changes):
    run_ = trainer(**changes)
    reports = [run_.step() for _ in range(SETTINGS.steps)]
    assert [report.step for report in reports] == list(range(SETTINGS.steps))
    assert reports[-1].loss < 0.95 * reports[0].loss  # the tiny head spans few logits: loss says less than top-1
    assert reports[-1].top1 > 0.5 > reports[0].top1 and reports[-1].recall >= reports[-1].top1
    assert all(np.isfinite([report.loss, report.gradient]).all() for report in reports)
    text = lively_reply(FAMILY, max_tokens=60)
    reply = run(DFlash2Session(lively_target(FAMILY), run_.drafter), Request(PROMPT, 60, width=5))
    assert reply.tokens == list(text)
    committed = [len(result.tokens) for result in reply.rounds]
    assert sum(committed) / len(committed) > 1.5


def test_a_run_goes_on_exactly_where_it_was(tmp_path: Path):
    whole = trainer()
    curve = [whole.step() for _ in range(8)]
    first = trainer()
    for _ in range(5):
        first.step()
    save_checkpoint(first, tmp_path)
    again = trainer()
    assert resume_checkpoint(again, tmp_path) and again.step_number == 5
    assert [again.step() for _ in range(3)] == curve[5:]
    for name, array in weights(whole).items():
        np.testing.assert_array_equal(weights(again)[name], array, err_msg=name)


def test_without_a_checkpoint_a_run_starts_afresh(tmp_path: Path):
    (tmp_path / "step-0000009.partial").mkdir()  # killed while it was written
    assert not resume_checkpoint(trainer(), tmp_path)


def test_old_checkpoints_go(tmp_path: Path):
    run_ = trainer()
    for _ in range(4):
        run_.step()
        save_checkpoint(run_, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000003", "step-0000004"]


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 1e-3), ("seed", 5), ("sequences", 3), ("steps", 31)])
def test_other_settings_do_not_continue_a_run(tmp_path: Path, name: str, value: float):
    save_checkpoint(trainer(), tmp_path)
    with pytest.raises(d2.ConfigError, match=f"{name}: got {value}, expected .* as in step-0000000"):
        resume_checkpoint(trainer(replace(SETTINGS, **{name: value})), tmp_path)


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path):
    saved = save_checkpoint(trainer(), tmp_path)
    (saved / "optimizer.safetensors").write_bytes(b"cut")
    with pytest.raises(d2.CheckpointError, match="step-0000000: got an unreadable checkpoint"):
        resume_checkpoint(trainer(), tmp_path)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_the_result_is_a_checkpoint_like_any_other(tmp_path: Path, dtype: mx.Dtype):
    run_ = trainer()
    run_.step()
    export_drafter(tmp_path, drafter_config(), run_.drafter, dtype=dtype)
    loaded = d2.load_drafter(tmp_path)
    assert loaded.config == run_.drafter.config
    stored = mx.load(str(tmp_path / "model.safetensors"))
    for name, array in tree_flatten(run_.drafter.parameters()):
        assert stored[name].dtype == dtype and mx.array_equal(stored[name], array.astype(dtype)), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps: got 0"),
        ({"steps": True}, "steps: got True"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0"),
        ({"warmup": 1.0}, "warmup: got 1.0"),
        ({"clip": -1.0}, "clip: got -1.0"),
        ({"anchors": 0}, "anchors: got 0"),
    ],
)
def test_impossible_settings(changes: dict[str, float], words: str):
    with pytest.raises(d2.ConfigError, match=words):
        replace(SETTINGS, **changes)


def test_the_rate_warms_up_and_falls_to_zero():
    settings = TrainSettings(steps=100, learning_rate=1.0, warmup=0.1)
    rates = [settings.rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.0, abs=1e-9)


def test_nothing_to_learn_is_refused():
    empty = Document(np.array([1, 2, 3]), np.array([False, True, False]))
    with pytest.raises(d2.ConfigError, match="documents: got 1 without"):
        Trainer(lively_target(FAMILY), new_drafter(drafter_config()), [empty], SETTINGS)


def test_every_step_draws_its_own_blocks():
    run_ = trainer(replace(SETTINGS, anchors=5))
    draws = [tuple(blocks.anchors.tolist()) for step in range(6) for _, blocks in run_.drawn(step)]
    assert {len(draw) for draw in draws} == {5} and len(set(draws)) == 12
    assert tuple(trainer(replace(SETTINGS, anchors=5)).drawn(4)[1][1].anchors.tolist()) == draws[9]


@pytest.mark.parametrize("changes", [{}, {"architectures": ["DFlashDraftModel"]}, {"sliding_window": 40}])
@pytest.mark.parametrize("most_logits", [1, 150 * VOCAB, 1 << 30])  # passes of one sequence, of some, of all
def test_a_step_is_what_one_sequence_at_a_time_gives(monkeypatch, changes, most_logits):
    monkeypatch.setattr(training.trainer, "MOST_LOGITS", most_logits)
    run_ = trainer(replace(SETTINGS, sequences=5), **changes)
    for name, array in tree_flatten(run_.drafter.parameters()):  # silent parts must speak, or nothing is compared
        run_.drafter.update(
            tree_unflatten([(name, array + 0.05 * mx.random.normal(array.shape, key=mx.random.key(1)))])
        )
    sums, want = one_by_one.gradients(run_.drafter, run_.target, run_.drawn(0))
    parts, got = run_.gradients(0)
    np.testing.assert_allclose(parts, sums, rtol=2e-5)
    for (name, one), (_, other) in zip(tree_flatten(got), tree_flatten(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * float(mx.abs(other).max()) + 1e-9, err_msg=name)


def test_passes_are_as_large_as_is_allowed(monkeypatch):
    run_ = trainer(replace(SETTINGS, sequences=6))
    assert len(list(run_.passes(0))) > 1  # short and long sequences apart: padding
    for most, passes in ((1, 6), (1 << 30, 1)):
        monkeypatch.setattr(training.trainer, "MOST_LOGITS", most)
        monkeypatch.setattr(training.trainer, "MOST_PADDING", 9.0)
        assert len(list(run_.passes(0))) == passes


def test_a_step_learns_from_the_mean_of_its_sequences():
    alone, together = trainer(), trainer()
    _, total = one_by_one.gradients(alone.drafter, alone.target, alone.drawn(0))
    norm = sum((array**2).sum().item() for _, array in tree_flatten(total)) ** 0.5 / 2
    assert together.step().gradient == pytest.approx(norm, rel=1e-4)


def test_a_step_is_clipped():
    free, held = trainer(replace(SETTINGS, clip=1e9)), trainer(replace(SETTINGS, clip=1e-12))
    before = weights(free)
    for run_ in (free, held):
        run_.step()
    moved = [max(np.abs(weights(run_)[name] - before[name]).max() for name in before) for run_ in (free, held)]
    assert moved[1] < 0.1 * moved[0]  # Adam divides by the gradient's size, but not by less than its epsilon


def test_bfloat16_passes_teach_float32_weights():
    wide, low = trainer(), trainer(replace(SETTINGS, dtype="bfloat16"))
    (_, want), (_, got) = wide.gradients(0), low.gradients(0)
    for (name, one), (_, other) in zip(tree_flatten(got), tree_flatten(want), strict=True):
        assert one.dtype == mx.float32, name
        assert mx.abs(one - other).max().item() <= 0.25 * mx.abs(other).max().item() + 1e-6, name
    assert not all(
        mx.array_equal(one, other) for (_, one), (_, other) in zip(tree_flatten(got), tree_flatten(want), strict=True)
    )
    reports = [low.step() for _ in range(10)]
    assert reports[-1].loss < 0.99 * reports[0].loss
    kinds = {array.dtype for tree in (low.drafter.parameters(), low.optimizer.state) for _, array in tree_flatten(tree)}
    assert mx.bfloat16 not in kinds


@pytest.mark.parametrize("part", ["conv", "selector"])
def test_a_part_that_does_not_learn_stays_as_it_was_and_changes_nothing(part):
    """With convolution and selector both off, a DFlash 2 drafter learns exactly what a DFlash drafter learns."""
    run_ = trainer(replace(SETTINGS, **{part: False}))
    before = weights(run_)
    names = {name for name in before if {"conv": "_conv.", "selector": "candidate_selector."}[part] in name}
    reports = [run_.step() for _ in range(3)]
    after = weights(run_)
    assert names and {name for name in before if np.array_equal(before[name], after[name])} == names
    if part == "selector":
        assert {report.selector for report in reports} == {0.0} and reports[0].selected == reports[0].top1
        assert reports[0].base > 0


def test_without_both_parts_it_is_a_dflash_drafter():
    off = trainer(replace(SETTINGS, conv=False, selector=False))
    plain = trainer(architectures=["DFlashDraftModel"])
    shared = weights(plain)
    off.drafter.load_weights([(name, mx.array(array)) for name, array in shared.items()], strict=False)
    for run_ in (off, plain):
        for _ in range(3):
            run_.step()
    for name, array in weights(plain).items():
        np.testing.assert_allclose(weights(off)[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_before_it_is_learned(value):
    run_ = trainer()
    run_.step()
    run_.drafter.fc.weight = run_.drafter.fc.weight * value
    before = weights(run_)
    with pytest.raises(d2.TrainingError, match=r"(loss|gradient): got nan at step 2, expected a finite number"):
        run_.step()
    assert all(np.array_equal(array, weights(run_)[name], equal_nan=True) for name, array in before.items())
    assert run_.step_number == 1


def test_a_full_disk_keeps_the_last_good_checkpoint_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_ = trainer()
    run_.step()
    saved = save_checkpoint(run_, tmp_path)
    run_.step()
    monkeypatch.setattr("dflash2_mlx.training.files.room", lambda folder: 10)
    with pytest.raises(d2.CheckpointError, match=r"free disk, expected .*; last good checkpoint: .*step-0000001$"):
        save_checkpoint(run_, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]
    assert resume_checkpoint(trainer(), tmp_path)


def test_another_drafter_or_start_does_not_continue_a_run(tmp_path: Path):
    save_checkpoint(trainer(), tmp_path, {"init": None})
    with pytest.raises(d2.ConfigError, match=r"drafter: got .*'sliding_window': 9"):
        resume_checkpoint(trainer(sliding_window=9), tmp_path, {"init": None})
    with pytest.raises(d2.ConfigError, match="init: got 'other', expected None as in step-0000000"):
        resume_checkpoint(trainer(), tmp_path, {"init": "other"})


def test_a_run_starts_from_an_existing_drafter(tmp_path: Path):
    run_ = trainer()
    run_.step()
    export_drafter(tmp_path, drafter_config(), run_.drafter, dtype=mx.float32)
    fresh = new_drafter(drafter_config(), seed=9)
    load_initial(fresh, tmp_path)
    for name, array in tree_flatten(fresh.parameters()):
        np.testing.assert_array_equal(array, weights(run_)[name], err_msg=name)
    with pytest.raises(d2.CheckpointError, match=r"fc\.weight: got shape"):
        load_initial(new_drafter(drafter_config(target_layer_ids=[1])), tmp_path)
