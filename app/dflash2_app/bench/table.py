"""A measurement as lines of text.

Owns: layout and wording. Works on the record that `--json` prints, so that both always say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .record import PHASES

_GIGA = 10**9
_MOST_DIFFERENCES = 5

Fields = Mapping[str, Any]


def lines(record: Fields) -> list[str]:
    """Everything there is to say, from the subject to the advice."""
    found = [*_subject(record)]
    for setting in record["settings"]:
        found += ["", _heading(record, setting), *_arms(setting["arms"], server=record["kind"] == "server")]
        found += _acceptance(setting["arms"])
        found += _phases(setting["arms"])
    return [*found, "", *_verdict(record), *_closing(record)]


def _subject(record: Fields) -> list[str]:
    if record["kind"] == "server":
        subject = f"server     {record['endpoint']} · model {record['model']}"
    else:
        drafter = f" · drafter {record['drafter']} · block size {record['block_size']}" if record["drafter"] else ""
        subject = f"pair       {record['model']}{drafter}"
    preset = f" · preset {record['preset']}" if record["preset"] else ""
    widths = {arm["width"] for setting in record["settings"] for arm in setting["arms"]}
    how = ", one request at a time" if record["kind"] == "server" else ""
    if len(widths) > 1:
        how = ", all widths in turn"
    repeats = "1 repeat" if record["repeats"] == 1 else f"{record['repeats']} repeats"
    return [
        subject,
        f"prompts    {record['prompts']} of {record['set']}, up to {record['max_tokens']} tokens each, "
        f"{repeats}{how}{preset}",
    ]


def _heading(record: Fields, setting: Fields) -> str:
    temperature = setting["temperature"]
    drawn = "the server's own sampling" if temperature is None else f"temperature {temperature:g}"
    prompt = max((arm["prompt_tokens"] for arm in setting["arms"]), default=0)
    return f"{drawn} · depth {setting['depth']} · prompts of {prompt:.0f} tokens on average"


def _arms(arms: Sequence[Fields], *, server: bool) -> list[str]:
    prefill = "first token" if server else "prefill"
    lines = [
        f"  {'width':>6}  {'tokens/s':>9}  {'speed-up':>8}  {'by repeat':>11}  {'acceptance':>10}  {'rate':>5}  "
        f"{prefill:>11}  {'peak memory':>11}  {'same text':>9}"
    ]
    for arm in arms:
        ratios, texts, memory = arm["speedup_by_repeat"], arm["texts"], arm["peak_memory_bytes"]
        spread = f"{ratios['quarter']:.2f}-{ratios['three_quarters']:.2f}" if ratios else ""
        same = f"{texts['identical']}/{texts['compared']}" if texts else ""
        size = f"{memory / _GIGA:.2f} GB" if memory else ""
        length, rate = _number(arm["acceptance_length"], 2), _number(arm["acceptance_rate"], 2)
        speed = _number(arm["tokens_per_second"], 1)
        lines.append(
            f"  {_width(arm):>6}  {speed:>9}  {_times(arm['speedup']):>8}  {spread:>11}  {length:>10}  {rate:>5}  "
            f"{arm['prefill_s']:>9.3f} s  {size:>11}  {same:>9}".rstrip()
        )
    return lines


def _acceptance(arms: Sequence[Fields]) -> list[str]:
    drafted = [arm for arm in arms if arm["acceptance_by_position"]]
    if not drafted:
        return []
    most = max(len(arm["acceptance_by_position"]) for arm in drafted)
    head = "".join(f"{place:>6}" for place in range(1, most + 1))
    lines = ["  accepted, of the rounds that accepted all drafts before:", f"  {'draft':>6}{head}  expected length"]
    for arm in drafted:
        shares = "".join(f"{_number(share, 2) or '-':>6}" for share in arm["acceptance_by_position"])
        lines.append(f"  {_width(arm):>6}{shares:{6 * most}}  {_number(arm['expected_length'], 2):>15}")
    return lines


def _phases(arms: Sequence[Fields]) -> list[str]:
    timed = [arm for arm in arms if arm["milliseconds"]]
    if not timed:
        return []
    head = "".join(f"{name.replace('_', ' '):>10}" for name in PHASES)
    lines = [
        "  ms per round, medians of separate runs that wait after each phase (host gap: of runs that do not);",
        "  they do not add up to a round of the runs above:",
        f"  {'width':>6}{head}",
    ]
    for arm in timed:
        found = arm["milliseconds"]
        cells = "".join(f"{found[name]['median']:>10.2f}" if name in found else f"{'':>10}" for name in PHASES)
        lines.append(f"  {_width(arm):>6}{cells}".rstrip())
    return lines


def _verdict(record: Fields) -> list[str]:
    """Equal texts, said once for all settings; nothing where nothing was compared."""
    texts = [(arm, arm["texts"]) for setting in record["settings"] for arm in setting["arms"] if arm["texts"]]
    if not texts:
        return []
    compared, identical = (sum(found[key] for _, found in texts) for key in ("compared", "identical"))
    if compared == identical:
        return [f"verdict    identical: all {compared} drafted replies that had to equal plain decoding's do"]
    lines = [f"verdict    different: {identical} of {compared} drafted replies equal plain decoding's"]
    differences = [(arm, found) for arm, texts in texts for found in texts["differences"]]
    for arm, found in differences[:_MOST_DIFFERENCES]:
        gap = "" if found["logit_gap"] is None else f", logit gap {found['logit_gap']:.4g}"
        lines.append(f"           width {_width(arm)}, prompt {found['prompt']}: from token {found['index']} on{gap}")
    if len(differences) > _MOST_DIFFERENCES:
        lines.append(f"           and {len(differences) - _MOST_DIFFERENCES} more (--json lists them)")
    return lines


def _closing(record: Fields) -> list[str]:
    lines = [f"note       {text}" for text in record["notices"]]
    if record["busy"]:
        lines.append(f"caution    {record['busy']}")
    advice = record["recommendation"]
    if advice is not None:
        if advice["caution"]:
            lines.append(f"caution    {advice['caution']}")
        size = advice["block_size"]
        use = f"--block-size {size}: " if size else ("" if advice["speedup"] is None else "plain decoding: ")
        lines.append(f"advice     {use}{advice['reason']}")
    if not record["complete"]:
        lines.append(f"unfinished {record['requests']} of {record['requests_planned']} requests were measured")
    return lines


def _width(arm: Fields) -> str:
    if arm["mode"] == "plain":
        return "plain"
    return "server" if arm["width"] is None else str(arm["width"])


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"
