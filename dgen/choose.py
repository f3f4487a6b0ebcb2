"""How likely each of some given answers is, in one or a few denoising steps.

An answer's probability is read from a canvas whose unknown positions are noise: the tokens that all answers share are
pinned, the log-probabilities (T = 1) of each answer's remaining tokens and of the end behind it are summed, and these
sums normalised over the answers. In full (`exact`) each token is read with those before it pinned, one step a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dgen.choices import check_choices
from dgen.engine.request import Request
from dgen.errors import DgenError, UsageError
from dgen.infill.pieces import encode
from dgen.infill.scoring import Progress, Runner
from dgen.infill.search import end_id
from dgen.sampler import derive_seed
from dgen.settings import Resolved

if TYPE_CHECKING:
    from dgen.generator import Generator

PASSES = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """One given answer.

    `probability` is its share among the choices, `logprob` the log-probability behind it, in nats: of all its tokens
    that not every choice shares, the end included. `tokens` counts those.
    """

    text: str
    probability: float
    logprob: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choices, the likeliest first. `mass` is the probability that the model gives to all of them together."""

    choices: tuple[Choice, ...]
    mass: float
    exact: bool
    passes: int
    resolved: Resolved

    @property
    def best(self) -> str:
        """The likeliest choice."""
        return self.choices[0].text


def choose(
    generator: Generator,
    choices: Sequence[str],
    *,
    prompt: str | None = None,
    system: str | None = None,
    answer: str = "{{}}",
    passes: int = PASSES,
    exact: bool = False,
    goes_on: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Chosen:
    """Score given answers.

    Args:
        choices: two or more different texts.
        prompt: the question, put through the chat template; None: the answer stands alone.
        system: a system message for the prompt.
        answer: the text of an answer, with one gap for the choice.
        passes: canvases of different noise over which probabilities are averaged.
        exact: read each token with those before it pinned.
        goes_on: the answer does not end behind the choice, so its end is not scored.
        settings: as in `Generator.job`.

    Raises:
        UsageError, SettingsError, ContextError: what can't be scored.
        DgenError: a request failed.
    """
    before, behind = check_choices(choices, prompt=prompt, system=system, answer=answer, passes=passes)
    job = generator.job(prompt or "", system=system, raw=prompt is None, **settings)
    tokenizer, vocabulary = generator.checkpoint.tokenizer, generator.checkpoint.vocabulary
    end = () if goes_on else (end_id(generator, chat=prompt is not None),)
    rows = [(*encode(before + choice + behind, tokenizer, vocabulary), *end) for choice in choices]
    _check_apart(choices, rows)
    longest, canvas_len = max(map(len, rows)), generator.denoiser.canvas_len
    if longest > canvas_len:
        raise UsageError(
            f"a choice takes {longest} tokens with its end; a canvas of this model has {canvas_len}",
            hint="Shorten the choices, or the text around them.",
        )
    reader = _Reader(generator, job.request, rows, passes, progress)
    common = _shared(rows)
    logprobs = list(reader.one_by_one(common) if exact else reader.together(common))
    shares = _normalised(logprobs)
    found = [
        Choice(text, share, logprob, len(row) - common)
        for text, share, logprob, row in zip(choices, shares, logprobs, rows, strict=True)
    ]
    mass = math.fsum(map(math.exp, logprobs))
    # Averages over noise may sum to a hair above one.
    return Chosen(
        tuple(sorted(found, key=lambda c: -c.probability)), min(mass, 1.0), exact, reader.passes, job.resolved
    )


class _Reader:
    """Reads log-probabilities of rows [choices] of ids from single denoising steps."""

    def __init__(
        self,
        generator: Generator,
        request: Request,
        rows: Sequence[tuple[int, ...]],
        draws: int,
        progress: Progress | None,
    ) -> None:
        self._runner = Runner(generator.engine, progress)
        self._rows = rows
        self._seeds = [derive_seed(request.seed, index) for index in range(draws)]
        self._request = replace(
            request,
            eos_ids=frozenset(),
            max_tokens=max(map(len, rows)),
            steps=1,
            logprobs=0,
            logprob_ids=tuple(dict.fromkeys(token_id for row in rows for token_id in row)),
            logprobs_of="raw",
        )

    @property
    def passes(self) -> int:
        """Decoder passes so far."""
        return self._runner.passes

    def together(self, common: int) -> Iterator[float]:
        """All positions behind the common ones from the same step."""
        drawn = self._read([self._rows[0][:common]])[0]
        for row in self._rows:
            yield _log_mean(
                [math.fsum(scores[p][row[p]] for p in range(common, len(row))) for scores in drawn]
            )

    def one_by_one(self, common: int) -> Iterator[float]:
        """Each position with the row's earlier ids pinned; rows that begin alike share steps."""
        starts = dict.fromkeys(row[:p] for row in self._rows for p in range(common, len(row)))
        found = dict(zip(starts, self._read(list(starts)), strict=True))
        for row in self._rows:
            yield math.fsum(
                _log_mean([scores[p][row[p]] for scores in found[row[:p]]]) for p in range(common, len(row))
            )

    def _read(self, starts: Sequence[tuple[int, ...]]) -> list[list[list[dict[int, float]]]]:
        """For each start and draw of noise, by position: the log-probability of each id of the rows."""
        requests = [
            replace(self._request, pins=dict(enumerate(start)), seed=seed)
            for start in starts
            for seed in self._seeds
        ]
        done = [
            [dict(token.asked) for token in completion.tokens]
            for completion in self._runner.complete(requests, "scoring")
        ]
        draws = len(self._seeds)
        return [done[i * draws : (i + 1) * draws] for i in range(len(starts))]


def _check_apart(choices: Sequence[str], rows: Sequence[tuple[int, ...]]) -> None:
    """UsageError where one choice goes on in another: it would take in the other's probability, and never lose."""
    # In order, a row stands right before those that begin with it.
    for (row, choice), (longer, other) in pairwise(sorted(zip(rows, choices, strict=True))):
        if longer[: len(row)] == row:
            raise UsageError(
                f"the choice '{choice}' is the beginning of '{other}'",
                hint="Let the answers end: leave --goes-on out.",
            )


def _shared(rows: Sequence[tuple[int, ...]]) -> int:
    """How many first ids all rows share; none is the beginning of another, so each has more."""
    count = 0
    while len({row[count] for row in rows}) == 1:
        count += 1
    return count


def _log_mean(values: Sequence[float]) -> float:
    """log of the mean of exp(values); -inf where all are."""
    most = max(values)
    if most == -math.inf:
        return most
    return most + math.log(math.fsum(math.exp(value - most) for value in values) / len(values))


def _normalised(logprobs: Sequence[float]) -> list[float]:
    most = max(logprobs)
    if most == -math.inf:
        raise DgenError("the model gives none of the choices any probability", hint="Check their wording.")
    weights = [math.exp(value - most) for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
