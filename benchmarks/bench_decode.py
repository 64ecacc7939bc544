"""Plain decoding against DFlash 2, same process, same prompts, arms taking turns.

    python -m benchmarks.bench_decode --target-dtype float32 --widths 8,5 --repeats 5 --json out.json

The machine's mood changes from minute to minute, so every repeat runs every arm in turn and medians over repeats are
reported, with the middle half of the repeats beside the ratio. Trust ratios, not tokens/s. See README.md.
"""

from __future__ import annotations

import json
import statistics
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import dflash2_mlx as d2
from benchmarks.machine import (
    BadInput,
    OneLineParser,
    check_writable,
    describe_machine,
    print_machine,
    run_command,
    write_json,
)
from dflash2_mlx.bench.observed import BUILD, COMMIT, DRAFT, HOST_GAP, SELECT, VERIFY, time_phases

PROMPTS = (
    'def parse_arguments():\n    """Read the command line."""\n    parser = argparse.ArgumentParser(',
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n",
    "    def test_empty(self):\n        self.assertEqual(",
    "import re\n\n_pattern = re.compile(r'[a-z]+')\n\n\ndef tokenize(text):\n",
    "with open(filename, 'rb') as file:\n    data = file.read()\n",
    "class ParseError(ValueError):\n    def __init__(self, message, line):\n",
)
BOOTSTRAP = Path(__file__).resolve().parent.parent / "tests" / "data" / "bootstrap"
PLAIN = "plain"
DTYPES = ("auto", "bfloat16", "float32")


@dataclass
class Arm:
    """One way to decode, and what was measured of it. The first token belongs to the prefill and is not counted."""

    name: str
    width: int | None  # None decodes plainly
    tokens: list[int] = field(default_factory=list)  # per prompt
    seconds: list[list[float]] = field(default_factory=list)  # per repeat, per prompt
    acceptance_length: float | None = None  # mean over prompts of the mean over rounds
    texts_equal: int = 0  # prompts whose text is plain decoding's, in the last repeat
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)  # per round

    def config(self, base: d2.GenerationConfig) -> d2.GenerationConfig:
        if self.width is None:
            return replace(base, mode="plain")
        return replace(base, mode="dflash2", block_size=self.width)

    def tokens_per_second(self) -> float:
        """All tokens, over the sum of each prompt's median time: one slow moment of the machine drops out."""
        return sum(self.tokens) / sum(statistics.median(times) for times in zip(*self.seconds, strict=True))

    def ratios(self, plain: Arm) -> list[float]:
        """Speed over plain decoding's, repeat by repeat."""
        scale = sum(self.tokens) / sum(plain.tokens)
        return [scale * sum(theirs) / sum(ours) for ours, theirs in zip(self.seconds, plain.seconds, strict=True)]


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median, with the middle half of the values around it."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "quarter": low, "three_quarters": high}


def run_repeat(
    engine: d2.Engine, prompts: Sequence[Any], base: d2.GenerationConfig, arms: list[Arm], turn: int
) -> None:
    """Every prompt with every arm; which arm begins changes with the turn and the prompt."""
    results: dict[str, list[d2.GenerationResult]] = {arm.name: [] for arm in arms}
    for number, prompt in enumerate(prompts):
        shift = (turn + number) % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            results[arm.name].append(d2.generate(engine, prompt, arm.config(base)))
    texts = [result.token_ids for result in results[PLAIN]]
    for arm in arms:
        stats = [result.stats for result in results[arm.name]]
        arm.tokens = [one.generated_tokens - 1 for one in stats]
        arm.seconds.append([one.decode_s for one in stats])
        arm.texts_equal = sum(a.token_ids == b for a, b in zip(results[arm.name], texts, strict=True))
        lengths = [one.acceptance_length for one in stats if one.acceptance_length is not None]
        arm.acceptance_length = statistics.fmean(lengths) if lengths else None


def measure_rounds(engine: d2.Engine, prompts: Sequence[Any], base: d2.GenerationConfig, arm: Arm) -> None:
    """Milliseconds per round: phases from synchronous runs, host gaps from pipelined ones."""
    values: dict[str, list[float]] = {}
    for prompt in prompts:
        for name, milliseconds in time_phases(engine, prompt, arm.config(base)).items():
            values.setdefault(name, []).extend(milliseconds)
    arm.milliseconds = {name: quartiles(several) for name, several in values.items() if several}


# What the user asks for.


@dataclass(frozen=True)
class Options:
    model: str
    drafter: str | None
    target_dtype: str
    widths: list[int] | None
    max_tokens: int
    repeats: int
    prompts: list[Any]
    json: Path | None


