"""Traces made without a model: a few steps over tokens of every awkward kind."""

from __future__ import annotations

import io

from dgen.engine.events import Completion, Converged, Denoised, Emitted, Finished
from dgen.output.trace import TraceWriter
from dgen.vocabulary import Vocabulary

TOKENS = (
    *("<pad>", "<eos>", "▁a", "▁fox", "</script><script>alert(1)</script>", "<!--", "日本", "👩", "\u200d"),
    *(
        "<0xF0>",
        "<0x9F>",
        "<0xA6>",
        "<0x8A>",
        "\n",
        "\u202eevil",
        "\x1b[31m",
        "e",
        "\u0301",
        "&amp;",
        '"',
        "$title",
    ),
)
VOCABULARY = Vocabulary(dict(enumerate(TOKENS)), special=(0, 1))
HEADER = {
    "dgen_version": "0.1.0",
    "model": "</title><script>alert(2)</script>",
    "revision": None,
    "runtime": {"device": "cpu", "dtype": "float32", "denoiser": "scripted", "kernels": "torch"},
    "seed": 7,
    "settings": {"steps": 4, "confidence": 0.005, "stop": []},
    "id": "dgen-test",
    "versions": {"python": "3.11.0", "torch": "2.13.0", "transformers": "5.24.0", "triton": None},
    "canvas_len": len(TOKENS),
    "prompt_ids": [3, 4],
}


def id_of(token: str) -> int:
    """The token's id."""
    return TOKENS.index(token)


def step(canvas: int, number: int, draft: tuple[int, ...], *, accepted: int) -> Denoised:
    """A step that accepts the first positions and is less sure of the later ones."""
    length = len(draft)
    entropy = tuple(0.0 if at < accepted else 3.0 * at / length for at in range(length))
    mask = tuple(at < accepted for at in range(length))
    return Denoised(0, canvas, number, 0.8 - number / 10, sum(entropy) / length, mask, draft, entropy)


def events(*, logprobs: bool = True) -> list:
    """Two canvases: one that converges step by step to all tokens in order, and one that is over at once."""
    last = tuple(range(len(TOKENS)))
    drafts = [last[::-1], last[:8] + last[:-8], last]
    found = [step(0, number, draft, accepted=8 * number) for number, draft in enumerate(drafts)]

    def emitted(ids: tuple[int, ...], canvas: int, first: int) -> tuple[Emitted, ...]:
        extra = (-0.25, 1, ((2, -0.25), (3, float("-inf"))), ()) if logprobs else ()
        return tuple(
            Emitted(token_id, first + at, canvas, 2, 0.6, 0.1, *extra) for at, token_id in enumerate(ids)
        )

    whole = emitted(last[2:], 0, 0)
    found.append(Converged(0, 0, 3, "confidence", whole))
    found.append(step(1, 0, (3, 1, *[0] * (len(TOKENS) - 2)), accepted=len(TOKENS)))
    rest = emitted((3, 1), 1, len(whole))
    found.append(Converged(0, 1, 1, "steps", rest))
    completion = Completion(0, (*whole, *rest), "eos", 2, (3, 1), ("confidence", "steps"), 7)
    return [*found, Finished(0, completion)]


def trace_text(*, logprobs: bool = True, cut: int | None = None) -> str:
    """A whole trace; `cut` leaves only so many lines."""
    stream, clock = io.StringIO(), iter(range(100))
    writer = TraceWriter(stream, vocabulary=VOCABULARY, header=HEADER, clock=lambda: next(clock) / 4)
    for event in events(logprobs=logprobs):
        writer.see(event)
    return "".join(stream.getvalue().splitlines(keepends=True)[:cut])
