"""Arithmetic: sums with their steps, word problems, units, times, series."""

from __future__ import annotations

import random

from ..sample import Check, Sample, polite, single
from ..words import BOXES, DAYS, ITEMS, NAMES


def add(a: int, b: int) -> tuple[list[str], int]:
    """Steps and result of a sum."""
    if a < 10 or b < 10 or (a % 10 == 0 and b % 10 == 0):
        return [f"{a} + {b} = {a + b}"], a + b
    tens, ones = a - a % 10 + b - b % 10, a % 10 + b % 10
    return [
        f"{a - a % 10} + {b - b % 10} = {tens}",
        f"{a % 10} + {b % 10} = {ones}",
        f"{tens} + {ones} = {a + b}",
    ], a + b


def subtract(a: int, b: int) -> tuple[list[str], int]:
    """Steps and result of a difference, a >= b."""
    tens, ones = b - b % 10, b % 10
    if not tens or not ones:
        return [f"{a} - {b} = {a - b}"], a - b
    return [f"{a} - {tens} = {a - tens}", f"{a - tens} - {ones} = {a - b}"], a - b


def multiply(a: int, b: int) -> tuple[list[str], int]:
    """Steps and result of a product, b of one digit or 10."""
    if a < 11 or b == 10 or a % 10 == 0:
        return [f"{a} × {b} = {a * b}"], a * b
    tens, ones = (a - a % 10) * b, a % 10 * b
    return [f"{a - a % 10} × {b} = {tens}", f"{a % 10} × {b} = {ones}", f"{tens} + {ones} = {a * b}"], a * b


def divide(product: int, b: int) -> tuple[list[str], int]:
    """Steps and result of an exact quotient."""
    a = product // b
    return [f"{a} × {b} = {product}", f"{product} ÷ {b} = {a}"], a


def operation(rng: random.Random) -> tuple[int, str, int, list[str], int]:
    """A random operation: left, sign, right, steps, result."""
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        return a, "+", b, *add(a, b)
    if kind == 1:
        a, b = sorted((rng.randint(2, 99), rng.randint(2, 99)), reverse=True)
        return a, "-", b, *subtract(a, b)
    if kind == 2:
        a, b = rng.randint(2, 49), rng.randint(2, 9)
        return a, "×", b, *multiply(a, b)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    return a * b, "÷", b, *divide(a * b, b)


def calculation(rng: random.Random) -> Sample:
    a, sign, b, steps, result = operation(rng)
    typed = {"×": rng.choice(("×", "*", "x", "times")), "÷": rng.choice(("÷", "/", "divided by"))}.get(sign, sign)
    if typed in "+-":
        typed = rng.choice((typed, {"+": "plus", "-": "minus"}[typed]))
    ask = rng.choice(
        ("What is {}?", "Calculate {}.", "How much is {}?", "{} = ?", "Work out {}.", "Tell me {}.", "Solve {}.")
    )
    user = polite(rng, ask.format(f"{a} {typed} {b}")) if not ask.startswith("{") else ask.format(f"{a} {typed} {b}")
    lines = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    final = f"{a} {sign} {b} = **{result}**"
    return single("calculation", user, f"{lines}\n\n{final}", lines, Check("number", result), final)


_PROBLEMS = (
    # (text, operations applied to the first number, what is asked)
    ("{n} has {a} {i}. {m} gives {n} {b} more. How many {i} does {n} have now?", ("+b",), "{n} has {r} {i}"),
    ("{n} has {a} {i} and gives {b} of them to {m}. How many {i} are left?", ("-b",), "{n} has {r} {i} left"),
    ("There are {a} {x} with {b} {i} each. How many {i} are there in total?", ("*b",), "There are {r} {i}"),
    ("{n} buys {a} {x} of {i}. Each holds {b} {i}. {n} uses {c} of them. How many {i} remain?", ("*b", "-c"),
     "{r} {i} remain"),
    ("{n} has {a} {i}. {n} finds {b} more and then loses {c}. How many {i} does {n} have?", ("+b", "-c"),
     "{n} has {r} {i}"),
    ("{n} packs {a} {i}, and {m} packs {b}. Later they pack {c} more together. How many {i} did they pack?",
     ("+b", "+c"), "They packed {r} {i}"),
    ("A ticket costs {b} dollars. {n} buys {a} tickets and pays {c} dollars for a snack. How much does {n} spend?",
     ("*b", "+c"), "{n} spends {r} dollars"),
    ("{n} reads {b} pages every day for {a} days and {c} pages on the last day. How many pages is that?",
     ("*b", "+c"), "{n} reads {r} pages"),
    ("{n} saves {b} dollars a week. After {a} weeks {n} spends {c} dollars. How many dollars are left?",
     ("*b", "-c"), "{n} has {r} dollars left"),
    ("A shop has {a} {i}. It sells {b} in the morning and {c} in the afternoon. How many {i} are left?",
     ("-b", "-c"), "{r} {i} are left"),
)  # fmt: skip


