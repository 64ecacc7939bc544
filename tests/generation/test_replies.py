"""What a reply tells its reader: figures of the moment, honest speed, shortened limits, the right session."""

import time

import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.targets.registry import make_target
from tests.engines import tiny_engine
from tests.pairs import bootstrap_pair
from tests.tiny import TARGET_CONFIGS, make_mlx_model

PROMPT = "import os\nimport sys\n\n\ndef main(argv=None):\n"


@pytest.fixture(scope="module")
def engine() -> d2.Engine:
    return bootstrap_pair()


def test_each_event_carries_the_figures_of_its_moment(engine):
    events = list(d2.stream_generate(engine, PROMPT, d2.GenerationConfig(max_tokens=40)))
    seen = 0
    for event in events:
        seen += len(event.token_ids)
        assert event.stats.generated_tokens == seen
    assert seen == 40
    rounds = [event.stats.rounds for event in events]
    assert rounds == sorted(rounds) and rounds[0] == 0


def test_waiting_for_a_slow_reader_is_not_decoding(engine):
    config = d2.GenerationConfig(max_tokens=150, mode="plain")
    undisturbed = d2.generate(engine, PROMPT, config).stats.decode_s
    stream = d2.stream_generate(engine, PROMPT, config)
    for _ in range(3):
        next(stream)
    pause_s = 4 * undisturbed + 2
    time.sleep(pause_s)
    last = list(stream)[-1]
    assert last.finish_reason == "length"
    assert last.stats.decode_s < pause_s / 2


def test_a_limit_that_the_context_shortens_is_said():
    config = {**TARGET_CONFIGS["qwen3"], "max_position_embeddings": 64}
    engine = tiny_engine(target=owner().call(lambda: make_target(make_mlx_model(config), config)))
    ids = [5] * (engine.context_length - 10)
    session = d2.new_session(engine)  # reads the prompt once
    result = d2.generate(engine, ids, d2.GenerationConfig(max_tokens=100), session=session)
    assert result.stats.generated_tokens == 10
    assert [note for note in result.stats.notices if note.startswith("max_tokens: 100 was cut to 10")]
    assert not d2.generate(engine, ids, d2.GenerationConfig(max_tokens=10), session=session).stats.notices


def test_a_session_of_another_engine_is_refused(engine):
    other = bootstrap_pair()
    for config in (d2.GenerationConfig(max_tokens=2), d2.GenerationConfig(max_tokens=2, mode="plain")):
        session = d2.new_session(other, config)
        with pytest.raises(d2.ConfigError, match="session: got one of another engine"):
            d2.generate(engine, PROMPT, config, session=session)
        assert d2.generate(other, PROMPT, config, session=session).token_ids


@pytest.mark.parametrize("token", [4096, 2**31, 2**40])
def test_a_stop_token_beyond_the_vocabulary_is_refused(engine, token):
    with pytest.raises(d2.ConfigError, match=f"stop_token_ids: got token id {token}, expected 0..4095"):
        d2.generate(engine, PROMPT, d2.GenerationConfig(stop_token_ids=(token,)))


@pytest.mark.parametrize("prompt", [b"abc", [True, False]])
def test_neither_bytes_nor_truth_values_are_token_ids(engine, prompt):
    with pytest.raises(d2.PromptError):
        d2.generate(engine, prompt, d2.GenerationConfig(max_tokens=2))


def test_mini_names_the_embedded_drafter_too():
    assert d2.load("mini", drafter="mini").drafter_name == "mini"
