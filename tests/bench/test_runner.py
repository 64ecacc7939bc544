"""What is run, in which order, and what is noted of it; on tiny engines whose drafter errs on schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx import bench
from dflash2_mlx.bench import BenchPrompt, Comparison, Plan, Round, Run, Setting
from tests.engines import SpellingTokenizer, scripted_engine, tiny_engine
from tests.runs import PROMPT, lively_reply

FAMILY = "qwen3"
TEXT = "".join(f"<{token}>" for token in PROMPT)
GREEDY = Setting(0, 0.0)
PLAN = Plan(widths=(1, 3, 5), repeats=2, max_tokens=12, phases=False)


def runs_of(events: Sequence[bench.Event]) -> list[Run]:
    return [event for event in events if isinstance(event, Run)]


def test_arms_take_turns_and_another_one_begins_each_time() -> None:
    engine = scripted_engine(FAMILY, [1])
    events = list(bench.measure(engine, [BenchPrompt(TEXT)] * 2, PLAN))
    runs = runs_of(events)
    assert len(runs) == PLAN.requests([BenchPrompt(TEXT)] * 2) == 12
    assert [(run.repeat, run.prompt, run.width) for run in runs] == [
        (0, 0, 1), (0, 0, 3), (0, 0, 5),
        (0, 1, 3), (0, 1, 5), (0, 1, 1),
        (1, 0, 3), (1, 0, 5), (1, 0, 1),
        (1, 1, 5), (1, 1, 1), (1, 1, 3),
    ]  # fmt: skip
    assert all(run.generated_tokens == 12 and run.prompt_tokens == len(PROMPT) for run in runs)
    assert all(run.prefill_s > 0 and run.decode_s > 0 and run.peak_memory_bytes > 0 for run in runs)
    checked = [event for event in events if isinstance(event, Comparison)]
    assert len(checked) == 8 and all(found.identical and found.width > 1 for found in checked)


class Enough(Exception):
    pass


def test_a_check_ends_a_measurement_in_the_middle_of_a_reply() -> None:
    events: list[bench.Event] = []
    rounds = 0

    def check() -> None:
        nonlocal rounds
        rounds += bool(runs_of(events))
        if rounds == 3:
            raise Enough

    with pytest.raises(Enough):
        for event in bench.measure(scripted_engine(FAMILY, [1]), [BenchPrompt(TEXT)], PLAN, check):
            events.append(event)
    assert len(runs_of(events)) == 1, "the second reply has more rounds than three"


def test_rounds_are_told_without_the_prefill_and_cut_at_the_limit() -> None:
    engine = scripted_engine(FAMILY, [2])
    plan = replace(PLAN, widths=(1, 5), repeats=1, max_tokens=9)
    plain, drafted = runs_of(list(bench.measure(engine, [BenchPrompt(TEXT)], plan)))
    # One token comes with the prefill; then 3 + 3 are committed, and 2 of the last 3 fit.
    assert drafted.rounds == (Round(2, 4, 3), Round(2, 4, 3), Round(2, 4, 2))
    assert plain.rounds == (Round(0, 0, 1),) * 8
    assert bench.acceptance_length(drafted.rounds) == 8 / 3


def test_a_stop_token_cuts_the_last_cycle() -> None:
    reply = lively_reply(FAMILY)[:12]
    stop = next(token for place, token in enumerate(reply) if place >= 4 and token not in reply[:place])
    engine = replace(scripted_engine(FAMILY, [-1]), stop_token_ids=frozenset([stop]))
    plan = replace(PLAN, widths=(5,), repeats=1)
    (run,) = runs_of(list(bench.measure(engine, [BenchPrompt(TEXT)], plan)))
    at = reply.index(stop)
    assert run.finish_reason == "stop" and run.generated_tokens == at + 1
    assert sum(done.committed for done in run.rounds) == at


def test_a_wrong_reply_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(FAMILY, [1])
    original = d2.generate.__globals__["collect"]

    def spoilt(engine: d2.Engine, events: Any) -> d2.GenerationResult:
        result = original(engine, events)
        if result.stats.mode == "dflash2" and result.stats.block_size == 3:
            result.token_ids[4] ^= 1
        return result

    monkeypatch.setattr("dflash2_mlx.bench.runner.collect", spoilt)
    events = list(bench.measure(engine, [BenchPrompt(TEXT)], replace(PLAN, repeats=1)))
    found = {event.width: event for event in events if isinstance(event, Comparison)}
    assert found[5].identical and not found[3].identical
    assert found[3].first_difference is not None and found[3].first_difference["index"] == 4
    (report,) = bench.summarize(events)
    texts = {arm.width: arm.texts for arm in report.arms}
    assert texts[1] is None and texts[5] == bench.Texts(1, 1) and texts[3].identical == 0
    assert texts[3].differences[0]["plain_token"] == lively_reply(FAMILY)[4]


def test_sampled_texts_are_compared_only_when_they_must_be_equal() -> None:
    engine = scripted_engine(FAMILY, [1])
    plan = replace(PLAN, temperatures=(1.0,), repeats=1, widths=(1, 4))
    events = list(bench.measure(engine, [BenchPrompt(TEXT)], plan))
    assert not any(isinstance(event, Comparison) for event in events)
    coupled = replace(plan, sampling=d2.SamplingConfig(lossless_mode="coupled"))
    checked = [e for e in bench.measure(engine, [BenchPrompt(TEXT)], coupled) if isinstance(e, Comparison)]
    assert [found.identical for found in checked] == [True]


def test_every_request_has_a_seed_of_its_own_that_all_arms_share() -> None:
    plan = replace(PLAN, temperatures=(0.7,), seed=5)
    configs = [plan.config(Setting(0, 0.7), width, place) for place in (0, 3) for width in (1, 4)]
    assert [config.sampling.seed for config in configs] == [5, 5, 8, 8]
    assert {config.sampling.lossless_mode for config in configs} == {"rejection"}
    assert [(config.mode, config.block_size) for config in configs] == [("plain", None), ("dflash2", 4)] * 2


class ChatTokenizer(SpellingTokenizer):
    """Renders every message as its text; notes the conversations it was given."""

    has_chat_template = True

    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[int]:
        self.seen.append([dict(message) for message in messages])
        return self.encode("".join(message["content"] for message in messages))


def test_a_conversation_goes_on_from_the_models_own_reply() -> None:
    tokenizer = ChatTokenizer()
    engine = replace(tiny_engine(FAMILY), tokenizer=tokenizer)
    plan = replace(PLAN, widths=(1,), repeats=1, max_tokens=3)
    prompt = BenchPrompt("<3><5>", ("<9>", "<11>"))
    runs = runs_of(list(bench.measure(engine, [prompt], plan)))
    assert [run.turn for run in runs] == [0, 1, 2] and plan.requests([prompt]) == 3
    first, second, third = tokenizer.seen[-3:]
    assert [message["role"] for message in third] == ["user", "assistant", "user", "assistant", "user"]
    assert third[:3] == second and second[:1] == first == [{"role": "user", "content": "<3><5>"}]
    assert second[1]["content"].count("<") == 3 and second[2]["content"] == "<9>"
    assert [run.prompt_tokens for run in runs] == [2, 2 + 3 + 1, 2 + 3 + 1 + 3 + 1]


def test_after_a_difference_the_conversations_are_no_longer_compared() -> None:
    from dflash2_mlx.bench.runner import _Answer, _compare

    engine = scripted_engine(FAMILY, [1])
    config = PLAN.config(GREEDY, 1, 0)
    result = d2.generate(engine, TEXT, config)
    other = replace(result, token_ids=[result.token_ids[0] ^ 1, *result.token_ids[1:]])
    run = runs_of(list(bench.measure(engine, [BenchPrompt(TEXT)], replace(PLAN, repeats=1))))[0]
    plain = [_Answer(TEXT, result, run)] * 3
    drafted = [_Answer(TEXT, result, run), _Answer(TEXT, other, run), _Answer(TEXT, result, run)]
    assert [found.identical for found in _compare(engine, config, plain, drafted)] == [True, False]


def test_phases_are_measured_apart_and_name_every_part_of_a_round() -> None:
    events = list(
        bench.measure(scripted_engine(FAMILY, [1]), [BenchPrompt(TEXT)], replace(PLAN, repeats=1, phases=True))
    )
    found = {event.width: event.milliseconds for event in events if isinstance(event, bench.PhaseTimes)}
    assert set(found[5]) == {*bench.PHASES, "build"}
    assert set(found[1]) == {"verify", "commit", "host_gap", "build"}
    assert all(value.median > 0 for phases in found.values() for value in phases.values())
    assert not any(isinstance(event, bench.PhaseTimes) for event in bench.measure(
        scripted_engine(FAMILY, [1]), [BenchPrompt(TEXT)], replace(PLAN, repeats=1)))  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (6,)}, r"widths: got 6, expected integers in 1\.\.5"),
        ({"widths": (0,)}, "widths: got 0"),
    ],
)
def test_what_would_fail_later_is_refused_first(changes: dict[str, Any], message: str) -> None:
    engine = scripted_engine(FAMILY, [1])
    with pytest.raises(d2.SettingError, match=message):
        next(bench.measure(engine, [BenchPrompt(TEXT)], replace(PLAN, **changes)))


def test_without_a_drafter_only_plain_decoding_can_be_measured() -> None:
    with pytest.raises(d2.SettingError, match="there is no drafter"):
        next(bench.measure(tiny_engine(FAMILY), [BenchPrompt(TEXT)], PLAN))


def test_prompts_the_target_cannot_take_are_refused_first() -> None:
    engine = tiny_engine(FAMILY)
    plan = replace(PLAN, widths=(1,))
    with pytest.raises(d2.PromptError, match="expected at least one"):
        next(bench.measure(engine, [], plan))
    with pytest.raises(d2.PromptError, match="conversation"):
        next(bench.measure(engine, [BenchPrompt("<1>", ("<2>",))], plan))


@pytest.mark.parametrize("changes", [{"widths": ()}, {"widths": (1, 1)}, {"repeats": 0}, {"temperatures": (0.0, 0.0)}])
def test_a_plan_that_makes_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(d2.ConfigError, match=next(iter(changes))):
        replace(PLAN, **changes)
