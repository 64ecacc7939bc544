"""What checkpoints call their modules: the prefixes around a name, and a quantized config's settings by module.

Owns: the one rule by which a tensor and the setting that is meant for it are found under the same name. Files write
`layers.0.mlp.up_proj`, `model.layers…` or `model.language_model.layers…` for one module, and a config need not use
the spelling of the tensors beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .validation import refusal

_PREFIXES = ("language_model.", "model.")
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
_RENAMED = {"encoder.fc": "fc", "encoder.output_norm_enc": "hidden_norm"}  # Meta's Muse assistant files


def bare_name(name: str) -> str:
    """A tensor's or module's name without the prefixes of models that hold it."""
    shorter = name
    for prefix in _PREFIXES:
        shorter = shorter.removeprefix(prefix)
    return name if shorter == name else bare_name(shorter)


def drafter_name(name: str) -> str:
    """The module path of a drafter's tensor or module: prefixes stripped, codebooks without `.weight`."""
    name = bare_name(name)
    for theirs, ours in _RENAMED.items():
        if name == theirs or name.startswith(theirs + "."):
            name = ours + name.removeprefix(theirs)
    for codebook in CODEBOOKS:
        if name == codebook + ".weight":
            name = codebook
    return name


def bare_drafter_quantization(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter's `quantization` with its settings by module under the names of `drafter_name`.

    Raises:
        ConfigError: two spellings of one module say different things.
    """
    found: dict[str, Any] = {}
    for key, value in quantization.items():
        name = drafter_name(key)
        if found.get(name, value) != value:
            raise refusal(f"quantization.{key}", value, f"one setting of {name}: another spelling says {found[name]!r}")
        found[name] = value
    return found


def module_setting(quantization: Mapping[str, Any], module: str) -> Any:
    """What a target's `quantization` says of one module, whichever prefix is before it; None where it says nothing."""
    bare = bare_name(module)
    return next((own for key, own in quantization.items() if bare_name(key) == bare), None)
