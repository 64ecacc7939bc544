"""What is checked before settings are saved, beyond the range of each value.

Owns: the form of a Draft Model, the pairing check, the registry's presets and their notes. Writes nothing.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AppError, UsageError
from ..models import registry
from ..settings.names import MINI, Named, is_folder, is_hub_id, source_of
from ..settings.store import Settings

PRESET = "dflash2"
DRAFT_MODEL, BLOCK_SIZE = "dflash_draft_model", "dflash_block_size"


@dataclass
class Checked:
    """Values ready to be saved, and what to tell about them."""

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def check_values(settings: Settings, named: Named, values: dict[str, Any]) -> Checked:
    """Check values that were parsed key by key against each other, the models and the registry.

    Raises:
        UsageError, AppError: one line; nothing may be saved then.
    """
    checked = Checked(dict(values))
    if values.get(DRAFT_MODEL) is not None:
        checked.values[DRAFT_MODEL] = _draft_model(values[DRAFT_MODEL])
        _check_pairing(settings, named, checked)
    _omit_checkpoint_block_size(settings, named, checked)
    return checked


def _draft_model(name: str) -> str:
    """An absolute path or a full Hub id: anything else would be taken for a Hub id by oMLX."""
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


def _check_pairing(settings: Settings, named: Named, checked: Checked) -> None:
    """The real check where both configs are on this machine, else what the registry knows."""
    drafter, target = checked.values[DRAFT_MODEL], target_source(settings, named)
    known = registry.find_drafter(drafter)
    if known is not None and known.licence_note():
        checked.notes.append(known.licence_note() or "")
    if MINI in (target, drafter):
        if (target, drafter) != (MINI, MINI):
            raise UsageError(f"{DRAFT_MODEL}: got {drafter!r} for {target}, expected mini with mini only")
        return
    folders = registry.config_folder(target), registry.config_folder(drafter)
    if folders[0] is not None and folders[1] is not None:
        registry.check_pair(*folders)
        return
    if known is not None and any(known == item.pair and item.by_name for item in registry.suggest(target)):
        return
    if known is not None:
        checked.notes.append(f"{drafter} was made for {known.target.name}; it is checked when both are loaded")
        return
    missing = target if folders[0] is None else drafter
    checked.notes.append(f"not checked yet: {missing} is not on this machine; the pair is checked when it is loaded")


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


def preset_values(settings: Settings, named: Named) -> Checked:
    """The announcement's setup for one model: drafter, quantization, runtime block size, verify mode.

    Raises:
        AppError: the registry knows no drafter for it.
    """
    target = target_source(settings, named)
    folder = registry.config_folder(target)
    config = None if folder is None else _read_config(folder)
    found = registry.suggest(target, config)
    if not found:
        raise AppError(_no_drafter(named, target))
    best = found[0]
    bits = 32 if _emulates_bfloat16() else 16
    notes = [] if best.by_name else [f"{best.reason}: measure how much is accepted"]
    if best.pair.version == 1:
        notes.append(f"{best.pair.drafter} is a DFlash drafter (version 1): no DFlash 2 drafter is on record")
    notes += [f"{best.pair.drafter}: {best.pair.note}"] if best.pair.note else []
    notes += ["Activation Bits: 32, because M1 and M2 emulate bfloat16"] if bits == 32 else []
    checked = check_values(settings, named, {
        "dflash_enabled": True,
        DRAFT_MODEL: best.pair.drafter,
        "dflash_draft_quant_enabled": True,
        "dflash_draft_quant_weight_bits": 4,
        "dflash_draft_quant_activation_bits": bits,
        "dflash_draft_quant_group_size": 64,
        BLOCK_SIZE: best.pair.runtime_block_size,
        "dflash_verify_mode": best.pair.verify_mode,
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
    except (OSError, ValueError):
        return None  # the load says what is wrong with it
    return config if isinstance(config, dict) else None


def _emulates_bfloat16() -> bool:
    if platform.system() != "Darwin":
        return False
    from dflash2_mlx import analysis

    return str(analysis.describe_machine()["chip"]).startswith(("Apple M1", "Apple M2"))
