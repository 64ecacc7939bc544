"""Load a drafter that `dflash2-mlx train` wrote with the authors' package, and draft the same blocks with both.

    python tools/check_with_authors.py FOLDER

Needs the authors' `dflash` 0.1.0 beside this repository on PYTHONPATH; it runs with the mlx and mlx-lm used here. Says
what differs, and ends with 1 where hidden rows are further apart than rounding or a proposed token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash2_mlx.checkpoints.drafter_weights import load_drafter_weights
from dflash2_mlx.drafters.dflash2.config import DrafterConfig

TOLERANCE = 5e-4
CONTEXTS = (1, 5, 23)


class Tables:
    """A random embedding and head, as a target lends them."""

    def __init__(self, vocab: int, hidden: int):
        keys = mx.random.split(mx.random.key(3), 2)
        self.embedding = 0.3 * mx.random.normal((vocab, hidden), key=keys[0])
        self.matrix = mx.random.normal((vocab, hidden), key=keys[1]) / hidden**0.5

    def embed(self, ids: mx.array) -> mx.array:
        return self.embedding[ids]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.matrix.T


def load_theirs(folder: Path, tables: Tables) -> object:
    """By their own loader, which asks the Hub where the files are: here they are already."""
    from dflash import model_mlx as authors
    from mlx import nn

    def already_here(*_: object, **__: object) -> str:
        return str(folder)

    authors.snapshot_download = already_here
    drafter = authors.load_draft(str(folder))
    drafter.set_dtype(mx.float32)

    class Target(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            vocab, hidden = tables.embedding.shape
            self.embed_tokens = nn.Embedding(vocab, hidden)
            self.embed_tokens.weight = tables.embedding
            self.lm_head = nn.Linear(hidden, vocab, bias=False)
            self.lm_head.weight = tables.matrix

    return drafter.bind(Target())


def compare(folder: Path) -> bool:
    config = DrafterConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    tables = Tables(config.vocab_size, config.hidden_size)
    ours = load_drafter_weights(folder, config, dtype=mx.float32)
    theirs = load_theirs(folder, tables)
    size = len(config.target_layer_ids) * config.hidden_size
    fine = True
    for rows in CONTEXTS:
        taps = mx.random.normal((1, rows, size), key=mx.random.key(rows))
        anchor = mx.array([rows % config.vocab_size], dtype=mx.int32)
        context = ours.new_context()
        ours.append_context(taps, context, rows)
        mine = ours.hidden(ours.block_embeddings(anchor, config.block_size, tables), context)[:, 1:]
        tokens = ours.propose(anchor, context, config.block_size, tables).tokens
        ids = mx.array([[anchor.item()] + [config.mask_token_id] * (config.block_size - 1)])
        hidden = theirs.hidden_states(ids, taps, theirs.make_cache())[:, 1:]
        logits = theirs.compute_logits(hidden)
        if config.version == 2:
            proposed = theirs.candidate_selector.select(hidden, logits, anchor, 0.0)[0]
        else:
            proposed = mx.argmax(logits, axis=-1)
        apart = float(np.abs(np.array(mine) - np.array(hidden)).max())
        same = np.array_equal(np.array(tokens), np.array(proposed))
        fine = fine and same and apart <= TOLERANCE
        print(f"context {rows}: hidden rows {apart:.1e} apart, proposals {'equal' if same else 'differ'}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if not (folder / "config.json").is_file():
        print(f"{folder}: expected a folder with a drafter", file=sys.stderr)
        return 2
    return 0 if compare(folder) else 1


if __name__ == "__main__":
    sys.exit(main())
