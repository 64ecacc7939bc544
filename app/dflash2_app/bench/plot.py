"""A measurement as a picture: acceptance by position, and tokens/s by width.

Owns: what is drawn. Works on the record that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError

_SUFFIX = ".png"

Fields = Mapping[str, Any]


def check_plot(path: Path | None) -> None:
    """Refuse before anything is measured what could not be drawn after it.

    Raises:
        UsageError: another kind of file, or matplotlib is missing.
    """
    if path is None:
        return
    if path.suffix.lower() != _SUFFIX:
        raise UsageError(f"--plot: got {str(path)!r}, expected a name that ends in {_SUFFIX}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(
            f"--plot: got {str(path)!r}, expected matplotlib to be installed",
            hint="pip install 'dflash2-mlx[bench]'",
        ) from None


def draw_measurement(record: Fields, picture: Path) -> None:
    """Draw a record to a PNG file. A half without numbers says so instead of staying empty."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    shares, speeds = figure.subplots(1, 2)
    _draw_acceptance(shares, record)
    _draw_speeds(speeds, record)
    figure.suptitle(_title(record), fontsize=10)
    figure.savefig(picture, dpi=120, format="png")


def _draw_acceptance(axes: Any, record: Fields) -> None:
    axes.set_title("acceptance by position")
    drawn = False
    for setting in record["settings"]:
        for arm in setting["arms"]:
            found = [
                (place, share) for place, share in enumerate(arm["acceptance_by_position"], 1) if share is not None
            ]
            if found:
                name = "server" if arm["width"] is None else f"width {arm['width']}"
                axes.plot(*zip(*found, strict=True), "o-", markersize=4, label=f"{name}, {_label(setting)}")
                drawn = True
    axes.set_xlabel("draft")
    axes.set_ylabel("accepted, of rounds that got there")
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(axes, drawn)


def _draw_speeds(axes: Any, record: Fields) -> None:
    axes.set_title("speed by width (1: plain decoding)")
    drawn, widths = False, set[int]()
    for setting in record["settings"]:
        found = [(arm["width"] or 0, arm) for arm in setting["arms"] if arm["tokens_per_second"] is not None]
        if not found:
            continue
        drawn = True
        at, speeds = [width for width, _ in found], [arm["tokens_per_second"] for _, arm in found]
        repeats = [arm["tokens_per_second_by_repeat"] or [arm["tokens_per_second"]] for _, arm in found]
        low = [max(0.0, speed - min(several)) for speed, several in zip(speeds, repeats, strict=True)]
        high = [max(0.0, max(several) - speed) for speed, several in zip(speeds, repeats, strict=True)]
        axes.errorbar(at, speeds, yerr=[low, high], fmt="o-", markersize=4, capsize=3, label=_label(setting))
        widths.update(at)
    axes.set_xticks(sorted(widths), ["server" if width == 0 else str(width) for width in sorted(widths)])
    axes.set_xlabel("width (rows per verify)")
    axes.set_ylabel("tokens/s (bars: slowest and fastest repeat)")
    axes.set_ylim(bottom=0)
    _finish(axes, drawn)


def _finish(axes: Any, drawn: bool) -> None:
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend(frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes)


def _label(setting: Fields) -> str:
    temperature = setting["temperature"]
    drawn = "server's sampling" if temperature is None else f"T={temperature:g}"
    return f"{drawn}, depth {setting['depth']}"


def _title(record: Fields) -> str:
    subject = record["endpoint"] or f"drafter {record['drafter']}"
    unfinished = "" if record["complete"] else " · unfinished"
    return (
        f"{record['model']} · {subject} · {record['prompts']} prompts of {record['set']} · "
        f"{record['repeats']} repeats{unfinished}"
    )
