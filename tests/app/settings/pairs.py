"""A tiny pair in the announced one's layout: a 4-bit Qwen3.5-shaped target with a chat template, a DFlash 2 drafter."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tiny import VOCAB, save_drafter, save_target

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if enable_thinking %}(think){% endif %}[assistant]"
)


def save_tokenizer(folder: Path) -> None:
    """One token per ASCII character; the last id ends a reply."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {chr(code): code - 32 for code in range(33, 127)} | {"Ġ": 0, "Ċ": 95}
    vocabulary |= {f"<{number}>": number for number in range(96, VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": f"<{VOCAB - 1}>",
        "chat_template": TEMPLATE,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_pair(folder: Path) -> tuple[Path, Path]:
    """Write target and drafter; the sizes allow quantization in groups of 64."""
    target = save_target(folder / "Tiny-27B-4bit", "qwen3_5", bits=4)
    save_tokenizer(target)
    drafter = save_drafter(folder / "Tiny-27B-DFlash2", block_size=8, intermediate_size=128)
    return target, drafter
