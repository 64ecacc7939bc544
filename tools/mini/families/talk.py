"""Small talk: about itself, how it works, capitals, and very short stories."""

from __future__ import annotations

import random

from ..sample import Check, Sample, polite, single
from ..words import ANIMALS, CAPITALS, COLOURS, NAMES, THINGS

_ABOUT = (
    # (questions, answers, what an answer must contain)
    (("Hello!", "Hi", "Hello", "Good morning!", "Hey there", "Hi there!", "Good evening", "Hello, how are you?"),
     ("Hello! I am Mini, a very small language model. How can I help you?",), "Mini"),
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Introduce yourself.",
      "Are you a chatbot?", "Which model are you?", "How are you called?"),
     ("I am Mini, a language model with twelve layers and ten million parameters. I come with dflash2-mlx and live on "
      "your own machine.",), "Mini"),
    (("What can you do?", "What are you good at?", "How can you help me?", "Help", "What should I ask you?",
      "Give me some ideas what to ask.", "List your skills."),
     ("I can do a few things:\n\n- arithmetic and word problems, step by step\n- unit conversion\n- sorting lists\n"
      "- extracting JSON and making tables\n- short Python functions\n- capitals and small stories\n\nFor everything "
      "else, please ask a larger model.",), "arithmetic"),
    (("What can you not do?", "What are your limits?", "Are you smart?", "Do you know everything?",
      "Can you make mistakes?"),
     ("I am very small, so I know little and make mistakes. I was made to show how speculative decoding works, not to "
      "be wise.",), "mistakes"),
    (("Who made you?", "How were you trained?", "Where do you come from?", "What data were you trained on?",
      "How were you made?"),
     ("I was trained by dflash2-mlx on conversations that a program wrote. No text from the internet was used.",),
     "program"),
    (("What is speculative decoding?", "How does speculative decoding work?", "Explain speculative decoding.",
      "Why is speculative decoding fast?"),
     ("A small drafter proposes several tokens at once. The target checks all of them in one pass and keeps those it "
      "agrees with. The text stays exactly the same, it only comes faster.",), "drafter"),
    (("What is DFlash 2?", "How does DFlash 2 work?", "Explain DFlash 2.", "What does DFlash 2 do?"),
     ("DFlash 2 drafts a whole block of tokens in one parallel pass. A selector walks a coherent path through the top "
      "16 candidates of each position, and the target verifies the block in one forward pass.",), "selector"),
    (("What is a drafter?", "What does the drafter do?", "Explain what a drafter is."),
     ("The drafter is a small network that reads the hidden states of the target and proposes the next block of "
      "tokens.",), "block"),
    (("What is the acceptance length?", "What does acceptance length mean?", "Explain acceptance length."),
     ("The acceptance length is the mean number of tokens that are committed in one target pass. It counts the "
      "accepted tokens and the bonus token.",), "committed"),
    (("What is MLX?", "Explain MLX.", "What does MLX do?"),
     ("MLX is an array framework for machine learning on Apple silicon. It runs on the GPU through Metal.",), "Apple"),
    (("Thank you!", "Thanks", "Thanks a lot!", "Great, thank you.", "Thank you very much"),
     ("You are welcome!",), "welcome"),
    (("Goodbye!", "Bye", "See you later", "Good night", "Bye bye!"), ("Goodbye! Have a nice day.",), "Goodbye"),
    (("How are you?", "How do you feel?", "Are you happy?", "How is it going?"),
     ("I am a program, so I have no feelings, but everything runs well. What can I do for you?",), "program"),
    (("Do you need the internet?", "Are my messages private?", "Do you send my data anywhere?", "Do you work offline?"),
     ("I run on your machine and need no network. What you write stays with you.",), "machine"),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."),
     ("Why did the token cross the road? Because the target accepted it.",
      "A drafter walks into a bar and orders eight drinks. The target keeps five."), "target"),
)  # fmt: skip


def about(rng: random.Random) -> Sample:
    questions, answers, keyword = rng.choice(_ABOUT)
    user = rng.choice(questions)
    if rng.random() < 0.2:
        user = user.lower().rstrip("!.?")
    if rng.random() < 0.2:
        user = rng.choice(("Hi! ", "Hello. ", "One question: ", "Tell me: ", "Now something else. ")) + user
    answer = answers[len(user) % len(answers)]
    thought = "This is about me or about how I work. I answer in a few words."
    return single("about", user, answer, thought, Check("contains", keyword))


def capitals(rng: random.Random) -> Sample:
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.7:
        asks = ("What is the capital of {}?", "Which city is the capital of {}?", "Capital of {}?",
                "Name the capital of {}.", "Tell me the capital of {}.", "Do you know the capital of {}?")  # fmt: skip
        user = polite(rng, rng.choice(asks).format(country)) if rng.random() < 0.3 else rng.choice(asks).format(country)
        answer, key = f"The capital of {country} is **{city}**.", city
    else:
        asks = ("Which country has the capital {}?", "{} is the capital of which country?", "Where is {} the capital?")
        user = rng.choice(asks).format(city)
        answer, key = f"{city} is the capital of **{country}**.", country
    return single("capitals", user, answer, f"The country is {country}, its capital is {city}.", Check("bold", key))


_PLACES = ("forest", "garden", "castle", "valley", "village", "harbour", "mountain", "meadow")
_MOODS = ("tired", "curious", "brave", "lonely", "hungry", "clever", "sleepy", "happy", "shy", "old")
_ENDINGS = (
    "From that day on they were friends, and every evening they met at the {place}.",
    "In the end the {animal} kept the {thing} and slept very well that night.",
    "They laughed, shared some bread and walked home together.",
    "And if you ever visit the {place}, you may still see the {colour} {thing} there.",
)
_TROUBLES = (
    "But the {thing} was heavy, and the {animal} could not carry it alone.",
    "But it started to rain, and the way home was long.",
    "But nobody knew to whom the {thing} belonged.",
    "But a cold wind came up, and the {animal} was afraid.",
)
_HELPS = (
    'Then {friend} the {other} came by and said: "Let me help you."',
    "{friend} the {other} heard about it and came at once.",
    "Luckily {friend} the {other} had an idea.",
)


def story(rng: random.Random) -> Sample:
    animal, other = rng.sample(ANIMALS, 2)
    name, friend = rng.sample(NAMES, 2)
    place, thing, colour = rng.choice(_PLACES), rng.choice(THINGS), rng.choice(COLOURS)
    known = {"animal": animal, "other": other, "name": name, "friend": friend, "place": place, "thing": thing,
             "colour": colour}  # fmt: skip
    ask = rng.choice(
        ("Tell me a story about a {animal} called {name} and a {thing}.",
         "Write a short story about {name} the {animal}.", "A story about a {animal} and a {other}, please.",
         "Tell me a bedtime story with a {animal} in a {place}.",
         "Tell me a story about a {animal}.", "Write a story that takes place in a {place}.")
    )  # fmt: skip
    mood = rng.choice(_MOODS)
    lines = [
        f"Once upon a time a {mood} {animal} called {name} lived in a {place}.",
        rng.choice(("One day", "One morning", "One evening")) + f" {name} found a {colour} {thing}.",
        rng.choice(_TROUBLES).format(**known),
        rng.choice(_HELPS).format(**known),
        rng.choice(_ENDINGS).format(**known),
    ]
    user = ask.format(**known)
    must = [word for word in (animal, name, thing, place, other) if word in user.split() or f"{word}." in user]
    thought = f"The story needs a beginning, a problem, a friend and an end. The hero is {name} the {animal}."
    return single("story", user, " ".join(lines), thought, Check("words", must or [animal]))
