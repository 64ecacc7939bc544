"""Known pairs of targets and drafters: which drafter a target wants, and whether two folders belong together.

Owns: the reading of `registry.toml`, the matching of names and shapes, and what is said of licences. The check
of a real pair is the library's.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError
from . import registry

_FILE = Path(__file__).with_name("registry.toml")


# Endings that say how weights are stored, not which model it is.
_STORAGE = re.compile(
    r"[-_.](\d+(\.\d+)?[-_]?bit|bf16|fp16|fp8|fp4|int4|int8|mxfp[48]|nvfp4|mlx|dwq|awq|gptq|oq\d?|q[2-8]|gs\d+|w\d+a\d+)$"
)


BEST_FIT_RESERVE_BYTES = 6 * 10**9  # caches, activations and everybody else on the machine


@dataclass(frozen=True)
class KnownTarget:
    """What is known of a pair's target; None where it is not on record."""

    name: str
    id: str | None = None
    mlx: tuple[str, ...] = ()
    bytes: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *((self.id,) if self.id else ()), *self.mlx)


@dataclass(frozen=True)
class KnownPair:
    """A published drafter and the target it was trained for; None where a fact is not on record."""

    drafter: str
    version: int
    target: KnownTarget
    block_size: int | None = None
    licence: str | None = None
    mirrors: tuple[str, ...] = ()
    revisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    drafter_bytes: int | None = None
    drafter_parameters: int | None = None
    runtime_block_size: int = 5
    verify_mode: str = "dflash"
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)
    note: str | None = None

    @property
    def non_commercial(self) -> bool:
        return self.licence is not None and "NC" in re.split(r"[ -]", self.licence)

    def licence_note(self) -> str | None:
        """What to tell the user before a download, or None for a licence that asks for nothing unusual."""
        if self.licence is None:
            return f"{self.drafter}: its licence is not on record here; read its model card before you use it"
        if self.non_commercial:
            return f"{self.drafter}: its licence is {self.licence}: not for commercial use"
        return None


@dataclass(frozen=True)
class Suggestion:
    """A drafter for some target. `by_name`: made for this very model; else its shapes fit (a fine-tune?)."""

    pair: KnownPair
    by_name: bool

    @property
    def reason(self) -> str:
        if self.by_name:
            return f"{self.pair.drafter} was made for {self.pair.target.name}"
        return f"{self.pair.drafter} was made for {self.pair.target.name}, which has the same shapes"


@functools.cache
def known_pairs() -> tuple[KnownPair, ...]:
    """All pairs of the registry."""
    return tuple(_pair(entry) for entry in _content()["pair"])


def _content() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def _pair(entry: dict[str, Any]) -> KnownPair:
    target = entry["target"]
    changed = {
        "target": KnownTarget(**{**target, "mlx": tuple(target.get("mlx", ()))}),
        "mirrors": tuple(entry.get("mirrors", ())),
        "revisions": {name: tuple(found) for name, found in entry.get("revisions", {}).items()},
    }
    return KnownPair(**{**entry, **changed})


def bare_name(name: str) -> str:
    """A model's name without owner, folder and the endings that say how its weights are stored; lower case."""
    bare = re.split(r"/|--", name.rstrip("/"))[-1].lower()
    while (match := _STORAGE.search(bare)) is not None:
        bare = bare[: match.start()]
    return bare


def suggest(target: str | None = None, config: Mapping[str, Any] | None = None) -> list[Suggestion]:
    """Drafters for a target, best first; an empty list when the registry knows none.

    Args:
        target: Hub id, folder or bare name.
        config: the target's parsed `config.json`, where it is at hand: drafters that do not fit are left out,
            and those for a model of the same shapes are added.
    """
    found = []
    for pair in known_pairs():
        named = target is not None and bare_name(target) in {bare_name(name) for name in pair.target.names}
        fits = None if config is None else _shapes_fit(pair.target, config)
        if named and fits is not False:
            found.append(Suggestion(pair, by_name=True))
        elif fits:
            found.append(Suggestion(pair, by_name=False))
    return sorted(found, key=lambda item: (not item.by_name, -item.pair.version))


def _shapes_fit(target: KnownTarget, config: Mapping[str, Any]) -> bool | None:
    """Whether a target's shapes are the registry's; None where the registry does not know them."""
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    stated = (text.get("num_hidden_layers"), text.get("hidden_size"), text.get("vocab_size"))
    known = (target.layers, target.hidden_size, target.vocab_size)
    if known == (None, None, None):
        return None
    return stated == known


def find_drafter(name: str) -> KnownPair | None:
    """The pair of a drafter, by its id or a mirror's."""
    for pair in known_pairs():
        if name.lower() in (known.lower() for known in (pair.drafter, *pair.mirrors)):
            return pair
    return None


def best_fit(memory_bytes: int) -> KnownPair | None:
    """The largest pair with an MLX target on record that fits so much memory (the drafter not quantized)."""
    fitting = [
        pair
        for pair in known_pairs()
        if pair.target.mlx
        and pair.target.bytes is not None
        and pair.drafter_bytes is not None
        and pair.target.bytes + pair.drafter_bytes + BEST_FIT_RESERVE_BYTES <= memory_bytes
    ]
    return max(fitting, key=lambda pair: pair.target.bytes or 0, default=None)


def check_pair(target: str | Path, drafter: str | Path) -> d2.DrafterConfig:
    """Check by their configs that a drafter belongs to a target: hidden size, vocabulary, taps, layers.

    Args:
        target, drafter: folders, or Hub ids (then `config.json` is fetched or found in the cache).
    Raises:
        AppError: they do not belong together, or one of them is not what it should be; one line.
    """
    try:
        return d2.check_pairing(target, drafter)
    except d2.Dflash2Error as error:
        raise AppError(f"{drafter} for {target}: {error}") from None


def config_folder(name: str) -> Path | None:
    """The folder with a model's `config.json` on this machine: a folder, or an entry of the Hub cache; else None."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if name.count("/") != 1 or name.startswith((".", "~", "/")):
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


@dataclass(frozen=True)
class SuggestedDrafter:
    """A drafter's Hub id, and why it is suggested."""

    repo_id: str
    reason: str


def drafter_for(target: str, config: Mapping[str, Any] | None = None) -> SuggestedDrafter | None:
    """The drafter made for a target, by its Hub id or folder and its parsed config; None when none is known."""
    found = registry.suggest(target, config)
    return SuggestedDrafter(found[0].pair.drafter, found[0].reason) if found else None


def pair_that_fits(memory_bytes: int) -> tuple[str, str] | None:
    """Target and drafter of the largest published pair for so much memory; None when none is known."""
    pair = registry.best_fit(memory_bytes)
    return None if pair is None else (pair.target.mlx[0], pair.drafter)


def is_non_commercial(license: str | None) -> bool:
    """Whether a licence's short name, as the Hub's pages give it, forbids commercial use."""
    words = (license or "").lower().replace("_", "-").replace(" ", "-").split("-")
    return "nc" in words or "noncommercial" in words or "research" in words
