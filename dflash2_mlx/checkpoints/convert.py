"""Writes a quantized copy of a drafter checkpoint.

Owns: what is checked before anything is written, the copy's config and card, and that a copy is whole or not there.
What is quantized, and how, is decided where weights are read (`weights.quantize_drafter`), so that a copy holds the
very numbers that quantizing on load gives.

Reference: docs/dflash2.md 8.12, 8.26.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import yaml
from huggingface_hub.repocard import metadata_load
from mlx.utils import tree_flatten

from ..device.runtime import owner
from ..drafters.dflash2.config import DrafterConfig
from ..errors import CheckpointError, LicenceError, SettingError
from .drafter_weights import check_draft_bits, check_drafter_files, quantize_drafter, read_drafter
from .files import find_card, find_config, find_files, read_config

_SPARE_BYTES = 2**20  # config, card, header
_NO_DERIVATIVES = re.compile(r"(?<![a-z])nd(?![a-z])|no[- ]?deriv", re.IGNORECASE)


@dataclass(frozen=True)
class Conversion:
    """What was written. Bytes are those of the weights; `licence` is None where the source states none."""

    source: str
    folder: Path
    bits: int
    group_size: int
    bytes_before: int
    bytes_after: int
    licence: str | None


def convert_drafter(source: str | Path, folder: str | Path, *, bits: int = 8, group_size: int = 64) -> Conversion:
    """Quantize a drafter's attention, MLP and `fc` weights and write the result as a checkpoint folder.

    Convolution, selector and norms keep their numbers. Loading the copy gives bit for bit what loading the source with
    `draft_bits` gives.

    Args:
        source: folder or Hub id of a drafter, DFlash or DFlash 2.
        folder: where the copy goes; must not exist yet.
        bits: 4 or 8.
        group_size: weights that share a scale: 32, 64 or 128.
    Raises:
        SettingError: the output exists or has too little space, or the drafter cannot be quantized so.
        LicenceError: the card's licence allows no modified copies.
        CheckpointError, ConfigError: the source is no whole drafter.
    """
    folder = Path(folder).expanduser()
    _check_output(folder)
    raw = read_config(find_config(source, "drafter"))
    config = DrafterConfig.from_dict(raw)
    check_draft_bits(config, bits, group_size, names=("bits", "group_size"))
    card = find_card(source, "drafter")
    licence = _permitting_licence(card, raw)
    files = find_files(source, "drafter")
    infos = check_drafter_files(files, config)
    before = sum(path.stat().st_size for path in {info.file for info in infos.values()})
    facts = {"source": str(source), "bits": bits, "group_size": group_size, "licence": licence}

    partial = folder.with_name(f".{folder.name}.partial")

    def write_weights() -> int:
        model = read_drafter(files, config)
        quantize_drafter(model, bits, group_size)
        flat: Any = tree_flatten(model.parameters())
        _check_space(folder.parent, sum(array.nbytes for _, array in flat))
        target = partial / "model.safetensors"
        mx.save_safetensors(str(target), dict(flat), {"format": "mlx"})
        return target.stat().st_size

    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        after = owner().call(write_weights)
        _write_config(partial, raw, bits, group_size)
        (partial / "README.md").write_text(_card_text(facts, before, after), encoding="utf-8")
        for path in sorted([*card.glob("LICENSE*"), *card.glob("NOTICE*")]):
            if path.is_file():
                shutil.copyfile(path, partial / path.name)
        check_drafter_files(partial, DrafterConfig.from_dict(read_config(partial)))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Conversion(str(source), folder, bits, group_size, before, after, licence)


def stated_licences(card: Path, raw_config: Mapping[str, Any]) -> list[str]:
    """Every licence that a checkpoint's card and config name, the most telling first.

    Raises:
        CheckpointError: there is a card, but its metadata cannot be read.
    """
    path, metadata = card / "README.md", {}
    if path.is_file():
        try:
            metadata = metadata_load(path) or {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            line = " ".join(str(error).split())
            raise CheckpointError(f"{path}: got unreadable metadata ({line[:200]}), expected YAML") from None
    stated: list[str] = []
    for value in (metadata.get("license"), metadata.get("license_name"), raw_config.get("license")):
        stated += [str(item) for item in (value if isinstance(value, list) else [value]) if item]
    return sorted(stated, key=lambda name: name == "other")  # which says nothing, where there is more


def _permitting_licence(card: Path, raw_config: Mapping[str, Any]) -> str | None:
    licences = stated_licences(card, raw_config)
    for licence in licences:
        if _NO_DERIVATIVES.search(licence):
            raise LicenceError(
                f"licence: got {licence!r} in the drafter's card, expected one that allows modified copies"
            )
    return licences[0] if licences else None


def _check_output(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise SettingError(f"output: got {str(folder)!r}, expected a folder that does not exist yet")
    if folder.name in ("", ".."):
        raise SettingError(f"output: got {str(folder)!r}, expected the name of a new folder")


def _check_space(parent: Path, size: int) -> None:
    """Refuse before writing what would not fit; `parent` exists by now."""
    free = shutil.disk_usage(parent).free
    if free < size + _SPARE_BYTES:
        raise SettingError(f"output: got {free / 1e9:.2f} GB of free space, expected {size / 1e9:.2f} GB for the copy")


def _write_config(folder: Path, raw: Mapping[str, Any], bits: int, group_size: int) -> None:
    config = {**raw, "quantization": {"group_size": group_size, "bits": bits, "mode": "affine"}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _card_text(facts: Mapping[str, Any], before: int, after: int) -> str:
    head = ["library_name: mlx"]
    # The Hub links it; a folder of this machine means nothing there.
    if not Path(facts["source"]).expanduser().is_dir():
        head += [f"base_model: {json.dumps(facts['source'])}", "base_model_relation: quantized"]
    if facts["licence"] is not None:
        head.insert(0, f"license: {json.dumps(facts['licence'])}")
    rows = {
        "source": facts["source"],
        "licence of the source": facts["licence"] or "not stated",
        "bits": facts["bits"],
        "group size": facts["group_size"],
        "weights before": f"{before} bytes",
        "weights after": f"{after} bytes",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    lines = "\n".join(head)
    return (
        f"---\n{lines}\n---\n\n# A quantized DFlash drafter\n\nMade by `dflash2-mlx convert`. Attention, MLP and `fc` "
        f"weights are quantized; convolution, selector and norms are as in the source.\n\n| | |\n|---|---|\n{table}\n"
    )
