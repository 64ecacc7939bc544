"""Sums and advice, against cases worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_mlx import bench
from dflash2_mlx.bench import Comparison, PhaseTimes, Round, Run, Setting, Spread

HERE = Setting(0, 0.0)


def run(width: int, prompt: int, decode_s: float, *, repeat: int = 0, tokens: int = 11, accepted: str = "") -> Run:
    """A run of 10 timed tokens; `accepted` spells accepted drafts per round, "" one plain round per token."""
    rounds = tuple(Round(int(a), width - 1, int(a) + 1) for a in accepted) or (Round(0, 0, 1),) * (tokens - 1)
    return Run(
        HERE, width, repeat, prompt, 0, 7, tokens, 0.25 * (repeat + 1), decode_s, 1000 + prompt, "length", rounds
    )


PLAIN_RUNS = [run(1, 0, 1.0), run(1, 1, 3.0), run(1, 0, 1.0, repeat=1), run(1, 1, 5.0, repeat=1)]
DRAFTED = [
    run(4, 0, 0.5, accepted="3330"), run(4, 1, 1.0, accepted="0102"),
    run(4, 0, 0.5, repeat=1, accepted="3330"), run(4, 1, 2.0, repeat=1, accepted="0102"),
]  # fmt: skip


def test_sums_by_hand() -> None:
    phases = {"verify": Spread(1.0, 0.5, 1.5)}
    events = [*PLAIN_RUNS, *DRAFTED, PhaseTimes(HERE, 4, phases)]
    events += [Comparison(HERE, 4, 0, 0, 0, True, None)]
    events += [
        Comparison(HERE, 4, 0, 1, 0, False, {"index": 2, "plain_token": 1, "dflash2_token": 3, "logit_gap": 0.1})
    ]
    (report,) = bench.summarize(events)
    plain, drafted = report.arms
    # Medians of the repeats: plain 0.1 and 0.4 s per token, drafted 0.05 and 0.15.
    assert plain.tokens_per_second == pytest.approx(1 / 0.25)
    assert drafted.tokens_per_second == pytest.approx(1 / 0.1)
    assert plain.speedup == 1.0 and drafted.speedup == pytest.approx(2.5)
    # By repeat: (0.1 + 0.3) / (0.05 + 0.1) and (0.1 + 0.5) / (0.05 + 0.2)
    ratios = drafted.speedup_by_repeat
    assert ratios is not None and ratios.median == pytest.approx((0.4 / 0.15 + 0.6 / 0.25) / 2)
    assert plain.speedup_by_repeat is None
    assert drafted.tokens_per_second_by_repeat == pytest.approx([1 / 0.075, 1 / 0.125])
    # Request means 13/4 and 7/4; repeats say the same again and count once.
    assert drafted.acceptance_length == (13 / 4 + 7 / 4) / 2
    assert (drafted.requests, drafted.rounds, drafted.generated_tokens) == (2, 8, 22)
    assert drafted.acceptance_by_position == [5 / 8, 4 / 5, 3 / 4]
    assert drafted.expected_length == pytest.approx(1 + 12 / 8)
    assert drafted.acceptance_rate == 12 / 24
    assert drafted.prefill_s == 0.375 and drafted.peak_memory_bytes == 1001
    assert drafted.milliseconds == phases and plain.milliseconds == {}
    assert plain.acceptance_length is None and plain.expected_length is None and plain.texts is None
    assert drafted.texts == bench.Texts(
        2,
        1,
        [{"prompt": 1, "turn": 0, "repeat": 0, "index": 2, "plain_token": 1, "dflash2_token": 3, "logit_gap": 0.1}],
    )


def test_an_interrupted_measurement_compares_what_both_have() -> None:
    (report,) = bench.summarize([PLAIN_RUNS[0], PLAIN_RUNS[1], DRAFTED[0]])
    assert report.arms[1].speedup == 2.0  # prompt 0 alone
    assert bench.summarize([]) == []
    (alone,) = bench.summarize(DRAFTED)
    assert alone.arms[0].speedup is None


def test_replies_of_one_token_have_no_speed() -> None:
    (report,) = bench.summarize([run(1, 0, 1.0, tokens=1), run(4, 0, 1.0, tokens=1, accepted="1")])
    assert [arm.tokens_per_second for arm in report.arms] == [None, None]
    assert report.arms[1].speedup is None
    assert bench.advise([report]).block_size is None


def advice(*speeds: tuple[int, float, str]) -> bench.Advice:
    events = [run(1, 0, 1.0), run(1, 0, 1.0, repeat=1)]
    for width, speedup, accepted in speeds:
        events += [run(width, 0, 1.0 / speedup, repeat=repeat, accepted=accepted) for repeat in (0, 1)]
    return bench.advise(bench.summarize(events))


def test_the_fastest_width_is_recommended_and_the_reason_names_the_next() -> None:
    found = advice((4, 1.5, "11"), (8, 1.25, "23"))
    assert (found.block_size, found.speedup, found.caution) == (4, pytest.approx(1.5), None)
    assert found.reason == (
        "1.50x plain decoding over 1 request in 1 setting: a round commits 2.00 tokens and takes as long as 1.33 "
        "plain passes; width 8 reaches 1.25x: a round commits 3.50 tokens and takes as long as 2.80 plain passes"
    )
    assert advice((4, 1.5, "11"), (8, 1.5, "11")).block_size == 4  # of equals the narrowest


def test_plain_decoding_is_recommended_where_nothing_is_faster() -> None:
    found = advice((4, 0.8, "11"), (8, 0.5, "11"))
    assert found.block_size is None and found.reason.startswith("no width is faster; the best, 4, reaches 0.80x plain")


def test_a_width_that_was_not_measured_everywhere_is_not_recommended() -> None:
    deep = Setting(9, 0.0)
    events = [run(1, 0, 1.0), run(4, 0, 0.5, accepted="1"), run(8, 0, 0.1, accepted="1")]
    events += [replace(one, setting=deep) for one in events[:2]]
    assert bench.advise(bench.summarize(events)).block_size == 4


def test_unsteady_and_single_repeats_are_told() -> None:
    events = [run(1, 0, 1.0), run(4, 0, 0.5, accepted="1")]
    assert "one repeat" in (bench.advise(bench.summarize(events)).caution or "")
    events += [replace(events[0], repeat=1), replace(events[1], repeat=1, decode_s=0.6)]
    # 20 against 16.67 tokens/s: 18 % of the median
    assert "up to 18% apart" in (bench.advise(bench.summarize(events)).caution or "")
    events[-1] = replace(events[1], repeat=1, decode_s=0.52)
    assert bench.advise(bench.summarize(events)).caution is None


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 1},
         {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": True, "top_k": 64}, {"temperature": 1.0, "top_k": 64}),
        ({"temperature": 0.6}, {"temperature": 0.0}),
    ],
)  # fmt: skip
def test_recommended_sampling(tmp_path: Path, stated: dict[str, object], expected: dict[str, object]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert bench.recommended_sampling(str(tmp_path)) == expected


def test_bad_generation_configs(tmp_path: Path) -> None:
    with pytest.raises(d2.CheckpointError, match=r"got no generation_config\.json"):
        bench.recommended_sampling(str(tmp_path))
    file = tmp_path / "generation_config.json"
    for text, message in (
        ("{", "unreadable"),
        ("[]", "got list, expected a JSON object"),
        ('{"do_sample": true, "top_p": 2}', "top_p"),
    ):
        file.write_text(text)
        with pytest.raises(d2.Dflash2Error, match=message):
            bench.recommended_sampling(str(tmp_path))
