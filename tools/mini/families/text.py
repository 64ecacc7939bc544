"""Working with text: sorting, JSON extraction, tables, small rewrites."""

from __future__ import annotations

import json
import random

from ..sample import Check, Sample, polite, single
from ..words import CITIES, COLOURS, ITEMS, JOBS, NAMES, SURNAMES, THINGS


def sorting(rng: random.Random) -> Sample:
    numbers = rng.random() < 0.5
    count = rng.randint(4, 7)
    items = [str(n) for n in rng.sample(range(1, 100), count)] if numbers else rng.sample(THINGS, count)
    falling = rng.random() < 0.35
    ordered = sorted(items, key=(lambda item: int(item)) if numbers else None, reverse=falling)
    order = ("from largest to smallest" if falling else "from smallest to largest") if numbers else (
        "in reverse alphabetical order" if falling else "alphabetically")  # fmt: skip
    ask = rng.choice(("Sort these {0} {1}: {2}", "Put these {0} in order {1}: {2}", "Arrange {2} {1}."))
    if not numbers:
        ask = rng.choice(("Sort these {0} {1}: {2}", "Order these {0} {1}: {2}", "Arrange {2} {1}."))
    user = ask.format("numbers" if numbers else "words", order, ", ".join(items))
    answer = ", ".join(ordered)
    thought = f"There are {count} items; the first is {ordered[0]} and the last is {ordered[-1]}."
    if rng.random() < 0.3:
        user += "." * (not user.endswith(".")) + " One per line."
        answer = "\n".join(f"{place}. {item}" for place, item in enumerate(ordered, start=1))
    return single("sorting", polite(rng, user), answer, thought, Check("exact", answer))


def _person(rng: random.Random) -> dict[str, object]:
    return {
        "name": f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}",
        "age": rng.randint(18, 80),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
    }


_PEOPLE = (
    "{name} is {age} years old, lives in {city} and works as a {job}.",
    "{name}, a {age}-year-old {job}, lives in {city}.",
    "My friend {name} from {city} is {age} and a {job}.",
    "In {city} there is a {job} called {name}, aged {age}.",
)
_ORDERS = (
    "{name} ordered {count} {item} in {colour} for {price} dollars.",
    "Order: {count} {colour} {item}, {price} dollars, customer {name}.",
    "{name} wants to buy {count} {item}. The colour is {colour} and the price is {price} dollars.",
)


def extraction(rng: random.Random) -> Sample:
    if rng.random() < 0.55:
        record = _person(rng)
        text = rng.choice(_PEOPLE).format(**record)
    else:
        record = {
            "name": rng.choice(NAMES), "count": rng.randint(2, 60), "item": rng.choice(ITEMS),
            "colour": rng.choice(COLOURS), "price": rng.randint(3, 99),
        }  # fmt: skip
        text = rng.choice(_ORDERS).format(**record)
    keys = list(record)
    if rng.random() < 0.5:
        keys = rng.sample(keys, rng.randint(2, len(keys)))
    ask = rng.choice(
        ("Extract {keys} as JSON: {text}", "{text} Give me {keys} as JSON.",
         "Return a JSON object with {keys}.\n\n{text}", "Turn this into JSON with the keys {keys}: {text}")
    )  # fmt: skip
    user = ask.format(keys=_list(keys), text=text)
    answer = "```json\n" + json.dumps({key: record[key] for key in keys}, indent=2) + "\n```"
    thought = f"The keys are {_list(keys)}. I copy the values from the text."
    return single("extraction", user, answer, thought, Check("json", {key: record[key] for key in keys}))


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def table(rng: random.Random) -> Sample:
    people = [_person(rng) for _ in range(rng.randint(2, 4))]
    keys = ["name", *rng.sample(["age", "city", "job"], rng.randint(1, 3))]
    rows = "; ".join(", ".join(str(person[key]) for key in keys) for person in people)
    user = rng.choice(("Make a table with the columns {}: {}", "Write this as a Markdown table ({}): {}"))
    user = user.format(", ".join(keys), rows)
    lines = ["| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(str(person[key]) for key in keys) + " |" for person in people]
    answer = "\n".join(lines)
    thought = f"The table has {len(keys)} columns and {len(people)} rows."
    return single("table", polite(rng, user), answer, thought, Check("exact", answer))


def rewriting(rng: random.Random) -> Sample:
    words = rng.sample(THINGS, rng.randint(3, 6))
    kind = rng.randrange(5)
    listed = ", ".join(words)
    if kind == 0:
        user, answer = f"Write these words in capital letters: {listed}", ", ".join(word.upper() for word in words)
        thought = "Each word in capitals, in the same order."
    elif kind == 1:
        user, answer = f"Reverse the order of this list: {listed}", ", ".join(reversed(words))
        thought = "Start with the last word and go back."
    elif kind == 2:
        user = f"How many words are in this list: {listed}?"
        answer, thought = f"There are **{len(words)}** words in the list.", "I count them one by one."
        return single("rewriting", user, answer, thought, Check("number", len(words)))
    elif kind == 3:
        user = rng.choice((f"Make a bullet list of {listed}.", f"Write {listed} as a bullet list."))
        answer, thought = "\n".join(f"- {word}" for word in words), "One line for each word."
    else:
        place = rng.randint(1, len(words))
        ordinal = ("first", "second", "third", "fourth", "fifth", "sixth")[place - 1]
        user = f"What is the {ordinal} word in this list: {listed}?"
        answer, thought = f"The {ordinal} word is **{words[place - 1]}**.", f"I count to {place}."
        return single("rewriting", user, answer, thought, Check("bold", words[place - 1]))
    return single("rewriting", polite(rng, user), answer, thought, Check("exact", answer))


def echo(rng: random.Random) -> Sample:
    """Say a text again: the plainest form of reading what was written."""
    pool = (*THINGS, *NAMES, *CITIES, *JOBS, *ITEMS, *COLOURS, *SURNAMES)
    words = [
        str(rng.randint(0, 999)) if rng.random() < 0.2
        else "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 5))) if rng.random() < 0.2
        else rng.choice(pool)
        for _ in range(rng.randint(4, 24))
    ]  # fmt: skip
    said = rng.choice((" ", ", ", " ", "-")).join(words)
    ask = rng.choice(("Repeat this: {}", "Say again: {}", "Repeat exactly: {}", "Write this once more: {}", "Echo: {}"))
    return single("echo", ask.format(said), said, "I write the same words again.", Check("exact", said))


def lookup(rng: random.Random) -> Sample:
    """Find the value that belongs to a key."""
    count = rng.randint(3, 8)
    keys = rng.sample(rng.choice((NAMES, CITIES, THINGS)), count)
    kind = rng.randrange(3)
    values = [str(value) for value in rng.sample(range(1, 100), count)] if kind == 0 else rng.sample(
        COLOURS if kind == 1 else JOBS, count)  # fmt: skip
    what = ("number", "colour", "job")[kind]
    place = rng.randrange(count)
    listed = rng.choice((", ", "\n", "; ")).join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    ask = rng.choice(
        ("{1}\n\nWhat is the {0} of {2}?", "Which {0} belongs to {2}?\n\n{1}", "{1}. Tell me the {0} of {2}.")
    )
    user = ask.format(what, listed, keys[place])
    answer = f"The {what} of {keys[place]} is **{values[place]}**."
    return single(
        "lookup", user, answer, f"In the list, {keys[place]} has {values[place]}.", Check("bold", values[place])
    )
