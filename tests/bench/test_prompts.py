"""Reading prompts, drawing a sample, filling the context."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import dflash2_mlx as d2
from dflash2_mlx import bench
from dflash2_mlx.bench import BenchPrompt
from dflash2_mlx.bench.prompts import deepen, filler


class Letters:
    """One token per character."""

    def encode(self, text: str, **_: object) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(map(chr, ids))


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    file.write_text(
        '{"prompt": "a\\nb", "family": "one", "answer": 3}\n\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}\n'
        '{"turns": ["x", "y"]}\n',
        encoding="utf-8",
    )
    assert bench.read_prompts(file) == [
        BenchPrompt("a\nb", family="one"),
        BenchPrompt(messages),
        BenchPrompt("x", ("y",)),
    ]


def test_text_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\r\n\nsecond {with} braces\n", encoding="utf-8")
    assert bench.read_prompts(file) == [BenchPrompt("first"), BenchPrompt("second {with} braces")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no prompts"),
        ('{"prompt": "a"}\nplain\n', "prompts:2: got 'plain', expected a JSON object"),
        pytest.param('{"prompt": ' + "[" * 100_000, "prompts:1: got .*, expected a JSON object", id="nested"),
        ('{"promt": "a"}', "got none of them, expected exactly one"),
        ('{"prompt": "a", "turns": ["b"]}', "got prompt and turns"),
        ('{"prompt": " "}', 'got prompt " "'),
        ('{"turns": []}', r"got turns \[\]"),
        ('{"messages": [{"role": "user"}]}', "got messages"),
        ('{"prompt": "a", "family": 3}', "family 3"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(d2.PromptError, match=message) as caught:
        bench.read_prompts(file)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(d2.PromptError, match="expected a readable file"):
        bench.read_prompts(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    with pytest.raises(d2.PromptError, match="not UTF-8 at 3"):
        bench.read_prompts(tmp_path / "latin")


def test_the_sample_is_the_authors_own() -> None:
    order = list(range(1319))
    random.Random(42).shuffle(order)
    assert bench.draw(range(1319), 128) == order[:128]
    assert sorted(bench.draw("abc", None)) == ["a", "b", "c"] and len(bench.draw("abc", 9)) == 3


def test_the_embedded_set_fits_the_embedded_pair() -> None:
    prompts = bench.mini_prompts()
    assert len(prompts) >= 12 and all(prompt.family for prompt in prompts)
    assert len({str(prompt.first) for prompt in prompts}) == len(prompts)


def test_filler_is_text_of_the_other_prompts() -> None:
    prompts = [BenchPrompt("aaa"), BenchPrompt("bb"), BenchPrompt([{"role": "user", "content": "c"}])]
    assert filler(prompts, 0, 0, Letters()) == ""
    assert filler(prompts, 0, 9, Letters()) == "bb\n\nc\n\nbb"
    assert filler(prompts, 1, 5, Letters()) == "c\n\naa"
    assert filler([BenchPrompt("x")], 0, 4, Letters()) == "x\n\nx"


def test_filler_goes_before_the_first_user_message() -> None:
    assert deepen(BenchPrompt("q", ("r",)), "f") == BenchPrompt("f\n\nq", ("r",))
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "user", "content": "z"}]
    found = deepen(BenchPrompt(messages), "f").first
    assert [message["content"] for message in found] == ["s", "f\n\nq", "z"]
    assert messages[1]["content"] == "q"
    assert deepen(BenchPrompt("q"), "") == BenchPrompt("q")
    with pytest.raises(d2.PromptError, match="expected one to put the context in front of"):
        deepen(BenchPrompt([{"role": "system", "content": "s"}]), "f")


def test_a_depth_is_about_so_many_tokens_of_the_target() -> None:
    engine, prompts = d2.load("mini"), bench.mini_prompts()[:2]
    plan = bench.Plan(widths=(1,), depths=(0, 100), repeats=1, max_tokens=2, phases=False)
    runs = [event for event in bench.measure(engine, prompts, plan) if isinstance(event, bench.Run)]
    shallow, deep = runs[:2], runs[2:]
    for one, other in zip(shallow, deep, strict=True):
        assert 95 <= other.prompt_tokens - one.prompt_tokens <= 105
    longest = max(run.prompt_tokens for run in shallow)
    with pytest.raises(d2.SettingError, match=f"depths: got 4000, expected at most {2048 - 2 - longest}:"):
        bench.check_plan(engine, prompts, bench.Plan(widths=(1,), depths=(4000,), max_tokens=2))
