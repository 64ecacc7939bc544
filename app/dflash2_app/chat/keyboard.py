"""The keyboard while a reply is written: what is typed waits for the next prompt and is not shown amid the reply.

Owns: the terminal's mode for that time. Ctrl-C keeps working. Off a terminal it does nothing.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any


class QuietKeyboard:
    """Switches echo off and on again."""

    def __init__(self, descriptor: int | None):
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        if descriptor is not None:
            atexit.register(self.release)  # a shell must get its echo back whatever happens

    def hold(self) -> None:
        """Keep what is typed for later."""
        if self._descriptor is None or self._before is not None:
            return
        import termios

        self._before = termios.tcgetattr(self._descriptor)
        quiet = list(self._before)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        quiet[3] |= termios.NOFLSH  # Ctrl-C stops the reply; it must not throw away what was typed meanwhile
        quiet[0] &= ~termios.ICRNL  # Enter must reach the next prompt as Enter, not as a line end to insert
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, quiet)

    def release(self) -> None:
        """Back to what it was."""
        if self._before is None:
            return
        import termios

        before, self._before = self._before, None
        termios.tcsetattr(self._descriptor or 0, termios.TCSADRAIN, before)


def quiet_keyboard() -> QuietKeyboard:
    """The keyboard of this process; one that does nothing where there is no terminal to read from."""
    return QuietKeyboard(sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None)
