"""A prompt for those who brought none: one that suits the pair it is put to."""

from __future__ import annotations

import dflash2_mlx as d2

from ..settings.names import MINI

DEFAULT_CODE = '''class ConfigError(Exception):
    """Raised when the configuration is invalid."""

    def __init__(self, message, path=None):
'''
DEFAULT_QUESTION = "Write a Python class for a bank account, with docstrings and a short test for every method."
# What the embedded pair can answer.
MINI_QUESTION = (
    "Write a Python function that searches a sorted list for a value and returns its index or -1. Explain it briefly."
)


def sample_prompt(engine: d2.Engine, *, chats: bool | None = None) -> str:
    """A prompt that suits a pair; `chats`: whether its chat template is used, None if it has one."""
    if not (engine.tokenizer.has_chat_template if chats is None else chats):
        return DEFAULT_CODE
    return MINI_QUESTION if engine.target_name == MINI else DEFAULT_QUESTION
