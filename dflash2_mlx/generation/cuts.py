"""A text and the tokens it is cut into: one text may be cut in many ways, and a model reads what it was given.

Owns: where each token ends in a text, and giving the beginning of a text the tokens that were read already. Knows
nothing of chats or sessions. Invariant: two cuts of one text are joined only where a token of both ends, so nothing is
lost or doubled there, and neither part is encoded on its own: SentencePiece's tokenizers put a blank in front of every
text they encode, and leave out a blank in front of one they decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .text import TextStream, Tokenizer, common_length

_CONTEXT = 16  # tokens in front of others that decide how these are decoded; one does, where it is no part of a word


@dataclass(frozen=True)
class Cut:
    """A text in tokens.

    `ends` holds for each token where it ends in the text; None where that is inside a character or not known exactly,
    and for a token without text of its own.
    """

    text: str
    ids: list[int]
    ends: list[int | None]

    def first(self, count: int) -> Cut:
        """The first `count` tokens, less those at the end whose end is not known."""
        while count and self.ends[count - 1] is None:
            count -= 1
        text = self.text[: self.ends[count - 1]] if count else ""
        return Cut(text, self.ids[:count], self.ends[:count])


def cut_text(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> Cut | None:
    """Where these tokens end in the text that they encode; None when that cannot be found out.

    Args:
        tokenizer: an engine's.
        text: as it was encoded, without tokens added to it.
        ids: what it was encoded to.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        encoding = backend.encode(text, add_special_tokens=False)
        if list(encoding.ids) == list(ids):
            return Cut(text, list(ids), _offset_ends(encoding.offsets, len(text)))
    cut = cut_tokens(tokenizer, ids)
    return cut if cut.text == text else None


def cut_tokens(tokenizer: Tokenizer, ids: Sequence[int], left: Sequence[int] = ()) -> Cut:
    """The text that tokens add behind those on their left, and where each ends in it."""
    context = list(left[-_CONTEXT:])
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in context]
    before = len(tokenizer.decode(context)) if context else 0
    length = sum(map(len, pieces))
    ends: list[int | None] = []
    for token in ids:
        piece = stream.push(token)
        pieces.append(piece)
        length += len(piece)
        ends.append(length - before if piece and length > before else None)
    pieces.append(stream.finish())
    if ends and pieces[-1]:
        ends[-1] = length + len(pieces[-1]) - before
    return Cut("".join(pieces)[before:], list(ids), ends)


def with_reply(tokenizer: Tokenizer, prompt: Cut, reply: Sequence[int]) -> list[Cut]:
    """A prompt and the tokens a model wrote behind it, with each text that these may stand for.

    The blank that a reply's first token begins with may be of the text, or none: alone the reply is decoded without
    it, and so a chat template gets it.
    """
    if not reply:
        return [prompt]
    behind = cut_tokens(tokenizer, reply, prompt.ids)
    alone = str(tokenizer.decode(list(reply)))
    texts = [behind.text]
    if alone != behind.text and behind.text.endswith(alone):
        texts.append(alone)
    return [_appended(prompt, behind, text) for text in texts]


def joined(read: Cut, whole: Cut) -> Cut:
    """The text of `whole`, begun in the tokens of `read` as far as the texts are one and a token of both ends."""
    same = common_length(read.text, whole.text)
    places = {end: at for at, end in enumerate(whole.ends, start=1) if end is not None}
    for count in range(len(read.ids), 0, -1):
        end = read.ends[count - 1]
        if end is not None and end <= same and end in places:
            at = places[end]
            return Cut(whole.text, read.ids[:count] + whole.ids[at:], read.ends[:count] + whole.ends[at:])
    return whole


def continued(tokenizer: Tokenizer, read: Cut, text: str) -> Cut | None:
    """The text in all tokens of `read` and an encoding of what follows; None where that would be another text."""
    if not read.ids or not text.startswith(read.text):
        return None
    rest = text[len(read.text) :]
    ids = tokenizer.encode(rest, add_special_tokens=False)
    behind = cut_tokens(tokenizer, ids, read.ids)
    return _appended(read, behind, rest) if behind.text == rest else None


def _appended(cut: Cut, behind: Cut, text: str) -> Cut:
    """Two cuts as one, where the second one's text may lack what its first token begins with."""
    moved = len(cut.text) + len(text) - len(behind.text)
    ends = [end + moved if end is not None and end + moved > len(cut.text) else None for end in behind.ends]
    return Cut(cut.text + text, [*cut.ids, *behind.ids], [*cut.ends, *ends])


def _offset_ends(offsets: Sequence[tuple[int, int]], length: int) -> list[int | None]:
    """Ends of tokens by the tokenizer's offsets, where the next token begins just there.

    Elsewhere they are not exact: tokens that share a character overlap, and some tokenizers leave blanks out of
    offsets, so that it is not told which token they are of.
    """
    following = [length]  # where what follows a token begins
    for start, _ in reversed(offsets):
        following.append(min(start, following[-1]))
    following.reverse()
    ends: list[int | None] = []
    reached = 0
    for (_, end), start in zip(offsets, following[1:], strict=True):
        ends.append(end if end > reached and end == start else None)
        reached = max(reached, end)
    return ends
