"""A target's tokenizer and its stop tokens, from the checkpoint's folder.

Owns: the reading alone; what a prompt becomes is `text`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer

from ..errors import CheckpointError
from ..targets.registry import text_config
from .files import read_object

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> TokenizerWrapper:
    """The tokenizer; its `eos_token_ids` are the stop tokens that the files state, and its own.

    Raises:
        CheckpointError: no tokenizer files, or files that cannot be read.
    """
    stops = _stop_ids(folder, config)
    # Without these, transformers makes an empty tokenizer of the config's class and says nothing.
    if not any((folder / name).is_file() for name in _VOCABULARIES) and not any(folder.glob("*.tiktoken")):
        raise CheckpointError(f"{folder}: got no tokenizer files, expected one of {', '.join(_VOCABULARIES)}")
    try:
        return load_tokenizer(folder, eos_token_ids=stops)
    except Exception as error:  # noqa: BLE001 - the tokenizers package raises plain Exception
        line = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: got tokenizer files that do not load ({line[:300]}), expected the target's tokenizer"
        ) from None


def _stop_ids(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """Stop tokens: generation_config.json first, then config.json; the tokenizer adds its own."""
    stops = config.get("eos_token_id")
    if stops is None:
        stops = text_config(config).get("eos_token_id")
    stated = (read_object(folder / "generation_config.json") or {}).get("eos_token_id")
    if stated is not None:
        stops = stated
    if stops is None:
        return []
    return [stops] if isinstance(stops, int) else list(stops)