def parse_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line.

    Raises:
        BadInput: one line each.
    """
    parser = OneLineParser(prog="bench_decode", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, Hub id, or mini; default: the bootstrap pair, which continues code")
    parser.add_argument("--drafter", help="folder or Hub id; mini and the bootstrap pair bring their own")
    parser.add_argument("--target-dtype", default="auto", choices=DTYPES)
    parser.add_argument("--widths", help="rows per round, such as 8,5; default: the drafter's block size, and 5")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=Path, help="JSON list of strings, or of lists of chat messages")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    given = parser.parse_args(arguments)
    for name in ("max_tokens", "repeats"):
        least = 2 if name == "max_tokens" else 1
        if getattr(given, name) < least:
            flag = "--" + name.replace("_", "-")
            raise BadInput(f"{flag}: got {getattr(given, name)}, expected at least {least}")
    check_writable(given.json)
    prompts = list(PROMPTS) if given.prompts is None else read_prompts(given.prompts)
    widths = None if given.widths is None else read_widths(given.widths)
    model, drafter = given.model, given.drafter
    if model is None:
        model, drafter = str(BOOTSTRAP / "target"), drafter or str(BOOTSTRAP / "drafter")
    return Options(model, drafter, given.target_dtype, widths, given.max_tokens, given.repeats, prompts, given.json)


def read_widths(text: str) -> list[int]:
    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--widths: got {text!r}, expected numbers such as 8,5") from None
    if len(set(widths)) != len(widths):
        raise BadInput(f"--widths: got {text!r}, expected different numbers")
    return widths


def read_prompts(path: Path) -> list[Any]:
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"--prompts: got {str(path)!r}, expected a JSON file ({error})") from None
    if not isinstance(prompts, list) or not prompts or not all(isinstance(item, str | list) for item in prompts):
        raise BadInput(f"--prompts: got {str(path)!r}, expected a list of strings or of lists of messages")
    return prompts


def make_arms(engine: d2.Engine, widths: list[int] | None) -> list[Arm]:
    """Plain decoding, and DFlash 2 at each width.

    Raises:
        BadInput: widths without a drafter, or beyond its block size.
    """
    arms = [Arm(PLAIN, None)]
    size = engine.block_size
    if size is None:
        if widths is not None:
            raise BadInput("--widths: got a value, expected none: there is no drafter")
        return arms
    for width in dict.fromkeys([size, min(5, size)]) if widths is None else widths:
        if not 2 <= width <= size:
            raise BadInput(f"--widths: got {width}, expected 2..{size}")
        arms.append(Arm(f"DFlash 2, width {width}", width))
    return arms


# What comes out.


def summary(arms: list[Arm]) -> list[dict[str, Any]]:
    """What is reported of each arm."""
    plain = arms[0]
    return [
        {
            "arm": arm.name,
            "tokens_per_second": arm.tokens_per_second(),
            "ratio": arm.tokens_per_second() / plain.tokens_per_second(),
            "ratio_by_repeat": quartiles(arm.ratios(plain)),
            "acceptance_length": arm.acceptance_length,
            "texts_equal": arm.texts_equal,
        }
        for arm in arms
    ]


def show(arms: list[Arm], prompts: int) -> None:
    print(f"\n{'arm':<20} {'tokens/s':>9} {'ratio':>6} {'by repeat':>12} {'acceptance':>11} {'same text':>10}")
    for row in summary(arms):
        spread, length = row["ratio_by_repeat"], row["acceptance_length"]
        print(
            f"{row['arm']:<20} {row['tokens_per_second']:>9.1f} {row['ratio']:>6.2f} "
            f"{spread['quarter']:>6.2f}-{spread['three_quarters']:<5.2f} "
            f"{'' if length is None else f'{length:.2f}':>11} {row['texts_equal']:>7}/{prompts}"
        )
    print("\nms per round, medians. Phases and graph building come from separate synchronous runs: they do not add up")
    print("to a pipelined round. Host gap: from a round's tokens being read to the next round being handed to MLX.")
    names = [DRAFT, SELECT, VERIFY, COMMIT, BUILD, HOST_GAP]
    print(f"{'arm':<20}" + "".join(f"{name:>18}" for name in names))
    for arm in arms:
        cells = [f"{arm.milliseconds[name]['median']:.2f}" if name in arm.milliseconds else "" for name in names]
        print(f"{arm.name:<20}" + "".join(f"{cell:>18}" for cell in cells))


def main(arguments: Sequence[str] | None) -> None:
    options = parse_options(arguments)
    engine = d2.load(options.model, options.drafter, target_dtype=options.target_dtype)
    arms = make_arms(engine, options.widths)
    machine = describe_machine()
    print_machine(machine)
    print(f"{engine.target_name}, target dtype {options.target_dtype}, {len(options.prompts)} prompts of up to "
          f"{options.max_tokens} tokens, {options.repeats} repeats, greedy")  # fmt: skip
    if engine.row_cost_note:
        print(f"note: {engine.row_cost_note}")
    base = d2.GenerationConfig(max_tokens=options.max_tokens)
    for arm in arms:  # every shape and every compiled graph once, untimed
        d2.generate(engine, options.prompts[0], arm.config(base))
    for turn in range(options.repeats):
        run_repeat(engine, options.prompts, base, arms, turn)
    for arm in arms:
        measure_rounds(engine, options.prompts, base, arm)
    show(arms, len(options.prompts))
    if options.json is not None:
        given = {**asdict(options), "json": None, "prompts": len(options.prompts)}
        write_json(options.json, {
            "machine": machine, "options": given, "row_cost_note": engine.row_cost_note,
            "summary": summary(arms), "arms": [asdict(arm) for arm in arms],
        })  # fmt: skip


if __name__ == "__main__":
    run_command(main, "bench_decode")
