"""An analysis as lines of text.

Owns: layout and wording. Works on the dictionary that `--json` prints, so that both always say the same.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = 28  # columns of a drafter's name
_INDENT = {"loaded": "", "switched off": "  ", "another drafter": ""}

Fields = Mapping[str, Any]


def analysis_lines(found: Fields) -> list[str]:
    """Everything there is to say, from the subject to the costs."""
    lines = [
        f"pair       {found['model']} · drafter {found['drafter']} · block size {found['block_size']}",
        f"replies    to {found['prompts']} prompts, up to {found['max_tokens']} tokens each",
    ]
    for temperature in dict.fromkeys(row["temperature"] for row in found["acceptance"]):
        rows = [row for row in found["acceptance"] if row["temperature"] == temperature]
        recalls = [row for row in found["recall"] if row["temperature"] == temperature]
        lines += ["", *_acceptance(temperature, rows), *_checks(rows), "", *_recall(temperature, recalls)]
    lines += ["", *_attention(found["attention"]), "", *_costs(found["costs"])]
    if found["note"]:
        lines.append(f"note       {found['note']}")
    return lines


def _acceptance(temperature: float, rows: Sequence[Fields]) -> list[str]:
    """Lengths, and the share accepted at each position of the rounds that accepted all before it."""
    lines = [
        f"temperature {temperature:g}: acceptance length, and acceptance by position in %",
        f"{'drafter':{_NAME}} length  rounds  {_positions(rows, 'acceptance_by_position')}",
    ]
    for row in rows:
        name = _name(_INDENT[row["kind"]] + row["name"])
        shares = _shares(row["acceptance_by_position"])
        smaller = "" if row["block_size"] == rows[0]["block_size"] else f"  (block size {row['block_size']})"
        lines.append(f"{name} {_length(row['acceptance_length'])}  {row['rounds']:6}  {shares}{smaller}")
    return lines


def _checks(rows: Sequence[Fields]) -> list[str]:
    broken = [row["name"] for row in rows if not row["identity_holds"]]
    if broken:
        lines = [f"check      1 + Σ Π c_i is NOT the mean over rounds for {', '.join(broken)}: please report this"]
    else:
        lengths = ", ".join(_length(row["expected_length"]).strip() for row in rows)
        lines = [f"check      1 + Σ Π c_i is the mean over rounds, before cuts at the end: {lengths}"]
    different = [row["name"] for row in rows if row["same_text"] is False]
    if different:
        lines.append(f"check      other greedy replies than the loaded drafter's: {', '.join(different)}")
    elif any(row["same_text"] for row in rows):
        lines.append("check      greedy replies are the same with every drafter")
    return lines


def _recall(temperature: float, rows: Sequence[Fields]) -> list[str]:
    """Three rules for each drafter; a row's length is what its shares multiply to."""
    lines = [
        f"temperature {temperature:g}: recall by position in %, drafted after each of {rows[0]['blocks']} tokens of the"
        " loaded drafter's replies",
        f"{'drafter':{_NAME}} {'':11} length  {_positions(rows, 'recall_at_k')}",
    ]
    for row in rows:
        rules = [("Recall@1", "length_at_1", "recall_at_1"), (f"Recall@{row['k']}", "oracle_length", "recall_at_k")]
        rules.append(("greedy walk", "length_of_walk", "walk"))
        for number, (rule, length, shares) in enumerate(rules):
            name = _name("" if number else row["name"])
            lines.append(f"{name} {rule:11} {_length(row[length])}  {_shares(row[shares])}")
    return lines


def _attention(rows: Sequence[Fields]) -> list[str]:
    lines = ["attention on the block itself in %, mean over the rows of the rounds; the rest is on the context"]
    heads = max(len(layer) for row in rows for layer in row["by_layer_and_head"])
    lines.append(f"{'drafter':{_NAME}} layer   mean  {'by head' if heads <= 16 else 'least and most of the heads'}")
    for row in rows:
        for number, (mean, layer) in enumerate(zip(row["by_layer"], row["by_layer_and_head"], strict=True)):
            name = _name("" if number else row["name"])
            shown = layer if heads <= 16 else (min(layer), max(layer))
            lines.append(f"{name} {number + 1:5}  {100 * mean:5.1f}  {_shares(shown)}")
    return lines


def _costs(costs: Fields) -> list[str]:
    lines = [
        f"cost of a round of {costs['width']} rows: verify {costs['verify_ms']:.2f} ms, draft {costs['draft_ms']:.2f} "
        f"ms ({100 * costs['draft_share']:.1f} % of both)"
    ]
    for name, part in costs["parts"].items():
        shown = f"{100 * part['share']:+.1f} % of the round"
        middle = f"middle half {100 * part['quarter']:+.1f} to {100 * part['three_quarters']:+.1f} %"
        unseen = "" if part["visible"] else ": lost in the noise here"
        lines.append(f"  {name:18} saves {shown} ({middle}{unseen})")
    if not costs["parts"]:
        lines.append("  the drafter has neither convolution nor selector")
    how = textwrap.wrap(costs["method"], 100)
    return [*lines, f"how        {how[0]}", *(f"{'':11}{line}" for line in how[1:])]


def _positions(rows: Sequence[Fields], key: str) -> str:
    return "".join(f"{place:6}" for place in range(1, 1 + max((len(row[key]) for row in rows), default=0)))


def _shares(shares: Sequence[float | None]) -> str:
    return "".join(f"{'-' if share is None else f'{100 * share:.1f}':>6}" for share in shares)


def _length(length: float | None) -> str:
    return f"{'-' if length is None else f'{length:.2f}':>6}"


def _name(name: str) -> str:
    """A long path keeps its end, which tells drafters apart."""
    return f"{name if len(name) <= _NAME else '…' + name[1 - _NAME :]:{_NAME}}"
