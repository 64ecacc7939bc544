#!/usr/bin/env python3
"""Write chat prompts to train a drafter on, for a target that answers them itself (`dflash2-mlx train --regenerate`).

    python tools/chat_prompts.py --count 2000 --out train.jsonl --held-out validation.jsonl

A prompt is a request about a subject; subjects of the held-out file occur in no training prompt.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SUBJECTS = """
photosynthesis; the water cycle; gravity; black holes; volcanoes; earthquakes; the moon; the solar system; rainbows;
thunderstorms; magnets; electricity; batteries; solar panels; wind power; steam engines; bicycles; airplanes;
submarines; trains; electric cars; bridges; computers; the internet; keyboards; search engines; operating systems;
databases; programming; Python lists; sorting algorithms; recursion; encryption; passwords; robots; machine
learning; chess; football; tennis; swimming; running; yoga; hiking; camping; gardening; tomatoes; roses; bees;
butterflies; ants; spiders; whales; dolphins; penguins; elephants; cats; dogs; horses; owls; dinosaurs; fossils; the
human heart; sleep; vitamins; healthy breakfasts; bread baking; pasta; coffee; tea; chocolate; cheese; soup; salads;
cooking rice; saving water; recycling; climate change; forests; deserts; rivers; islands; mountains; the ocean;
coral reefs; the Roman Empire; ancient Egypt; the printing press; the Renaissance; castles; money; inflation;
budgets; job interviews; public speaking; time management; learning languages; reading books; poetry; detective
stories; fairy tales; painting; photography; the piano; guitars; jazz; theatre; museums; travel; trains in Japan;
city parks; public libraries; schools; homework; teamwork; friendship; kindness; patience; happiness; memory;
curiosity; fractions; percentages; triangles; prime numbers; probability; averages; maps; calendars; clocks;
mirrors; glass; paper; plastic; steel; wool; cotton; soap; candles; umbrellas
"""

REQUESTS = """
Explain {s} in simple terms.|What are three interesting facts about {s}?|Write a short poem about {s}.|Why does {s}
matter?| Give me five tips about {s}.|Write a short paragraph about {s}.|What should a beginner know about {s}?|
Describe {s} to a ten year old child.|Make a bullet list of the most important things about {s}.| Write a short
story in which {s} plays a role.|What are common mistakes people make about {s}?| How would you start a talk about
{s}?|Write an email to a friend about {s}.|What is the history of {s}?| List some pros and cons of {s}.|Write three
quiz questions about {s} with answers.|Summarize {s} in two sentences.| How does {s} work?|What questions can I ask
an expert about {s}?|Write a title and an introduction for an article about {s}.| Compare {s} with something
similar.|Suggest a project for school about {s}.|What surprised people about {s}?| Write a dialogue between two
friends about {s}.|Plan a week of learning about {s}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="training prompts at most")
    parser.add_argument("--held-out-count", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    subjects = [" ".join(subject.split()) for subject in SUBJECTS.split(";")]
    requests = [" ".join(request.split()) for request in REQUESTS.split("|")]
    rng.shuffle(subjects)
    kept = subjects[: len(subjects) // 8]
    for path, chosen, count in (
        (arguments.out, subjects[len(kept) :], arguments.count),
        (arguments.held_out, kept, arguments.held_out_count),
    ):
        prompts = [request.format(s=subject) for subject in chosen for request in requests]
        rng.shuffle(prompts)
        lines = (json.dumps({"messages": [{"role": "user", "content": prompt}]}) for prompt in prompts[:count])
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
