"""The published prompt sets, fetched from the Hub as plain files and cached there.

Owns: where each set lies, how one of its rows becomes a prompt, and what is told when that fails. The protocol is
the authors' (docs/dflash2.md 6.2); the sample is drawn by the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError

MINI = "mini"
_STEP_BY_STEP = r"Please reason step by step, and put your final answer within \boxed{}."
_SOLVE = "Write a solution to this problem that passes its tests:"

Row = Mapping[str, Any]
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]  # as the library takes it: text, messages or token ids


@dataclass(frozen=True)
class HubSet:
    """One set: `files` are patterns, the best kind first; `turns` makes the user's turns of one row."""

    repo: str
    files: tuple[str, ...]
    turns: Callable[[Row], list[str]]


SETS = {
    "gsm8k": HubSet(
        "openai/gsm8k",
        ("main/test*.jsonl", "main/test*.parquet"),
        lambda row: [f"{row['question']}\n{_STEP_BY_STEP}"],
    ),
    "math500": HubSet(
        "HuggingFaceH4/MATH-500",
        ("test.jsonl", "data/test*.parquet"),
        lambda row: [f"{row['problem']}\n{_STEP_BY_STEP}"],
    ),
    "humaneval": HubSet(
        "openai/openai_humaneval",
        ("openai_humaneval/test*.jsonl", "openai_humaneval/test*.parquet"),
        lambda row: [f"{_SOLVE}\n```python\n{row['prompt']}\n```"],
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp",
        ("sanitized/test*.jsonl", "sanitized/test*.parquet"),
        lambda row: [row["prompt"]],
    ),
    "mt-bench": HubSet(
        "HuggingFaceH4/mt_bench_prompts",
        ("raw/question.jsonl", "data/train*.parquet"),
        lambda row: list(row["prompt"]),
    ),
}
NAMES = (*SETS, MINI)


@dataclass(frozen=True)
class PromptSet:
    """Prompts, and where they are from; `revision` is the Hub's commit, None for local ones."""

    name: str
    prompts: list[d2.bench.BenchPrompt]
    revision: str | None = None


def load_set(name: str) -> PromptSet:
    """All prompts of a set, in its own order.

    Raises:
        AppError: the set cannot be fetched, or does not hold what it should.
    """
    if name == MINI:
        return PromptSet(name, d2.bench.mini_prompts())
    source = SETS[name]
    folder = _fetch(name, source)
    rows = _rows(name, source, folder)
    return PromptSet(name, [_prompt(name, source, row, number) for number, row in enumerate(rows)], folder.name)


def _fetch(name: str, source: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source.repo, repo_type="dataset", allow_patterns=list(source.files)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise AppError(
            f"--set: got {name!r}, expected the data set {source.repo} on the Hub or in its cache ({reason})",
            hint="--set mini and --prompts FILE need no network",
        ) from None


def _rows(name: str, source: HubSet, folder: Path) -> list[Row]:
    for pattern in source.files:
        files = sorted(folder.glob(pattern))
        if files:
            read = _json_lines if pattern.endswith(".jsonl") else _parquet
            return [row for file in files for row in read(name, file)]
    raise AppError(f"--set: got {name!r}, expected {' or '.join(source.files)} in the data set {source.repo}")


def _json_lines(name: str, file: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise AppError(f"--set: got {name!r}, expected JSON in {file} line {number} ({error})") from None
    return rows


def _parquet(name: str, file: Path) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise AppError(
            f"--set: got {name!r}, expected pyarrow to be installed: the set comes as Parquet files",
            hint="pip install 'dflash2-mlx[bench]'",
        ) from None
    try:
        rows: list[Row] = parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise AppError(f"--set: got {name!r}, expected a Parquet file in {file} ({error})") from None
    return rows


def _prompt(name: str, source: HubSet, row: Row, number: int) -> d2.bench.BenchPrompt:
    try:
        turns = source.turns(row)
    except (KeyError, TypeError):
        turns = []
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise AppError(f"--set: got {name!r}, expected a prompt in row {number} of {source.repo}, found {_keys(row)}")
    return d2.bench.BenchPrompt(turns[0], tuple(turns[1:]), name)


def _keys(row: Any) -> str:
    return f"the fields {', '.join(row)}" if isinstance(row, dict) else f"a JSON {type(row).__name__}"
