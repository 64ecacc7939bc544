"""Real tokenizers, made in the tests: byte-level BPE, and SentencePiece's ways with blanks and bytes.

SentencePiece's vocabularies write a blank as "▁" and put one in front of a text. `STYLES` are the ways in which files
of today say so: "legacy" (Llama 2) puts it in front of every text between special tokens, by the normalizer; the others
are schemes of the Metaspace pre-tokenizer.
"""

from __future__ import annotations

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

STYLES = ("legacy", "first", "always", "never")
BLANK = "\u2581"
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
WORDS = "the cat sat on mat and dog ran Hello world how are you today fine thanks".split()


def byte_token(byte: int) -> str:
    """The name of a byte's token in a byte-fallback vocabulary."""
    return f"<0x{byte:02X}>"


def sentencepiece_tokenizer(style: str, model: str = "unigram", template: str | None = None) -> Any:
    """A byte-fallback tokenizer as `load` reads it: characters and words, whose tokens fit tiny models, and bytes.

    Args:
        style: one of STYLES.
        model: "unigram" or "bpe".
        template: the chat template.
    """
    characters = sorted({*"".join(WORDS), *".,?\n", BLANK})
    pieces = [BLANK + word for word in WORDS] + WORDS
    if model == "unigram":
        scores = dict.fromkeys(SPECIAL, 0.0) | dict.fromkeys(characters, -10.0)
        scores |= {piece: -8.0 for piece in pieces if piece not in scores}
        scores |= {byte_token(byte): -30.0 for byte in range(256)}
        tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=0, byte_fallback=True))
    else:
        merges, known = [], [*SPECIAL, *characters]
        for piece in pieces:
            for end in range(2, len(piece) + 1):
                merges.append((piece[: end - 1], piece[end - 1]))
                known.append(piece[:end])
        known += map(byte_token, range(256))
        vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys(known))}
        tokenizer = Tokenizer(
            models.BPE(vocabulary, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
    if style == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme=style, split=False)
    strip = [] if style == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
    )
    return TokenizerWrapper(fast)


def byte_level_tokenizer(*, trim_offsets: bool = False, template: str | None = None) -> Any:
    """A byte-level BPE tokenizer of single bytes and a few merges; a byte's token id is not the byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: at for at, sign in enumerate(alphabet)}
    merges = [("c", "a"), ("ca", "t"), (".", "\u010a"), ("\u0120", "cat")]  # U+010A is a line end, U+0120 a blank
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if trim_offsets:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return TokenizerWrapper(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
        )
    )
