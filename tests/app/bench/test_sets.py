"""The published sets, from a stand-in for the Hub that serves tiny files."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dflash2_app.bench.sets import SETS, load_set
from dflash2_app.errors import AppError

from ..conftest import spawn
from .stand_ins import COMMIT, hub, serving


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def parquet_file(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


TWO_TURNS = [{"prompt": ["Write.", "Shorten."], "category": "writing", "reference": []}]
REPOSITORIES = {
    "openai/gsm8k": {
        "main/test-00000-of-00001.parquet": parquet_file([{"question": "1 + 1?", "answer": "2"}]),
        "socratic/test-00000-of-00001.parquet": parquet_file([{"question": "no", "answer": "no"}]),
        "main/train-00000-of-00001.parquet": parquet_file([{"question": "no", "answer": "no"}]),
    },
    "HuggingFaceH4/MATH-500": {"test.jsonl": json_lines([{"problem": "x = 2", "solution": "", "answer": "2"}])},
    "openai/openai_humaneval": {
        "openai_humaneval/test-00000-of-00001.parquet": parquet_file([{"prompt": "def f():\n", "test": ""}])
    },
    "google-research-datasets/mbpp": {
        "full/test-00000-of-00001.parquet": parquet_file([{"text": "no"}]),
        "sanitized/test-00000-of-00001.parquet": parquet_file([{"prompt": "Sort a list.", "code": ""}]),
    },
    "HuggingFaceH4/mt_bench_prompts": {
        "raw/question.jsonl": json_lines(TWO_TURNS),
        "data/train-00000-of-00001.parquet": parquet_file([{"prompt": ["no"]}]),
    },
}
STEPS = "Please reason step by step, and put your final answer within \\boxed{}."
EXPECTED = {
    "gsm8k": ["1 + 1?\n" + STEPS],
    "math500": ["x = 2\n" + STEPS],
    "humaneval": ["Write a solution to this problem that passes its tests:\n```python\ndef f():\n\n```"],
    "mbpp": ["Sort a list."],
    "mt-bench": ["Write.", "Shorten."],
}


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def online(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Point huggingface_hub, which read its environment long ago, to an address and an empty cache."""

    def point(url: str, offline: bool = False) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))

    yield point
    import huggingface_hub

    huggingface_hub.close_session()


@pytest.mark.parametrize("name", SETS)
def test_prompts_are_those_of_the_protocol(name: str, online: Any, seen: list[str]) -> None:
    with serving(hub(REPOSITORIES, seen)) as url:
        online(url)
        found = load_set(name)
    (prompt,) = found.prompts
    assert [prompt.first, *prompt.follow_ups] == EXPECTED[name]
    assert prompt.family == name and found.revision == COMMIT
    assert not any("train" in file and name != "mt-bench" for file in seen)


def test_what_was_fetched_once_is_not_fetched_again_and_works_offline(online: Any, seen: list[str]) -> None:
    with serving(hub(REPOSITORIES, seen)) as url:
        online(url)
        first = load_set("math500")
        assert load_set("math500") == first
    assert seen == ["test.jsonl"]
    online("http://127.0.0.1:9", offline=True)
    assert load_set("math500") == first


@pytest.mark.parametrize(
    ("repositories", "words"),
    [
        ({}, "expected the data set HuggingFaceH4/MATH-500 on the Hub or in its cache"),
        ({"HuggingFaceH4/MATH-500": {"README.md": b"x"}}, "expected test.jsonl or data/test"),
        ({"HuggingFaceH4/MATH-500": {"test.jsonl": b'{"problem": "x"}\nbroken'}}, "test.jsonl line 2"),
        ({"HuggingFaceH4/MATH-500": {"test.jsonl": b'{"question": "x"}'}}, "row 0 of HuggingFaceH4/MATH-500, found the "
         "fields question"),
        ({"HuggingFaceH4/MATH-500": {"test.jsonl": b'[1]'}}, "found a JSON list"),
        ({"HuggingFaceH4/MATH-500": {"data/test-0.parquet": b"PAR1 not really"}}, "expected a Parquet file"),
    ],
)  # fmt: skip
def test_sets_that_are_not_there(
    repositories: dict[str, dict[str, bytes]], words: str, online: Any, seen: list[str]
) -> None:
    with serving(hub(repositories, seen)) as url:
        online(url)
        with pytest.raises(AppError) as caught:
            load_set("math500")
    assert words in str(caught.value) and "'math500'" in str(caught.value) and "\n" not in str(caught.value)


def test_no_network_is_one_line(online: Any) -> None:
    online("http://127.0.0.1:9", offline=True)
    with pytest.raises(AppError, match="--set: got 'gsm8k', expected the data set openai/gsm8k"):
        load_set("gsm8k")


def test_without_pyarrow_parquet_is_refused_and_json_is_not(
    online: Any, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with serving(hub(REPOSITORIES, seen)) as url:
        online(url)
        assert load_set("mt-bench").prompts
        with pytest.raises(AppError, match="expected pyarrow to be installed") as caught:
            load_set("gsm8k")
    assert caught.value.hint == "pip install 'dflash2-mlx[bench]'"


def test_a_set_keeps_its_own_order_and_the_sample_shuffles_it(online: Any, seen: list[str]) -> None:
    from dflash2_mlx import bench

    rows = [{"problem": str(number)} for number in range(50)]
    with serving(hub({"HuggingFaceH4/MATH-500": {"test.jsonl": json_lines(rows)}}, seen)) as url:
        online(url)
        prompts = load_set("math500").prompts
    order = list(range(50))
    random.Random(42).shuffle(order)
    assert [prompt.first for prompt in bench.draw(prompts, 3)] == [f"{place}\n{STEPS}" for place in order[:3]]


def test_a_set_is_measured_in_a_real_process(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with serving(hub(REPOSITORIES, seen)) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        ran = spawn("bench", "--set", "math500", "--widths", "1", "--max-tokens", "4", "--repeat", "1", "--no-phases",
                    "--json", timeout=300)  # fmt: skip
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert (record["set"], record["revision"], record["prompts"], record["requests"]) == ("math500", COMMIT, 1, 1)
    assert seen == ["test.jsonl"]
