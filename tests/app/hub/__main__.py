"""Serves a few small models by hand: `python -m tests.app.hub [BYTES_OF_A_LARGE_FILE]`, then export what it prints."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.tiny import TARGET_CONFIGS, save_drafter, save_target

from .server import Hub

MINI = Path(__file__).resolve().parents[3] / "dflash2_mlx" / "data" / "mini"


def main() -> None:
    """Publish, print the environment, and serve until Ctrl-C."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000_000
    with tempfile.TemporaryDirectory() as folder, Hub() as hub:
        top = Path(folder)
        hub.add("tiny/target-4bit", save_target(top / "t", "qwen3_5", bits=4, tokenizer=MINI / "target"),
                license="apache-2.0", tags=["mlx"], downloads=120, likes=7)  # fmt: skip
        hub.add("tiny/drafter", save_drafter(top / "d"), license="cc-by-nc-4.0", tags=["dflash"], downloads=9)
        config = json.dumps(TARGET_CONFIGS["qwen3"]).encode()
        hub.add("tiny/large", {"config.json": config, "model-00001-of-00002.safetensors": bytes(size),
                               "model-00002-of-00002.safetensors": b"\1" * size}, tags=["mlx"])  # fmt: skip
        hub.add("tiny/gated", {"config.json": config, "model.safetensors": b"x"}, gated=True, tags=["mlx"])
        print(f"export HF_ENDPOINT={hub.endpoint} HF_HUB_DISABLE_XET=1", flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
