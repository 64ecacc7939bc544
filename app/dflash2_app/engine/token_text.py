"""What single tokens say: their text, and their bytes where they are part of a character.

Owns: how byte-level tokenizers write bytes as characters, and others as `<0xE4>`. Knows no interface.
"""

from __future__ import annotations

import re
from typing import Any

REPLACEMENT = "\ufffd"  # what decoding gives for bytes that are no character
_ONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The bytes that byte-level tokenizers write as these characters."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + at): byte for at, byte in enumerate(others)}}


_BYTES = _byte_alphabet()


class TokenReader:
    """Reads single tokens of one tokenizer.

    Args:
        tokenizer: an engine's.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        # Alone, or at the beginning, some tokenizers leave out the blank that a token begins with.
        self._left = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._left_size = len(tokenizer.decode(self._left))

    def text(self, token: int) -> str:
        """What the token adds to a text; with replacement signs where it is part of a character."""
        return str(self._tokenizer.decode([*self._left, token]))[self._left_size :]

    def data(self, token: int) -> bytes | None:
        """The token's bytes in UTF-8; None where they cannot be known."""
        text = self.text(token)
        if REPLACEMENT not in text:
            return text.encode("utf-8", "replace")
        piece = self._tokenizer.convert_ids_to_tokens(token)
        one = _ONE_BYTE.fullmatch(piece)
        if one:
            return bytes([int(one.group(1), 16)])
        return bytes(_BYTES[sign] for sign in piece) if all(sign in _BYTES for sign in piece) else None