def word_problem(rng: random.Random) -> Sample:
    text, operations, conclusion = rng.choice(_PROBLEMS)
    n, m = rng.sample(NAMES, 2)
    multiplies = operations[0].startswith("*")
    a, b = (rng.randint(2, 12), rng.randint(2, 9)) if multiplies else (rng.randint(20, 99), rng.randint(3, 40))
    value = {"*": a * b, "+": a + b, "-": max(a - b, 0)}[operations[0][0]]
    if operations[0][0] == "-" and b >= a:
        b = a // 2
        value = a - b
    c = rng.randint(2, 40)
    if len(operations) > 1 and operations[1][0] == "-":
        c = rng.randint(1, max(1, min(value - 1, 40)))
    numbers = {"a": a, "b": b, "c": c}
    names = {"n": n, "m": m, "i": rng.choice(ITEMS), "x": rng.choice(BOXES)}
    lines, current = [], a
    for number, code in enumerate(operations, start=1):
        other = numbers[code[1]]
        steps, result = {"*": multiply, "+": add, "-": subtract}[code[0]](current, other)
        sign = {"*": "×", "+": "+", "-": "-"}[code[0]]
        working = "" if len(steps) == 1 else " (" + ", ".join(steps) + ")"
        lines.append(f"Step {number}: {current} {sign} {other} = {result}{working}" if not working
                     else f"Step {number}: {current} {sign} {other}: {', '.join(steps)}")  # fmt: skip
        current = result
    steps_text = "\n".join(lines)
    final = "Answer: " + conclusion.format(r=current, **names) + "."
    user = text.format(**numbers, **names)
    return single("word problem", user, f"{steps_text}\n{final}", steps_text, Check("number", current), final)


_UNITS = (
    ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("kilograms", "grams", 1000),
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("weeks", "days", 7), ("days", "hours", 24),
    ("litres", "millilitres", 1000), ("years", "months", 12), ("dozens", "pieces", 12), ("feet", "inches", 12),
    ("centimetres", "millimetres", 10),
    ("tonnes", "kilograms", 1000), ("yards", "feet", 3),
)  # fmt: skip


def units(rng: random.Random) -> Sample:
    large, small, factor = rng.choice(_UNITS)
    count = rng.randint(2, 9) if factor in (24, 7, 12) else rng.randint(2, 60)
    if rng.random() < 0.6:
        asks = ("Convert {} {} to {}.", "How many {2} are {0} {1}?", "What is {} {} in {}?", "{} {} in {}?")
        user = rng.choice(asks).format(count, large, small)
        result = count * factor
        steps = f"One {_one(large)} is {factor} {small}.\n{count} × {factor} = {result}"
        final = f"{count} {large} are **{result} {small}**."
    else:
        asks = ("Convert {} {} to {}.", "How many {2} are {0} {1}?", "What is {} {} in {}?")
        user = rng.choice(asks).format(count * factor, small, large)
        result = count
        steps = f"One {_one(large)} is {factor} {small}.\n{count * factor} ÷ {factor} = {result}"
        final = f"{count * factor} {small} are **{result} {large}**."
    return single("units", polite(rng, user) if user[0].isalpha() else user, f"{steps}\n\n{final}", steps,
                  Check("number", result), final)  # fmt: skip


