"""The quality table: held-out questions of every kind at the checkpoint's default settings, judged word for word.

Knows the corpus and a backend function (rendered prompts -> answers); not how the backend makes them.
"""

import random
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from builtin_recipe.corpus import KINDS, Question, World
from builtin_recipe.stories import unknown_words
from builtin_recipe.template import CHANNEL, END_OF_CHANNEL, render

# Shares of right answers and mean steps a canvas that the shipped checkpoint has to reach.
LEAST_RIGHT = {"facts": 0.95, "counting": 0.95, "lists": 0.95, "explanations": 0.95, "sums": 0.90}
MOST_STEPS, MOST_STORY_STEPS = 6.0, 24.0


class Completion(Protocol):
    """What a backend gives back for one prompt."""

    text: str
    canvases: int
    steps: int


class Backend(Protocol):
    """Rendered prompts in, completions out, in order."""

    def __call__(self, prompts: list[str], *, seed: int) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `unknown` counts the words of stories that no story holds."""

    name: str
    questions: int
    right: int
    canvases: int
    steps_a_canvas: float
    unknown: int
    wrong: tuple[tuple[str, str], ...]


def _distinct(world: World, kind: str, count: int, rng: random.Random) -> list[Question]:
    seen: dict[str, Question] = {}
    for _ in range(count * 60):
        question = world.question(kind, rng, held=True)
        seen.setdefault(question.exchange.question.strip(), question)
        if len(seen) == count:
            break
    return list(seen.values())


def _row(
    name: str, questions: list[Question], backend: Backend, *, seed: int, system: str | None, thinking: bool
) -> Row:
    prompts = [render([("user", q.exchange.question)], system=system, thinking=thinking) for q in questions]
    answers = backend(prompts, seed=seed)
    wrong, unknown = [], 0
    for question, answer in zip(questions, answers, strict=True):
        text = answer.text
        thought_fits = True
        if thinking:
            thought, _, text = text.partition(END_OF_CHANNEL)
            thought_fits = thought == f"{CHANNEL}thought\n{question.exchange.thought}"
        unknown += len(unknown_words(text)) if question.wish else 0
        if not (thought_fits and question.is_right(text)):
            wrong.append((question.exchange.question, answer.text))
    canvases = sum(a.canvases for a in answers)
    return Row(
        name, len(questions), len(questions) - len(wrong), canvases, round(sum(a.steps for a in answers) / canvases, 2),
        unknown, tuple(wrong[:10]),
    )  # fmt: skip


def measure(backend: Backend, *, seed: int, each: int) -> list[Row]:
    """`each` held-out questions of every kind; then sums and facts with a system turn, and with thoughts."""
    world, rows = World(), []
    for kind in KINDS:
        questions = _distinct(world, kind, each, random.Random(f"measure-{seed}-{kind}"))
        rows.append(_row(kind, questions, backend, seed=seed, system=None, thinking=False))
    for kind in ("facts", "sums"):
        questions = _distinct(world, kind, each, random.Random(f"measure-{seed}-{kind}-more"))
        rows.append(
            _row(f"{kind}, system turn", questions, backend, seed=seed, system="Be brief.", thinking=False)
        )
        rows.append(_row(f"{kind}, thinking", questions, backend, seed=seed, system=None, thinking=True))
    return rows


def misses(rows: list[Row]) -> list[str]:
    """Each target that the table misses, in words."""
    out = []
    for row in rows:
        least = LEAST_RIGHT.get(row.name)
        if least is not None and row.right < least * row.questions:
            out.append(f"{row.name}: {row.right} of {row.questions} right, {least:.0%} wanted")
        most = MOST_STORY_STEPS if row.name == "stories" else MOST_STEPS
        if row.steps_a_canvas >= most:
            out.append(f"{row.name}: {row.steps_a_canvas} steps a canvas, under {most:.0f} wanted")
        if row.unknown:
            out.append(f"{row.name}: {row.unknown} unknown words, none wanted")
    return out


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| kind | questions | exactly right | canvases | steps a canvas |", "|---|---|---|---|---|"]
    for r in rows:
        share = f"{r.right} ({r.right / r.questions:.0%})"
        lines.append(f"| {r.name} | {r.questions} | {share} | {r.canvases} | {r.steps_a_canvas} |")
    return "\n".join(lines)


def as_json(rows: list[Row], **facts: Any) -> dict[str, Any]:
    """The table, its misses and some answers that were wrong, ready for json.dump."""
    return {**facts, "rows": [asdict(r) for r in rows], "misses": misses(rows)}
