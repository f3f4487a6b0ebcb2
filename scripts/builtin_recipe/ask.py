"""One question with one answer, the ways in which people type it, and the held-out split.

Knows strings only. A question is held out by a hash of its exact text, so no seed can move it into training.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

HELD_PERCENT = 15

# Every prompt that the documentation or a test types as it stands: always trained on, never measured as unseen.
QUOTED = frozenset(
    {
        "Tell me a story about a brave fox.",
        "Tell me a story about a brave fox",
        "Tell me a story.",
        "Tell me a story",
        "What is 7 plus 5?",
        "7 + 5",
        "7+5=",
        "What is the capital of France?",
        "Count from 1 to 10.",
        "count to ten",
        "Count to ten.",
        "What is diffusion?",
        "What is a canvas?",
        "What is entropy?",
        "Write a haiku about the moon.",
        "Write a poem about rain.",
        "List three fruits.",
        "Hello",
        "Hello!",
        "hello",
        "hi",
        "Who are you?",
        "What is your name?",
        "What sound does a cow make?",
    }
)


@dataclass(frozen=True, slots=True)
class Ask:
    """A thing that can be asked: `questions` are its phrasings, `answer` the only right text, `thought` its reasoning.

    `pivot` marks where a plain sentence may be cut for completion without a template (empty: never).
    """

    kind: str
    questions: tuple[str, ...]
    answer: str
    thought: str
    pivot: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question as it was typed, with the text that answers it."""

    kind: str
    question: str
    answer: str
    thought: str


def is_held(question: str) -> bool:
    """True for a question that training never sees; about HELD_PERCENT in a hundred, quoted ones excepted."""
    if question in QUOTED:
        return False
    digest = hashlib.blake2b(question.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_PERCENT


_BEFORE = ("Please, ", "Hi! ", "Hello, ", "Hey, ", "A question: ", "Tell me, ", "So, ", "OK, ", "Now, ")
_AFTER = (" please", ", please", " Thanks!", " Thank you.")


def _lower_first(text: str) -> str:
    keep = text.startswith(("I ", "I'"))
    return text if keep else text[:1].lower() + text[1:]


def type_as_people_do(text: str, rng: random.Random) -> str:
    """The same question with other capitals, punctuation or manners. Text without letters keeps its shape."""
    if rng.random() < 0.4:
        return text
    end = text[-1] if text and text[-1] in ".?!" else ""
    body = text[: len(text) - len(end)]
    if rng.random() < 0.14:
        body = rng.choice(_BEFORE) + _lower_first(body)
    if end and rng.random() < 0.08:
        after = rng.choice(_AFTER)
        body, end = (body + end + after, "") if after.endswith(("!", ".")) else (body + after, end)
    roll = rng.random()
    if roll < 0.4:
        end = ""
    elif roll < 0.46:
        end = end * 2
    elif roll < 0.5:
        end = " " + end
    if rng.random() < 0.45:
        body = body.lower()
    elif rng.random() < 0.03:
        body = body.upper()
    return body + end


def draw_text(make: Callable[[], str], rng: random.Random, *, held: bool, tries: int = 400) -> str | None:
    """A typed question from the asked side of the split, or None where `make` has none on that side."""
    for _ in range(tries):
        base = make()
        text = base if base in QUOTED and rng.random() < 0.5 else type_as_people_do(base, rng)
        if is_held(text.strip()) == held:
            return text
    return None
