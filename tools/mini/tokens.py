"""The tokenizer: byte-level BPE learnt from the corpus, digits apart, and the chat template."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import training

VOCABULARY = 2048
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"
_EXAMPLES = 20_000


def make_tokenizer(folder: Path, seed: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, in Hugging Face's format."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[*CONTROL, *MARKS], show_progress=True,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    texts = (text for item in islice(training(seed), _EXAMPLES) for text in _texts(item))
    tokenizer.train_from_iterator(texts, trainer)
    trained = json.loads(tokenizer.to_str())
    for token in trained["added_tokens"]:  # marks are text that a reader may see
        token["special"] = token["content"] in CONTROL
    folder.mkdir(parents=True, exist_ok=True)
    Tokenizer.from_str(json.dumps(trained)).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(item: dict[str, Any]) -> list[str]:
    """What of a conversation the vocabulary is learnt from."""
    found = [json.dumps(tool["function"]) for tool in item["tools"] or []]
    for message in item["messages"]:
        found += [message["content"], message.get("reasoning_content", "")]
        found += [json.dumps(call["function"]) for call in message.get("tool_calls", [])]
    return found


def encode(tokenizer: Any, item: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """Tokens of a conversation, and which of them the model has to produce.

    Every reply counts, but with thinking on only those after the last question: the template leaves earlier thoughts
    out, and a reply without its thought is none that thinking would give.
    """
    messages, thinking = item["messages"], item["thinking"]
    options = {"tools": item["tools"], "tokenize": False, "enable_thinking": thinking}
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    whole = tokenizer.apply_chat_template(messages, **options)
    pieces: list[tuple[str, bool]] = []
    done = 0
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or (thinking and place < last):
            continue
        start = len(tokenizer.apply_chat_template(messages[:place], add_generation_prompt=True, **options))
        end = whole.index("<|im_end|>", start) + len("<|im_end|>")
        pieces += [(whole[done:start], False), (whole[start:end], True)]
        done = end
    pieces.append((whole[done:], False))
    tokens: list[int] = []
    learned: list[bool] = []
    for text, reply in pieces:
        ids = tokenizer.encode(text, add_special_tokens=False)
        tokens += ids
        learned += [reply] * len(ids)
    return tokens, learned
