"""What is checked before settings are saved, beyond the range of each value.

Owns: the form of a Draft Model, the pairing check, the registry's presets and their notes. Writes nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dflash2_mlx as d2

from ..errors import AppError, UsageError
from ..models import registry
from ..settings.names import MINI, Named, is_folder, is_hub_id, source_of
from ..settings.store import Settings

PRESET = "dflash2"
DRAFT_MODEL, BLOCK_SIZE = "dflash_draft_model", "dflash_block_size"
ANNOUNCED_BLOCK_SIZE, ANNOUNCED_VERIFY_MODE = 5, "dflash"
GOOD, BAD, UNKNOWN, NONE = "good", "bad", "unknown", "none"


@dataclass
class Checked:
    """Values ready to be saved, and what to tell about them."""

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pairing:
    """Whether a drafter belongs to a target: "good", "bad", "unknown" (checked when both are loaded) or "none"."""

    state: str
    text: str
    licence_note: str | None = None


def check_values(settings: Settings, named: Named, values: Mapping[str, Any]) -> Checked:
    """Check values that were parsed key by key against each other, the models and the registry.

    Raises:
        UsageError, AppError: one line; nothing may be saved then.
    """
    checked, drafter = Checked(dict(values)), values.get(DRAFT_MODEL)
    if drafter is not None:
        drafter = checked.values[DRAFT_MODEL] = draft_model(drafter)
    elif values.get("dflash_enabled") is True and DRAFT_MODEL not in values:
        drafter = settings.record(named.model_id).get(DRAFT_MODEL)  # what is switched on must fit as well
    if isinstance(drafter, str):
        pairing = look_at_pair(settings, named, drafter)
        if pairing.state == BAD:
            # Beside the embedded model it is a slip of whoever typed it; else the files have been looked at.
            raise (UsageError if MINI in (drafter, named.typed) else AppError)(pairing.text)
        checked.notes += [pairing.licence_note] if pairing.licence_note else []
        checked.notes += [pairing.text] if pairing.state == UNKNOWN else []
    _omit_checkpoint_block_size(settings, named, checked)
    return checked


def draft_model(name: str) -> str:
    """The form a Draft Model is kept in: an absolute path or a full Hub id; oMLX takes anything else for a Hub id.

    Raises:
        UsageError: it is neither.
    """
    if is_folder(name):
        folder = Path(name).expanduser().absolute()
        if not (folder / "config.json").is_file():
            raise UsageError(f"{DRAFT_MODEL}: got {name!r}, expected a folder with config.json")
        return str(folder)
    if name == MINI or is_hub_id(name):
        return name
    raise UsageError(f"{DRAFT_MODEL}: got {name!r}, expected an existing folder or a full Hub id like owner/name")


def target_source(settings: Settings, named: Named) -> str:
    """What the model's id leads to, or the id itself where it leads nowhere on this machine."""
    try:
        return source_of(settings, named)
    except AppError:
        return named.model_id


def look_at_pair(settings: Settings, named: Named, drafter: str | None) -> Pairing:
    """The real check where both configs are on this machine, else what the registry knows; raises nothing."""
    if drafter is None:
        return Pairing(NONE, "no Draft Model is set")
    target, known = target_source(settings, named), registry.find_drafter(drafter)
    licence = known.licence_note() if known is not None else None
    if MINI in (target, drafter):
        if (target, drafter) != (MINI, MINI):
            return Pairing(BAD, f"{DRAFT_MODEL}: got {drafter!r} for {target}, expected mini with mini only")
        return Pairing(GOOD, "the embedded pair")
    here, drafter_here = registry.config_folder(target), registry.config_folder(drafter)
    if here is not None and drafter_here is not None:
        try:
            config = registry.check_pair(here, drafter_here)
        except AppError as error:
            return Pairing(BAD, str(error), licence)
        return Pairing(GOOD, f"hidden size, vocabulary, taps and layers fit; block size {config.block_size}", licence)
    if known is not None and any(known == item.pair and item.by_name for item in registry.suggest(target)):
        return Pairing(GOOD, f"{drafter} was made for {known.target.name}", licence)
    if known is not None:
        text = f"{drafter} was made for {known.target.name}; it is checked when both are loaded"
        return Pairing(UNKNOWN, text, licence)
    missing = target if here is None else drafter
    return Pairing(UNKNOWN, f"not checked yet: {missing} is not on this machine; the pair is checked when it is loaded")


