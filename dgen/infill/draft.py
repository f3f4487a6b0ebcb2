"""A text that exists, with some of its words taken out to be written anew.

Knows text and a way to count tokens. Words are taken whole: half a word left standing would only bring the word back.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from dgen.errors import UsageError
from dgen.infill.template import Gap, Template

Span = tuple[int, int]
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def renoise_share(text: str, share: float, *, seed: int, count_tokens: Callable[[str], int]) -> Template:
    """Free this share of the text's words, at least one, drawn by `seed`; each gap keeps its number of tokens.

    Args:
        share: above 0, at most 1.
        count_tokens: tokens that a word takes, the space before it included.

    Raises:
        UsageError: a share out of range, or a text without a word.
    """
    words = check_share(text, share)
    count = min(max(round(share * len(words)), 1), len(words))
    freed = sorted(random.Random(seed).sample(range(len(words)), count))
    runs: list[list[int]] = []
    for index in freed:
        # Words with a mere space between them make one gap.
        if runs and runs[-1][-1] == index - 1 and text[words[index - 1][1] : words[index][0]] == " ":
            runs[-1].append(index)
        else:
            runs.append([index])
    return _cut(text, [(words[run[0]][0], words[run[-1]][1]) for run in runs], count_tokens, exact=True)


def renoise_spans(text: str, spans: Sequence[Span], *, count_tokens: Callable[[str], int]) -> Template:
    """Free these spans of characters [start, end); each may take up to the tokens that it had.

    Raises:
        UsageError: a span that is empty, backwards or not within the text, or two that overlap or touch.
    """
    return _cut(text, check_spans(text, spans), count_tokens, exact=False)


def check_share(text: str, share: float) -> list[Span]:
    """The words of which a share can be freed; needs no tokenizer. Errors as in `renoise_share`."""
    if not 0 < share <= 1:
        raise UsageError(
            f"--renoise must be above 0 and at most 1, not {share:g}", hint="For example: --renoise 0.4"
        )
    words = [match.span() for match in _WORD.finditer(text)]
    if not words:
        raise UsageError("the draft has no word to renoise", hint="Give a draft with some text.")
    return words


def check_spans(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans in the order of the text; needs no tokenizer. Errors as in `renoise_spans`."""
    ordered = sorted(spans)
    for start, end in ordered:
        if start > end:
            raise UsageError(
                f"the span {start}:{end} ends before it begins", hint=f"Write {end}:{start}: START, then END."
            )
        if start == end:
            raise UsageError(
                f"the span {start}:{end} is empty",
                hint=f"END is left out: {start}:{start + 1} is one character.",
            )
        if start < 0 or end > len(text):
            raise UsageError(
                f"the span {start}:{end} does not lie in the draft, which has {len(text)} characters",
                hint="A span is START:END, counted in characters from 0, END left out.",
            )
    for (a, b), (c, d) in pairwise(ordered):
        if c <= b:
            raise UsageError(
                f"the spans {a}:{b} and {c}:{d} overlap or touch", hint="Write them as one span."
            )
    return ordered


def _cut(text: str, spans: Sequence[Span], count_tokens: Callable[[str], int], *, exact: bool) -> Template:
    pieces, gaps, at = [], [], 0
    for start, end in spans:
        lead = " " if text[at:start].endswith(" ") else ""
        size = max(count_tokens(lead + text[start:end]), 1)
        pieces.append(text[at:start])
        gaps.append(Gap(least=size if exact else 1, most=size))
        at = end
    return Template((*pieces, text[at:]), tuple(gaps))