def _one(unit: str) -> str:
    return {"feet": "foot", "inches": "inch", "dozens": "dozen"}.get(unit, unit[:-1])


def calendar(rng: random.Random) -> Sample:
    if rng.random() < 0.5:
        start, days = rng.randrange(7), rng.randint(1, 20)
        after = rng.random() < 0.5
        user = rng.choice(
            ("What day is it {1} days {2} {0}?", "Which day comes {1} days {2} {0}?", "{0}: what day is {1} days {2}?")
        ).format(DAYS[start], days, "after" if after else "before")
        rest = days % 7
        day = DAYS[(start + rest) % 7 if after else (start - rest) % 7]
        steps = f"A week has 7 days, and {days} = {days // 7} × 7 + {rest}.\n"
        path = [DAYS[(start + step if after else start - step) % 7] for step in range(rest + 1)]
        steps += f"So I count {rest} days {'forward' if after else 'back'}: {', '.join(path)}."
        return single("calendar", user, f"{steps}\n\nIt is **{day}**.", steps, Check("bold", day), f"It is **{day}**.")
    hour, minute, length = rng.randint(6, 20), rng.randrange(0, 60, 5), rng.randrange(10, 180, 5)
    end = hour * 60 + minute + length
    user = rng.choice(
        ("A film starts at {} and lasts {} minutes. When does it end?",
         "A train leaves at {} and travels {} minutes. When does it arrive?",
         "It is {}. What time is it {} minutes later?")
    ).format(f"{hour}:{minute:02}", length)  # fmt: skip
    hours, rest = divmod(length, 60)
    mid = hour + hours
    steps = f"{length} minutes are {hours} h {rest} min.\n{hour}:{minute:02} + {hours} h = {mid}:{minute:02}\n"
    steps += f"{mid}:{minute:02} + {rest} min = {end // 60}:{end % 60:02}"
    final = f"Answer: **{end // 60}:{end % 60:02}**"
    return single("calendar", user, f"{steps}\n{final}", steps, Check("bold", f"{end // 60}:{end % 60:02}"), final)


def series(rng: random.Random) -> Sample:
    kind = rng.randrange(4)
    if kind == 0:
        start, step, count = rng.randint(1, 20), rng.randint(2, 9), rng.randint(5, 12)
        values = [start + step * index for index in range(count)]
        user = f"Count from {start} in steps of {step} until you have {count} numbers."
        thought = f"Start at {start} and add {step} each time, {count} numbers in all."
        answer = ", ".join(map(str, values))
        return single("series", polite(rng, user), answer, thought, Check("exact", answer))
    if kind == 1:
        start, step = rng.randint(1, 30), rng.randint(2, 9)
        values = [start + step * index for index in range(8)]
        user = rng.choice(("Continue the series {} with four more numbers.", "What are the next four numbers: {}?"))
        user = user.format(", ".join(map(str, values[:4])))
        thought = f"{values[1]} - {values[0]} = {step}, so the step is {step}."
        answer = f"The step is {step}. The next four numbers are {', '.join(map(str, values[4:]))}."
        return single("series", user, answer, thought, Check("exact", answer))
    if kind == 2:
        base = rng.randint(2, 20)
        user = rng.choice(
            ("Write the multiplication table of {}.", "Give me the {} times table.", "Times table for {}")
        )
        answer = "\n".join(f"{number} × {base} = {number * base}" for number in range(1, 11))
        thought = f"Ten lines, each adding {base}."
        return single("series", user.format(base), answer, thought, Check("exact", answer))
    first, last = rng.randint(1, 30), rng.randint(10, 20)
    values = ["FizzBuzz" if n % 15 == 0 else "Fizz" if n % 3 == 0 else "Buzz" if n % 5 == 0 else str(n)
              for n in range(first, first + last)]  # fmt: skip
    user = f"Play FizzBuzz from {first} to {first + last - 1}."
    thought = "Multiples of 3 become Fizz, of 5 Buzz, of both FizzBuzz."
    answer = ", ".join(values)
    return single("series", polite(rng, user), answer, thought, Check("exact", answer))