def _omit_checkpoint_block_size(settings: Settings, named: Named, checked: Checked) -> None:
    """A block size that is the checkpoint's own is not written: older oMLX drops the key."""
    wanted = checked.values.get(BLOCK_SIZE)
    if wanted is None:
        return
    drafter = checked.values.get(DRAFT_MODEL) or settings.record(named.model_id).get(DRAFT_MODEL)
    known = registry.find_drafter(drafter) if isinstance(drafter, str) else None
    own = None if known is None else known.block_size
    if own is None:
        return
    if wanted == own:
        checked.values[BLOCK_SIZE] = None
        checked.notes.append(f"Runtime block size: {wanted} is the checkpoint's own, so nothing is written")
    elif wanted > own:
        checked.notes.append(
            f"Runtime block size: {wanted} will be cut to {own}, the most this drafter was trained for"
        )


def suggestions(settings: Settings, named: Named) -> list[registry.Suggestion]:
    """Published drafters for a model, best first."""
    target = target_source(settings, named)
    folder = registry.config_folder(target)
    return registry.suggest(target, None if folder is None else _read_config(folder))


def preset_values(settings: Settings, named: Named, drafter: str | None = None) -> Checked:
    """The announcement's setup for one model: drafter, quantization, runtime block size, verify mode.

    Args:
        drafter: another one than the registry's.
    Raises:
        AppError: the registry knows no drafter for it, or the named one does not fit.
    """
    best = None
    if drafter is None:
        found = suggestions(settings, named)
        if not found:
            raise AppError(_no_drafter(named, target_source(settings, named)))
        best = found[0]
    pair = best.pair if best is not None else registry.find_drafter(drafter or "")
    bits = 32 if _emulates_bfloat16() else 16
    notes = [] if best is None or best.by_name else [f"{best.reason}: measure how much is accepted"]
    if best is not None and best.pair.version == 1:
        notes.append(f"{best.pair.drafter} is a DFlash drafter (version 1): no DFlash 2 drafter is on record")
    notes += [f"{pair.drafter}: {pair.note}"] if pair is not None and pair.note else []
    notes += ["Activation Bits: 32, because M1 and M2 emulate bfloat16"] if bits == 32 else []
    checked = check_values(settings, named, {
        "dflash_enabled": True,
        DRAFT_MODEL: drafter or (pair.drafter if pair is not None else None),
        "dflash_draft_quant_enabled": True,
        "dflash_draft_quant_weight_bits": 4,
        "dflash_draft_quant_activation_bits": bits,
        "dflash_draft_quant_group_size": 64,
        BLOCK_SIZE: ANNOUNCED_BLOCK_SIZE if pair is None else pair.runtime_block_size,
        "dflash_verify_mode": ANNOUNCED_VERIFY_MODE if pair is None else pair.verify_mode,
        "dflash_draft_sink_size": 0,
    })  # fmt: skip
    return Checked(checked.values, [*notes, *checked.notes])


def _no_drafter(named: Named, target: str) -> str:
    known = ", ".join(dict.fromkeys(pair.target.name for pair in registry.known_pairs()))
    return f"{named.model_id}: got no drafter on record for it, expected one of {known}, or a fine-tune of one"


def _read_config(folder: Path) -> dict[str, Any] | None:
    import json

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # the load says what is wrong with it
    return config if isinstance(config, dict) else None


def _emulates_bfloat16() -> bool:
    if platform.system() != "Darwin":
        return False

    return d2.analysis.this_chip().emulates_bfloat16
