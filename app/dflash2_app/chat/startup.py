"""What a chat starts with when nothing was named on the command line.

Owns: that decision, as a pure function of what is known, and the questions it needs answered. The functions that answer
(`Seams`) are handed in.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import dflash2_mlx as d2

GB = 10**9
_ANSWER_S = 2.0


@dataclass(frozen=True)
class PairChoice:
    """A pair of the registry.

    `download_bytes` is what is still missing on disk (0: nothing, None: unknown); `licence_note` is what must be known
    before a download, such as a licence for non-commercial use only.
    """

    target: str
    drafter: str
    download_bytes: int | None = None
    licence_note: str = ""


@dataclass(frozen=True)
class Situation:
    """What is known when a chat starts.

    `named`: a model on the command line; `configured`: the model marked as default in the settings; `choice`: the
    registry's best pair for this memory, None where none fits or there is no registry.
    """

    named: str | None
    configured: str | None
    apple_silicon: bool
    online: bool
    interactive: bool
    choice: PairChoice | None


@dataclass(frozen=True)
class Start:
    """What to do: load the named or configured model, offer to download a pair, load one, or load the mini pair."""

    action: Literal["named", "configured", "offer", "pair", "mini"]
    note: str = ""
    pair: PairChoice | None = None


def decide(now: Situation) -> Start:
    """Choose what to start with; every choice that the user did not make is said in `note`."""
    if now.named is not None:
        return Start("named")
    if now.configured is not None:
        return Start("configured", f"using {now.configured}, the default of the settings")
    if not now.apple_silicon:
        return _mini("this is not a Mac with Apple silicon")
    if now.choice is None:
        return _mini("no known pair fits this Mac's memory")
    if now.choice.download_bytes == 0:
        return Start("pair", f"using {now.choice.target} with {now.choice.drafter}", now.choice)
    if not now.interactive:
        return _mini(f"{now.choice.target} would fit this Mac, but nobody is here to agree to a download")
    if not now.online:
        return _mini(f"{now.choice.target} would fit this Mac, but there is no network")
    return Start("offer", pair=now.choice)


def declined(pair: PairChoice) -> Start:
    """The user does not want the download."""
    return _mini(f"{pair.target} is not downloaded")


def offer_text(pair: PairChoice) -> str:
    """The question before a download."""
    size = "" if pair.download_bytes is None else f" ({pair.download_bytes / GB:.1f} GB)"
    licence = f" {pair.licence_note}." if pair.licence_note else ""
    return f"The best pair for this Mac is {pair.target} with {pair.drafter}.{licence} Download it{size}?"


def _mini(reason: str) -> Start:
    return Start("mini", f"no model named or configured, and {reason}: using the embedded mini pair")


@dataclass(frozen=True)
class Seams:
    """What other parts of the application answer; the defaults know no settings and no registry."""

    configured: Callable[[], str | None] = lambda: None
    best_fit: Callable[[int], PairChoice | None] = lambda memory_bytes: None
    download: Callable[[PairChoice], None] = lambda pair: None


def look_around(named: str | None, *, interactive: bool, seams: Seams) -> Situation:
    """Find out what `decide` needs, asking the network last and only when it matters."""
    if named is not None:
        return Situation(named, None, False, False, interactive, None)
    configured = seams.configured()
    if configured is not None:
        return Situation(None, configured, False, False, interactive, None)

    machine = d2.analysis.describe_machine()
    apple_silicon = machine["system"].startswith("Darwin") and machine["machine"] == "arm64"
    choice = None
    if apple_silicon:
        choice = seams.best_fit(machine["wired_limit_bytes"] or machine["memory_bytes"] or 0)
    asks = choice is not None and choice.download_bytes != 0 and interactive
    return Situation(None, None, apple_silicon, asks and is_online(), interactive, choice)


def is_online() -> bool:
    """Whether the Hub can be reached: not switched off, and it answers, be it with a refusal."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_ANSWER_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
