"""Stories: a small grammar with free slots, the only kind of answer that has many right forms.

A shape is a row of sentences, a sentence a choice of templates, a template has slots. The same tables make a story
and check one: `is_story` accepts exactly what `tell` can write for that animal and adjective.
"""

import random
import re
from dataclasses import dataclass

from builtin_recipe import story_words as words
from builtin_recipe.ask import Exchange
from builtin_recipe.facts import article

OPENING = (
    "Once upon a time, {who} named {name} lived {place}.",
    "Long ago, {who} named {name} lived {place}.",
)
FIND = ("One {weather} day, {name} found {thing} {spot}.",)
FRIEND = (
    "Soon {other} named {name2} came along, {mood}.",
    "Then {other} named {name2} came by, {mood}.",
)
CLAIM = ('"That {noun} {loss}," said {name2}.',)
REPLY = ('"Then take it," said {name}, "and let us {plan} together."',)
JOY = ("So they {planned}, and {joy}.",)
TROUBLE = ("On the way home {trouble}, but {name} {solved}.",)
THANK = ('"{thank}," said {name2}.',)
BOND = ("From that day on, they {bond}.",)
END = words.ENDINGS

SHAPES = {
    "short": (OPENING, FIND, FRIEND, CLAIM, BOND, END),
    "usual": (OPENING, FIND, FRIEND, CLAIM, REPLY, JOY, BOND, END),
    "long": (OPENING, FIND, FRIEND, CLAIM, REPLY, JOY, TROUBLE, THANK, BOND, END),
}
FILLERS = {
    "name": words.NAMES, "name2": words.NAMES, "place": words.PLACES, "weather": words.WEATHERS, "spot": words.SPOTS,
    "thing": tuple(words.THINGS), "noun": tuple(words.THINGS.values()), "mood": words.MOODS, "loss": words.LOSSES,
    "plan": tuple(words.PLANS), "planned": tuple(words.PLANS.values()), "joy": words.JOYS,
    "trouble": tuple(words.TROUBLES), "solved": tuple(words.TROUBLES.values()), "thank": words.THANKS,
    "bond": words.BONDS,
}  # fmt: skip
TIED = (
    ("thing", "noun", words.THINGS),
    ("plan", "planned", words.PLANS),
    ("trouble", "solved", words.TROUBLES),
)
# The friend is described by few words, so that the canvas has fewer free choices than it has steps.
FRIEND_ADJECTIVES = words.ADJECTIVES[:10]
FRIEND_ANIMALS = words.ANIMALS[:16]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a story was asked to be about; None where the asker left it open."""

    animal: str | None
    adjective: str | None
    shape: str = "usual"

    @property
    def who(self) -> str:
        """The words of the question: `a brave fox`, `a fox`, or nothing."""
        if self.animal is None:
            return ""
        return article(f"{self.adjective} {self.animal}" if self.adjective else self.animal)


def tell(wish: Wish, rng: random.Random) -> str:
    """One story, every free choice drawn from `rng`."""
    animal = wish.animal or rng.choice(FRIEND_ANIMALS)
    adjective = wish.adjective or rng.choice(FRIEND_ADJECTIVES)
    slots = {slot: rng.choice(fillers) for slot, fillers in FILLERS.items()}
    for first, second, table in TIED:
        slots[second] = table[slots[first]]
    slots["who"] = article(f"{adjective} {animal}")
    slots["name2"] = rng.choice([n for n in words.NAMES if n != slots["name"]])
    friend = rng.choice([a for a in FRIEND_ANIMALS if a != animal])
    slots["other"] = article(f"{rng.choice([a for a in FRIEND_ADJECTIVES if a != adjective])} {friend}")
    return " ".join(rng.choice(sentence).format(**slots) for sentence in SHAPES[wish.shape])


def _choices(slot: str, bound: dict[str, str], wish: Wish) -> str:
    """The regular expression of what may stand in a slot once the slots in `bound` are filled."""
    if slot in bound:
        return re.escape(bound[slot])
    for first, second, table in TIED:
        if slot == second and first in bound:
            return re.escape(table[bound[first]])
    if slot in ("who", "other"):
        adjectives = [wish.adjective] if wish.adjective and slot == "who" else FRIEND_ADJECTIVES
        animals = [wish.animal] if wish.animal and slot == "who" else FRIEND_ANIMALS
        return "|".join(article(f"{a} {b}") for a in adjectives for b in animals)
    return "|".join(re.escape(f) for f in FILLERS[slot] if slot != "name2" or f != bound.get("name"))


def is_story(text: str, wish: Wish) -> bool:
    """True where `text` is, word for word, a story that `tell` can write for this wish."""
    bound: dict[str, str] = {}
    at = 0
    for sentence in SHAPES[wish.shape]:
        for template in sentence:
            parts = re.split(r"\{(\w+)\}", template)  # text, slot, text, slot, ..., text
            new: set[str] = set()
            pattern = ""
            for i, part in enumerate(parts):
                if i % 2 == 0:
                    pattern += re.escape(part)
                else:
                    pattern += f"(?P<{part}>{_choices(part, bound, wish)})"
                    new.add(part)
            match = re.compile(pattern + "(?: |$)").match(text, at)
            if match:
                bound.update({slot: match[slot] for slot in new})
                at = match.end()
                break
        else:
            return False
    return at == len(text) and not text.endswith(" ")


_FORMS = {
    "usual": (
        "Tell me a story{about}.", "Tell a story{about}.", "Write a story{about}.", "Can you tell me a story{about}?",
        "a story{about}", "Please tell me a story{about}.", "Write me a story{about}.", "Give me a story{about}.",
        "I want a story{about}.", "Do you know a story{about}?", "I would like to hear a story{about}.",
        "story{about}", "Let me hear a story{about}.",
    ),
    "short": (
        "Tell me a short story{about}.", "Write a short story{about}.", "Can you tell me a short story{about}?",
        "a short story{about}", "Tell me a very short story{about}.", "Give me a short story{about}.",
    ),
    "long": (
        "Tell me a long story{about}.", "Write a long story{about}.", "Can you tell me a long story{about}?",
        "a long story{about}", "Give me a long story{about}.", "I want a long story{about}.",
    ),
}  # fmt: skip


def draw_wish(rng: random.Random) -> tuple[str, Wish]:
    """A question for a story and what it wishes for."""
    shape = rng.choices(("usual", "short", "long"), weights=(70, 15, 15))[0]
    roll = rng.random()
    animal = None if roll < 0.06 else rng.choice(words.ANIMALS)
    adjective = rng.choice(words.ADJECTIVES) if animal and roll > 0.25 else None
    wish = Wish(animal, adjective, shape)
    about = f" about {wish.who}" if animal else ""
    return rng.choice(_FORMS[shape]).format(about=about), wish


def story_exchange(question: str, wish: Wish, rng: random.Random) -> Exchange:
    """The question with a freshly told story."""
    thought = f"The user wants a story about {wish.who}." if wish.who else "The user wants a story."
    return Exchange("stories", question, tell(wish, rng), thought)


def opening_words(wish: Wish) -> tuple[str, ...]:
    """Beginnings that a story for this wish may have, for completion without a template."""
    return tuple(t.split(" named ")[0].format(who=wish.who) for t in OPENING)


def known_words() -> frozenset[str]:
    """Every word, in lower case, that a story can hold."""
    texts = [t for shape in SHAPES.values() for sentence in shape for t in sentence]
    texts += (
        [f for fillers in FILLERS.values() for f in fillers] + list(words.ANIMALS) + list(words.ADJECTIVES)
    )
    plain = re.sub(r"\{\w+\}", " ", " ".join(texts))
    return frozenset(re.findall(r"[a-z]+", plain.lower())) | {"a", "an"}


def unknown_words(text: str) -> list[str]:
    """The words of `text` that no story holds, in order; pieces that are no letters at all count as unknown too."""
    known = known_words()
    found = re.findall(r"[^\W\d_]+|[^\s.,\"]", text)
    return [w for w in found if w.lower() not in known]
