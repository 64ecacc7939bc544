"""Short Python functions from a description; the checker runs them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ..sample import Check, Sample, single

# Makers return (name, description, parameters, body lines, test calls). Descriptions are what a person asks for; names
# and constants vary, so that a function has to be written for the question, not recalled.
Made = tuple[str, str, str, list[str], list[tuple[Any, ...]]]


def _linear(rng: random.Random) -> Made:
    a, b = rng.randint(2, 19), rng.randint(1, 30)
    name = rng.choice(("scale", "shift", "transform", "compute", "convert"))
    sign, word = rng.choice((("+", "plus"), ("-", "minus")))
    description = f"returns its argument times {a} {word} {b}"
    return name, description, "x", [f"return x * {a} {sign} {b}"], [(0,), (3,), (-2,)]


def _power(rng: random.Random) -> Made:
    word, value = rng.choice((("square", 2), ("cube", 3), ("fourth power", 4)))
    return word.split()[0], f"returns the {word} of a number", "number", [f"return number ** {value}"], [(2,), (5,)]


def _divisible(rng: random.Random) -> Made:
    value = rng.randint(2, 12)
    name = rng.choice((f"divisible_by_{value}", f"is_multiple_of_{value}"))
    return name, f"checks whether a number is divisible by {value}", "number", [f"return number % {value} == 0"], [
        (value * 3,), (value + 1,)]  # fmt: skip


def _between(rng: random.Random) -> Made:
    low = rng.randint(0, 40)
    high = low + rng.randint(5, 50)
    description = f"checks whether a number lies between {low} and {high}"
    return "in_range", description, "number", [f"return {low} <= number <= {high}"], [(low,), (high + 1,), (low - 1,)]


def _total(rng: random.Random) -> Made:
    what, condition, name = rng.choice(
        (("even", "% 2 == 0", "sum_even"), ("odd", "% 2 == 1", "sum_odd"), ("positive", "> 0", "sum_positive"),
         ("negative", "< 0", "sum_negative"))
    )  # fmt: skip
    body = ["total = 0", "for number in numbers:", f"    if number {condition}:", "        total += number",
            "return total"]  # fmt: skip
    return name, f"adds up the {what} numbers of a list", "numbers", body, [([1, 2, 3, 4, -5, -6],), ([],)]


def _count(rng: random.Random) -> Made:
    value = rng.randint(2, 50)
    word, sign = rng.choice((("greater", ">"), ("smaller", "<")))
    body = ["count = 0", "for number in numbers:", f"    if number {sign} {value}:", "        count += 1",
            "return count"]  # fmt: skip
    return f"count_{word}", f"counts the numbers of a list that are {word} than {value}", "numbers", body, [
        ([1, value, value + 3, 2 * value],), ([],)]  # fmt: skip


def _filter(rng: random.Random) -> Made:
    value = rng.randint(2, 9)
    word, sign = rng.choice((("longer", ">"), ("shorter", "<")))
    body = [f"return [word for word in words if len(word) {sign} {value}]"]
    return f"keep_{word}", f"keeps the words of a list that are {word} than {value} letters", "words", body, [
        (["a", "tree", "bicycle", "extraordinary", "house"],)]  # fmt: skip


def _map(rng: random.Random) -> Made:
    value = rng.randint(2, 20)
    word, sign = rng.choice((("adds", "+"), ("subtracts", "-"), ("multiplies by", "*")))
    ending = f"{word} {value} {'from' if word == 'subtracts' else 'to'} every number of a list"
    ending = f"multiplies every number of a list by {value}" if word == "multiplies by" else ending
    name = {"adds": "add_to_all", "subtracts": "subtract_from_all", "multiplies by": "multiply_all"}[word]
    return name, ending, "numbers", [f"return [number {sign} {value} for number in numbers]"], [([1, 2, 3],), ([],)]


def _text(rng: random.Random) -> Made:
    return rng.choice(
        (
            ("reverse_text", "reverses a text", "text", ["return text[::-1]"], [("abc",), ("",)]),
            ("is_palindrome", "checks whether a text reads the same backwards", "text",
             ["text = text.lower()", "return text == text[::-1]"], [("Anna",), ("Ben",)]),
            ("count_vowels", "counts the vowels of a text", "text",
             ["count = 0", "for letter in text.lower():", '    if letter in "aeiou":', "        count += 1",
              "return count"], [("Hello Anna",), ("",)]),
            ("shout", "returns a text in capital letters with an exclamation mark", "text",
             ['return text.upper() + "!"'], [("hi",)]),
            ("count_words", "counts the words of a text", "text", ["return len(text.split())"], [("a b  c",), ("",)]),
            ("initials", "returns the initials of a name", "name",
             ["parts = name.split()", 'return "".join(part[0] for part in parts)'], [("Anna Berg",)]),
            ("first_word", "returns the first word of a text", "text", ["return text.split()[0]"], [("hello you",)]),
            ("title_case", "capitalizes every word of a text", "text",
             ['return " ".join(word.capitalize() for word in text.split())'], [("hello you",)]),
        )
    )  # fmt: skip


def _classic(rng: random.Random) -> Made:
    return rng.choice(
        (
            ("factorial", "computes the factorial of a number", "n",
             ["result = 1", "for number in range(2, n + 1):", "    result *= number", "return result"], [(0,), (5,)]),
            ("fibonacci", "returns the n-th Fibonacci number", "n",
             ["a, b = 0, 1", "for _ in range(n):", "    a, b = b, a + b", "return a"], [(0,), (7,)]),
            ("is_prime", "checks whether a number is prime", "number",
             ["if number < 2:", "    return False", "for divisor in range(2, int(number ** 0.5) + 1):",
              "    if number % divisor == 0:", "        return False", "return True"], [(1,), (7,), (9,), (2,)]),
            ("greatest_common_divisor", "computes the greatest common divisor of two numbers", "a, b",
             ["while b:", "    a, b = b, a % b", "return a"], [(12, 18), (7, 5)]),
            ("average", "computes the average of a list", "numbers",
             ["return sum(numbers) / len(numbers)"], [([1, 2, 3],)]),
            ("largest", "finds the largest number of a list", "numbers",
             ["best = numbers[0]", "for number in numbers:", "    if number > best:", "        best = number",
              "return best"], [([3, 9, 2],), ([-1],)]),
            ("smallest", "finds the smallest number of a list", "numbers",
             ["best = numbers[0]", "for number in numbers:", "    if number < best:", "        best = number",
              "return best"], [([3, 9, 2],), ([-1],)]),
            ("unique", "removes duplicates from a list and keeps the order", "items",
             ["seen = []", "for item in items:", "    if item not in seen:", "        seen.append(item)",
              "return seen"], [([1, 2, 1, 3],)]),
            ("fizzbuzz", "returns Fizz, Buzz, FizzBuzz or the number", "n",
             ["if n % 15 == 0:", '    return "FizzBuzz"', "if n % 3 == 0:", '    return "Fizz"', "if n % 5 == 0:",
              '    return "Buzz"', "return n"], [(3,), (5,), (15,), (7,)]),
            ("celsius_to_fahrenheit", "converts Celsius to Fahrenheit", "celsius",
             ["return celsius * 9 / 5 + 32"], [(0,), (100,)]),
            ("binary_search", "searches a sorted list for a value and returns its index or -1", "items, value",
             ["low, high = 0, len(items) - 1", "while low <= high:", "    middle = (low + high) // 2",
              "    if items[middle] == value:", "        return middle", "    if items[middle] < value:",
              "        low = middle + 1", "    else:", "        high = middle - 1", "return -1"],
             [([1, 3, 5, 7], 5), ([1, 3], 2)]),
            ("bubble_sort", "sorts a list with bubble sort", "items",
             ["items = list(items)", "for end in range(len(items) - 1, 0, -1):", "    for index in range(end):",
              "        if items[index] > items[index + 1]:",
              "            items[index], items[index + 1] = items[index + 1], items[index]", "return items"],
             [([3, 1, 2],), ([],)]),
        )
    )  # fmt: skip


_MAKERS: tuple[Callable[[random.Random], Made], ...] = (
    _linear, _power, _divisible, _between, _total, _count, _filter, _map, _text, _text, _classic, _classic, _classic,
)  # fmt: skip
_OTHER_NAMES = ("solve", "helper", "my_function", "run", "process", "task", "answer", "calc", "work", "f")


def code(rng: random.Random) -> Sample:
    name, description, parameters, body, calls = rng.choice(_MAKERS)(rng)
    named = rng.random() < 0.4
    if named and rng.random() < 0.6:
        name = rng.choice(_OTHER_NAMES)
    ask = rng.choice(
        ("Write a Python function that {}.", "I need a Python function that {}.", "Python function that {}, please.",
         "Give me a function in Python that {}.", "Can you write a Python function that {}?",
         "Code a function that {}.")
    )  # fmt: skip
    user = ask.format(description)
    if named:
        user += rng.choice((f" Call it {name}.", f" Name it `{name}`."))
    source = f"def {name}({parameters}):\n" + "\n".join("    " + line for line in body)
    answer = f"```python\n{source}\n```"
    if rng.random() < 0.5:
        user += " Explain it briefly."
        answer = f"{answer}\n\nThe function `{name}` takes `{parameters}` and {description}."
    thought = f"The function takes {parameters} and {description}. I call it {name}."
    return single(
        "code", user, answer, thought, Check("python", {"name": name, "named": named, "source": source, "calls": calls})
    )
