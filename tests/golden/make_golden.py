"""Make the golden vectors with the authors' package.

Run from the repository root, in an environment of its own::

    pip install dflash==0.1.0 torch==2.13.0 transformers==5.15.0
    pip install "mlx[cpu]==0.32.0" mlx-lm==0.31.3          # their MLX back-end
    python -m tests.golden.make_golden

For every case of ``variants.py`` it writes a checkpoint in the published
layout and ``vectors.safetensors``: inputs, then for each step the final-norm
hidden rows, the logits of rows 1.., and the greedy proposal.  The vectors are
those of the Transformers back-end in float32.  The MLX back-end and the
float64 reference run on the same inputs; how far each is from the vectors goes
into ``manifest.json``, and a step where a back-end departs from the
specification is listed there by number.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.golden import run_mlx, run_torch
from tests.golden.variants import VARIANTS, Variant, json_text, random_checkpoint, random_inputs
from tests.reference.drafter import ReferenceDrafter

FOLDER = Path(__file__).parent
TOLERANCE = 1e-4
# A proposal is only worth comparing when no choice in it is nearly a tie.
SMALLEST_MARGIN = 2e-3

# What the distances in the manifest showed. The tests follow the specification.
AUTHORS_DEPART = (
    "MLX back-end, sliding layers: a one-row append to a full context overwrites the oldest row in place, but the "
    "mask still takes the rows to be in order of time, so block rows 1.. lose context rows they should see and see "
    "one they should not. Appends of several rows restore the order.",
    "MLX back-end, sliding layers: rows of one block always see each other, also when they are a window or more "
    "apart (case wide_block). Equal to the specification while the block is narrower than the window.",
    "Transformers back-end: no departure in any case. Without use_sliding_window true in config.json it drops the "
    "window altogether (Transformers' Qwen3 config does), so every sliding case here carries that key.",
)

StepOutput = dict[str, np.ndarray]


def run_reference(variant: Variant, weights: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> list[StepOutput]:
    """Recompute every step from its whole context in float64."""
    drafter = ReferenceDrafter(variant.config, weights, inputs["embedding"], inputs["head"])
    outputs = []
    context = 0
    for step, anchor in zip(variant.steps, inputs["anchors"], strict=True):
        context += step.rows
        output = drafter.forward(inputs["target_hidden"][:context], int(anchor), step.width)
        outputs.append(
            {
                "hidden": output.hidden,
                "logits": output.logits,
                "proposal": drafter.greedy_proposal(output, int(anchor)),
                "margin": np.array(smallest_margin(drafter, output, int(anchor))),
            }
        )
    return outputs


def smallest_margin(drafter: ReferenceDrafter, output: Any, anchor: int) -> float:
    """Distance to the nearest other outcome: choice made, or set of candidates."""
    if not drafter.version_2:
        ordered = np.sort(output.logits, axis=-1)
        return float((ordered[:, -1] - ordered[:, -2]).min())
    walk = drafter.propose(output, anchor)
    scores = np.sort(walk.scores, axis=-1)
    logits = np.sort(output.logits, axis=-1)
    top_k = walk.candidates.shape[1]
    cut = logits[:, -top_k] - logits[:, -top_k - 1]
    return float(min((scores[:, -1] - scores[:, -2]).min(), cut.min()))


def compare(golden: list[StepOutput], other: list[StepOutput]) -> dict[str, Any]:
    """Largest differences, and the steps where the other one departs."""
    report: dict[str, Any] = {"hidden": 0.0, "logits": 0.0, "departing_steps": []}
    for index, (left, right) in enumerate(zip(golden, other, strict=True)):
        departs = not np.array_equal(left["proposal"], right["proposal"])
        for name in ("hidden", "logits"):
            distance = float(np.abs(left[name] - right[name]).max())
            departs = departs or distance > TOLERANCE
            report[name] = max(report[name], float(f"{distance:.2e}"))
        if departs:
            report["departing_steps"].append(index)
    return report


def selector_changes(golden: list[StepOutput]) -> int:
    """Proposed tokens that differ from the largest logit of their row."""
    return sum(int(np.sum(step["proposal"] != np.argmax(step["logits"], axis=-1))) for step in golden)


def make_case(variant: Variant) -> dict[str, Any]:
    """Write one case and return its entry of the manifest."""
    folder = FOLDER / variant.name
    folder.mkdir(exist_ok=True)
    weights, inputs = random_checkpoint(variant), random_inputs(variant)
    (folder / "config.json").write_text(json_text(variant.config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    golden = run_torch.run(folder, variant, inputs)
    reference = run_reference(variant, weights, inputs)
    margin = min(float(step["margin"]) for step in reference)
    if margin < SMALLEST_MARGIN:
        raise SystemExit(f"{variant.name}: a choice is nearly a tie ({margin:.1e}); take another seed")
    vectors = dict(inputs)
    for index, step in enumerate(golden):
        vectors |= {f"step{index}.{name}": np.ascontiguousarray(values) for name, values in step.items()}
    save_file(vectors, folder / "vectors.safetensors")
    return {
        "about": variant.about,
        "seed": variant.seed,
        "context_rows": [step.rows for step in variant.steps],
        "widths": [step.width for step in variant.steps],
        "smallest_margin": float(f"{margin:.2e}"),
        "tokens_changed_by_the_selector": selector_changes(golden),
        "distance_of_the_float64_reference": compare(golden, reference),
        "distance_of_torch_in_one_piece": compare(golden, run_torch.run_one_piece(folder, variant, inputs)),
        "distance_of_the_mlx_back_end": compare(golden, run_mlx.run(variant, weights, inputs)),
        "distance_of_mlx_in_one_piece": compare(golden, run_mlx.run_one_piece(variant, weights, inputs)),
    }


def main() -> None:
    """Make all cases and the manifest."""
    manifest = {
        "made_with": {name: version(name) for name in ("dflash", "torch", "transformers", "mlx", "mlx-lm", "numpy")},
        "dtype": "float32",
        "vectors_from": "the Transformers back-end, context appended piece by piece",
        "tolerance": {"hidden": TOLERANCE, "logits": TOLERANCE, "proposal": "identical"},
        "where_the_authors_depart_from_the_specification": AUTHORS_DEPART,
        "cases": {variant.name: make_case(variant) for variant in VARIANTS},
    }
    (FOLDER / "manifest.json").write_text(json_text(manifest))


if __name__ == "__main__":
    main()
