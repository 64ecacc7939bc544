"""Where messages come from: an input line with history and completion, or the lines of a pipe.

Owns: keys, prompt and decoding. Knows nothing of what a line means.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ..errors import UsageError

LEAVE_HINT = "Ctrl-C again or Ctrl-D leaves"


class Reader(Protocol):
    """A source of messages."""

    def read(self) -> str | None:
        """The next message, None when there are no more.

        Raises:
            UsageError: the input is not text.
        """


class LineReader:
    """One message per line, from a pipe, a file, or a terminal that is no more than a typewriter."""

    def __init__(self, *, prompt: str = ""):
        self._prompt = prompt
        self._number = 0
        self._warned = False

    def read(self) -> str | None:
        raw = self._line()
        self._warned, self._number = False, self._number + 1
        try:
            return raw.decode("utf-8").rstrip("\r\n") if raw else None
        except UnicodeDecodeError:
            raise UsageError(
                f"standard input: got bytes that are not UTF-8 in line {self._number}, expected UTF-8 text"
            ) from None

    def _line(self) -> bytes:
        while True:
            if self._prompt:
                print(self._prompt, end="", file=sys.stderr, flush=True)
            try:
                return sys.stdin.buffer.readline()
            except KeyboardInterrupt:
                if not self._prompt:
                    raise
                print(file=sys.stderr)
                if self._warned:
                    return b""
                self._warned = True
                print(LEAVE_HINT, file=sys.stderr)


class TerminalReader:
    """An input line: several lines long if wanted, with the history of earlier runs and completion of commands.

    Args:
        history: the file that keeps what was typed; None keeps it for this run only.
        complete: what may stand in place of the last word of a line that begins with a slash.
    """

    def __init__(self, history: Path | None, complete: Callable[[str], Iterable[str]], *, colour: bool = True):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.styles import Style

        self._warned = False
        kept = InMemoryHistory() if history is None else FileHistory(str(history))
        self._session: Any = PromptSession(
            history=kept,
            completer=_completer(complete),
            complete_while_typing=True,
            key_bindings=_keys(complete),
            multiline=True,
            prompt_continuation=lambda width, number, wrapped: " " * width,
            reserve_space_for_menu=4,
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict({"prompt": "bold ansicyan", "hint": "ansibrightblack"} if colour else {}),
            enable_history_search=False,
        )

    def read(self) -> str | None:
        while True:
            try:
                text = self._session.prompt([("", "\n"), ("class:prompt", _sign())])
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._warned:
                    return None
                self._warned = True
                print(LEAVE_HINT, flush=True)
                continue
            self._warned = False
            return str(text)


def _sign() -> str:
    return "› " if (sys.stdout.encoding or "").lower().startswith("utf") else "> "


def _keys(complete: Callable[[str], Iterable[str]]) -> Any:
    """Enter sends; Ctrl-J, Alt-Enter or a backslash before Enter begin a new line; Ctrl-C empties a line first."""
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.bindings.completion import generate_completions

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab")
    def _(event: Any) -> None:
        line = event.current_buffer.document.text_before_cursor
        words = list(complete(line)) if line.startswith("/") else []
        if len(words) == 1:  # nothing to choose from, so no menu
            event.current_buffer.insert_text(words[0][len(line.rpartition(" ")[2]) :])
        elif words:
            generate_completions(event)

    @keys.add("c-c")
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _completer(complete: Callable[[str], Iterable[str]]) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Slash(Completer):
        def get_completions(self, document: Any, event: Any) -> Iterable[Any]:
            line = document.text_before_cursor
            if not line.startswith("/") or "\n" in line:
                return
            word = line.rpartition(" ")[2]
            for text in complete(line):
                yield Completion(text, start_position=-len(word))

    return Slash()


class Stop:
    """Whether Ctrl-C was pressed."""

    pressed = False


@contextmanager
def interrupts_ask(wanted: bool = True) -> Iterator[Stop]:
    """Turn Ctrl-C into a question while the block runs; without `wanted` it interrupts as ever."""
    stop = Stop()
    if not wanted:
        yield stop
        return

    def press(number: int, frame: FrameType | None) -> None:
        if stop.pressed:
            raise KeyboardInterrupt
        stop.pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


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
