"""Fills a template: which lengths the gaps have, and several fillings of them, ranked by what the model makes of them.

A canvas has fixed positions, so a gap of up to n tokens is tried at several lengths: one denoising step scores each
combination, and the best few are denoised to the end under several seeds. What converges is first sorted by its
log-probability on the last step, given tokens included: a filling that does not fit shows in what stands around it.
The best of these are then scored word by word (`scoring`), which is the score that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dgen.engine.events import Completion, Emitted
from dgen.engine.request import Request
from dgen.errors import DgenError
from dgen.infill.lengths import Lengths, length_options, shortlist
from dgen.infill.pieces import Pieces, encode_pieces, fill_text
from dgen.infill.scoring import Placed, Progress, Runner, place
from dgen.infill.template import Template, check_voice
from dgen.infill.window import Planner, Window
from dgen.sampler import derive_seed
from dgen.settings import Resolved

if TYPE_CHECKING:
    from dgen.generator import Generator

TRIES = 4
LOOKS = 64
"""Words that are scored one by one at each window, over as many fillings as that is enough for, FEWEST at least."""
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Filling:
    """One way to fill the gaps: `fills` are their texts, `text` the whole.

    `score` is the sum of the log-probabilities of the words in the gaps and near them, each with all the others in
    place, in nats; `gap_logprob` is the gaps' own part of it.
    """

    text: str
    fills: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    score: float
    gap_logprob: float
    seed: int


@dataclass(frozen=True, slots=True)
class Infilled:
    """Distinct fillings, the best first; `passes` counts decoder passes."""

    fillings: tuple[Filling, ...]
    passes: int
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class _Partial:
    """Fillings of the first gaps. `settled` and `gap_logprob` are scores of the windows before the last one, `first`
    the log-probability of the last one as it converged, where it is `placed`."""

    ids: tuple[tuple[int, ...], ...] = ()
    texts: tuple[str, ...] = ()
    settled: float = 0.0
    gap_logprob: float = 0.0
    first: float = 0.0
    placed: Placed | None = None
    seed: int = 0


def infill(
    generator: Generator,
    template: Template,
    *,
    instruction: str | None = None,
    system: str | None = None,
    n: int = 1,
    tries: int = TRIES,
    progress: Progress | None = None,
    **settings: Any,
) -> Infilled:
    """Fill a template's gaps.

    Args:
        instruction: what the text answers, in the model's turn. None: the text stands alone, without a template.
        system: a system message for the instruction.
        n: how many fillings to return; fewer come back where fewer differ.
        tries: seeds that each of the shortlisted lengths is denoised under, at least n.
        progress: called with what is done, how many requests of how many.
        settings: as in `Generator.job`.

    Raises:
        UsageError, SettingsError, ContextError: what can't be run.
        DgenError: a request failed, or no filling was found.
    """
    check_voice(instruction, system)
    job = generator.job(instruction or "", system=system, raw=instruction is None, **settings)
    search = _Search(generator, template, job.request, n=n, tries=max(n, tries), progress=progress)
    end = end_id(generator, chat=instruction is not None)
    for spaced, lenient in ((True, False), (False, False), (False, True)):
        pieces = encode_pieces(
            template, generator.checkpoint.tokenizer, generator.checkpoint.vocabulary, spaced=spaced
        )
        found = search.run(pieces, end, lenient=lenient)
        if found:
            return Infilled(tuple(found), search.passes, job.resolved)
    raise DgenError(
        "no filling was found: none of those tried was valid text",
        hint="Try another --seed, more --tries, or larger gaps.",
    )


def end_id(generator: Generator, *, chat: bool) -> int:
    """The id that ends a text: that of the end of a turn where a template is in use, else that of the end of text."""
    tokenizer = generator.checkpoint.tokenizer
    named = getattr(tokenizer, "eot_token", None) if chat else None
    token_id = tokenizer.convert_tokens_to_ids(named) if named else tokenizer.eos_token_id
    if token_id is None:
        token_id = min(generator.checkpoint.eos_ids)
    return int(token_id)


class _Search:
    def __init__(
        self,
        generator: Generator,
        template: Template,
        request: Request,
        *,
        n: int,
        tries: int,
        progress: Progress | None,
    ) -> None:
        self._generator, self._template, self._request = generator, template, request
        self._vocabulary = generator.checkpoint.vocabulary
        self._n, self._tries = n, tries
        self._lenient = False
        self._runner = Runner(generator.engine, progress)

    @property
    def passes(self) -> int:
        """Decoder passes so far."""
        return self._runner.passes

    def run(self, pieces: Pieces, end: int, *, lenient: bool) -> list[Filling]:
        """Distinct fillings, the best first; none where every candidate was unusable.

        Args:
            lenient: leave control tokens out of a gap, down to nothing, rather than leave out a filling that has some.
        """
        self._lenient = lenient
        planner = Planner(
            self._request.prompt_ids,
            pieces.ids,
            self._template.gaps,
            self._generator.denoiser.canvas_len,
            end,
        )
        partials = [_Partial()]
        while partials and (least := min(len(p.ids) for p in partials)) < len(self._template.gaps):
            # Windows of unlike sizes may have filled unlike numbers of gaps: those that lag catch up.
            lagging = [p for p in partials if len(p.ids) == least]
            tries = -(-self._tries // len(lagging))
            grown = [new for old in lagging for new in self._grow(old, planner, pieces, tries)]
            distinct: dict[tuple[str, ...], _Partial] = {}
            for partial in sorted(grown, key=lambda p: -(p.settled + p.first)):
                distinct.setdefault(partial.texts, partial)
            settled = self._settle(self._worth_a_look(list(distinct.values())))
            ahead = [p for p in partials if len(p.ids) > least]
            partials = [*ahead, *sorted(settled, key=lambda p: -p.settled)[: self._n]]
        partials = sorted(partials, key=lambda p: -p.settled)[: self._n]
        return [
            Filling(self._template.filled(p.texts), p.texts, p.ids, p.settled, p.gap_logprob, p.seed)
            for p in partials
        ]

    def _worth_a_look(self, partials: Sequence[_Partial]) -> Sequence[_Partial]:
        """The first ones, as many as LOOKS is enough for."""
        words = 0
        for count, partial in enumerate(partials):
            words += len(partial.placed.words(self._begins_word)) if partial.placed else 0
            if words > LOOKS and count >= max(self._n, FEWEST):
                return partials[:count]
        return partials

    def _settle(self, partials: Sequence[_Partial]) -> list[_Partial]:
        """The same partials, their last window scored word by word."""
        texts = [p.placed for p in partials if p.placed is not None]
        out = []
        for partial, text, scores in zip(
            partials, texts, self._runner.score(texts, self._request, self._begins_word), strict=True
        ):
            inside = sum(scores[position] for start, end in text.spots for position in range(start, end))
            out.append(
                replace(
                    partial,
                    settled=partial.settled + sum(scores.values()),
                    gap_logprob=partial.gap_logprob + inside,
                    first=0.0,
                )
            )
        return out

    def _begins_word(self, token_id: int) -> bool:
        piece = self._vocabulary.piece(token_id)
        # A byte above 127 belongs to a letter, or to a character that no word needs to end at.
        return not (piece[:1].isalnum() or piece[:1] >= b"\x80")

    def _grow(self, old: _Partial, planner: Planner, pieces: Pieces, tries: int) -> Iterator[_Partial]:
        window = planner.next(old.ids)
        shortlist = self._shortlist(window, planner)
        candidates = [
            (lengths, self._denoising(window, planner, lengths, derive_seed(self._request.seed, t)))
            for lengths in shortlist
            for t in range(tries)
        ]
        for (lengths, request), completion in zip(
            candidates, self._runner.complete([r for _, r in candidates], "filling"), strict=True
        ):
            new = self._read(old, window, lengths, completion, pieces)
            if new is not None:
                yield replace(new, seed=request.seed)

    def _shortlist(self, window: Window, planner: Planner) -> list[Lengths]:
        inner = window.gaps[:-1] if window.trailing else window.gaps
        options = [length_options(self._template.gaps[gap], planner.most(gap)) for gap in inner]

        def score(combinations: list[Lengths]) -> list[float]:
            requests = [self._screening(window, lengths) for lengths in combinations]
            return [_total(done.tokens) for done in self._runner.complete(requests, "trying lengths")]

        return shortlist(options, score)

    def _screening(self, window: Window, lengths: Lengths) -> Request:
        return replace(
            self._request,
            prompt_ids=window.prefix,
            # A draft that ends early must be scored to its end like the others.
            eos_ids=frozenset(),
            max_tokens=max(window.size(lengths), 1),
            steps=1,
            pins=window.pins(lengths),
            **_SCORED,
        )

    def _denoising(self, window: Window, planner: Planner, lengths: Lengths, seed: int) -> Request:
        pins, size = window.pins(lengths), window.size(lengths)
        if window.trailing:
            most = self._template.gaps[window.gaps[-1]].most
            if most is not None and window.end is not None:
                pins[size + most] = window.end
            size = size + most + 1 if most is not None else max(self._request.max_tokens, size + 1)
        return replace(
            self._request,
            prompt_ids=window.prefix,
            # A text that goes on behind its gaps can't end in one.
            eos_ids=self._request.eos_ids | {planner.end} if window.trailing else frozenset(),
            max_tokens=size,
            seed=seed,
            pins=pins,
            **_SCORED,
        )

    def _read(
        self, old: _Partial, window: Window, lengths: Lengths, completion: Completion, pieces: Pieces
    ) -> _Partial | None:
        """What this completion adds to a partial filling; None where it can't stand in the gaps."""
        tokens = completion.tokens
        spots = window.spots(lengths)
        ended = window.trailing and completion.finish_reason == "eos"
        if window.trailing:
            spots.append((window.size(lengths), len(tokens) - ended))
        fills = [self._usable(token.token_id for token in tokens[start:end]) for start, end in spots]
        texts = [
            fill_text(
                fill,
                self._vocabulary,
                spaced=pieces.spaced[g],
                opens=g == 0 and not self._template.pieces[0],
                blank=self._lenient,
            )
            for g, fill in zip(window.gaps, fills, strict=True)
        ]
        if None in texts:
            return None
        ends = [window.end] if window.end is not None and not window.trailing else []
        placed = place(window, fills, [tokens[-1].token_id] if ended else ends)
        if not placed.ids:  # nothing was written and nothing ended it: there is nothing to score
            return None
        return replace(
            old,
            ids=(*old.ids, *fills),
            texts=(*old.texts, *(text for text in texts if text is not None)),
            first=_total(tokens),
            placed=placed,
        )

    def _usable(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(i for i in ids if not (self._lenient and self._vocabulary.is_special(i)))


_SCORED: dict[str, Any] = {"logprobs": 0, "logprob_ids": (), "logprobs_of": "raw", "seed_canvas": ()}


def _total(tokens: Sequence[Emitted]) -> float:
    return sum(token.logprob for token in tokens if token.logprob is not None)
