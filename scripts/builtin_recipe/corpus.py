"""The corpus: which kinds there are, how an exchange or a training text is drawn, and how an answer is judged.

Knows text and a random generator; nothing of tokens, tensors or models. The same seed gives the same texts.
"""

import random
from dataclasses import dataclass, field

from builtin_recipe import stories
from builtin_recipe.ask import Ask, Exchange, draw_text
from builtin_recipe.explanations import build_explanations
from builtin_recipe.facts import build_facts
from builtin_recipe.lists import build_lists
from builtin_recipe.numbers import build_counting, build_sums
from builtin_recipe.refusals import REFUSAL, THOUGHT, outside_prompt
from builtin_recipe.smalltalk import build_smalltalk
from builtin_recipe.template import BOS, END_OF_TURN, EOS, render, with_thought
from builtin_recipe.verses import build_verses

# How often a kind is drawn for training.
WEIGHTS = {
    "facts": 16, "sums": 26, "counting": 7, "lists": 6, "explanations": 8, "poems": 6, "small talk": 5, "refusals": 9,
    "stories": 17,
}  # fmt: skip
KINDS = tuple(WEIGHTS)
# Of all training texts: those without a template, and among them those that are only ever filled in.
PLAIN_SHARE, GAPS_SHARE = 0.15, 0.10
SYSTEMS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "You are a small model.", "Be brief.",
    "Answer in one sentence.", "You talk to children.", "Be kind and clear.", "You are a teacher.",
    "You are a storyteller.", "Answer the question.", "Use simple words.", "You are dgen.",
)  # fmt: skip
# A sentence that begins like this has one ending only, so it may be cut before its verb.
UNIQUE_STARTS = ("The capital", "The opposite", "The day", "The month", "The season")


@dataclass(frozen=True, slots=True)
class Sample:
    """A training text: what the model is given, what it writes, the token that ends it.

    `gaps_only` marks a text that is only ever completed around given words, never written from nothing.
    """

    prefix: str
    answer: str
    end: str = END_OF_TURN
    gaps_only: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question with what its answer is held against: a fixed text, or the wish of a story."""

    exchange: Exchange
    wish: stories.Wish | None = None

    def is_right(self, answer: str) -> bool:
        """True where `answer` is the fixed text, or a story by the rules of the grammar."""
        if self.wish is not None:
            return stories.is_story(answer, self.wish)
        return answer == self.exchange.answer


@dataclass(frozen=True, slots=True)
class World:
    """All that can be asked, by kind."""

    asks: dict[str, list[Ask]] = field(
        default_factory=lambda: {
            "facts": build_facts(),
            "sums": build_sums(),
            "counting": build_counting(),
            "lists": build_lists(),
            "explanations": build_explanations(),
            "poems": build_verses(),
            "small talk": build_smalltalk(),
        }
    )

    def question(self, kind: str, rng: random.Random, *, held: bool = False) -> Question:
        """A question of this kind from the trained side of the split, or from the held-out one."""
        for _ in range(1000):
            wish = None
            if kind == "stories":
                base, wish = stories.draw_wish(rng)
            elif kind == "refusals":
                base = outside_prompt(rng)
            else:
                ask = rng.choice(self.asks[kind])
                base = rng.choice(ask.questions)
            text = draw_text(lambda text=base: text, rng, held=held, tries=4)  # type: ignore[misc]
            if text is None:
                continue
            if wish is not None:
                return Question(stories.story_exchange(text, wish, rng), wish)
            if kind == "refusals":
                return Question(Exchange(kind, text, REFUSAL, THOUGHT))
            return Question(Exchange(kind, text, ask.answer, ask.thought))
        raise LookupError(f"no {'held-out' if held else 'trained'} question of kind {kind!r} was found")

    def sample(
        self, rng: random.Random, *, kinds: tuple[str, ...] = KINDS, earlier: int | None = None
    ) -> Sample:
        """A training text of one of these kinds; `earlier` fixes how many turns come before it."""
        kind = rng.choices(kinds, weights=[WEIGHTS[k] for k in kinds])[0]
        roll = rng.random()
        if earlier is None and roll < PLAIN_SHARE and kind != "refusals":
            return self._plain(kind, rng, gaps_only=roll < GAPS_SHARE)
        if earlier is None:
            earlier = rng.choice((1, 1, 2)) if rng.random() < 0.1 else 0
        turns: list[tuple[str, str]] = []
        for _ in range(earlier):
            past = self.question(rng.choice(KINDS), rng).exchange
            turns += [("user", past.question), ("model", past.answer)]
        now = self.question(kind, rng).exchange
        system = rng.choice(SYSTEMS) if rng.random() < 0.08 else None
        thinking = rng.random() < 0.14
        prefix = render([*turns, ("user", now.question)], system=system, thinking=thinking)
        return Sample(prefix, with_thought(now.thought, now.answer) if thinking else now.answer)

    def _plain(self, kind: str, rng: random.Random, *, gaps_only: bool) -> Sample:
        """A text without a template: its end to be written, or a gap in it to be filled."""
        if kind == "stories":
            _, wish = stories.draw_wish(rng)
            wish = stories.Wish(wish.animal or "fox", wish.adjective or "brave")
            text = stories.tell(wish, rng)
            cut = text.index(" named ")
        else:
            ask = rng.choice(self.asks[kind])
            text = ask.answer
            at = text.find(ask.pivot) if ask.pivot else -1
            if at < 0:
                return Sample(BOS, text, EOS, gaps_only=True)
            whole = text.startswith(UNIQUE_STARTS) and rng.random() < 0.5
            cut = at if whole else at + len(ask.pivot.rstrip())
            if kind == "counting":  # later cuts, so that a run of numbers shows where it is going
                cut = text.index(", ", at + 1) + 1 if text.count(", ") > 1 else cut
        if gaps_only:
            return Sample(BOS, text, EOS, gaps_only=True)
        return Sample(BOS + text[:cut], text[cut:], EOS)
