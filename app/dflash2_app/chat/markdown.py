"""Cuts streamed Markdown into blocks that are finished and one that still grows, and draws a block.

Owns: the look of Markdown, and the decision that a block (paragraph, list, table, fence ...) can change no more, so
that it is drawn once and for all. Invariant: finished blocks and tail joined are the text. The parser is the one that
draws, so both agree.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement, TextElement
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

# The terminal's own colours, without a background: readable on light and on dark.
_CODE_THEME = "ansi_dark"


class _Heading(TextElement):
    """A heading at the left in bold; rich's own ones are centred and boxed."""

    style_name = "bold"

    def on_enter(self, context: Any) -> None:
        self.text = Text()
        context.enter_style(self.style_name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Code(CodeBlock):
    """Code, indented and without rich's empty lines around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        source = str(self.text).rstrip()
        yield Padding(Syntax(source, self.lexer_name, theme=_CODE_THEME, word_wrap=True), (0, 0, 0, 2))


class ChatMarkdown(Markdown):
    """Markdown as a chat shows it: quiet headings, addresses spelled out instead of hidden in links."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, source: str):
        super().__init__(source, code_theme=_CODE_THEME, hyperlinks=False)


class LineStream:
    """As `BlockStream`, for text that is no Markdown: its blocks are whole lines."""

    def __init__(self) -> None:
        self.tail = ""

    def push(self, text: str) -> list[str]:
        """Add text; returns the lines it finished, as one block."""
        whole, newline, self.tail = (self.tail + text).rpartition("\n")
        return [whole + newline] if newline else []

    def finish(self) -> str:
        """The last line."""
        rest, self.tail = self.tail, ""
        return rest


class BlockStream:
    """Takes text and gives out the source of each block once nothing can join it any more."""

    def __init__(self) -> None:
        self._text = ""

    @property
    def tail(self) -> str:
        """The block that still grows."""
        return self._text

    def push(self, text: str) -> list[str]:
        """Add text; returns the blocks it finished."""
        self._text += text
        if "\n" not in text:
            return []
        # A line that is not complete may yet turn out to be anything: "2" before it becomes "2. next item".
        complete = self._text[: self._text.rfind("\n") + 1]
        lines = [line + "\n" for line in complete.split("\n")[:-1]]  # the parser knows no other line ends
        # Every block but the last has been followed by another one, which ended it.
        begins = [token.map[0] for token in Markdown(complete).parsed if token.level == 0 and token.map]
        begins = sorted(set(begins))[1:]
        blocks, before = [], 0
        for begin in begins:
            blocks.append("".join(lines[before:begin]))
            before = begin
        self._text = self._text[sum(map(len, blocks)) :]
        return blocks

    def finish(self) -> str:
        """The last block."""
        rest, self._text = self._text, ""
        return rest
