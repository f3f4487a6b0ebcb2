"""What a trace says, as the events that it was written from, and a vocabulary of the tokens that it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dgen.engine.events import Converged, Denoised, Emitted
from dgen.output.records import Record


class TraceVocabulary:
    """The tokens that a trace names, as the Vocabulary that text is made with; unnamed ids add nothing."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._special: dict[int, str] = {}
        self.channel_start: int | None = None
        self.channel_end: int | None = None

    def add(self, token_id: int, name: Any) -> None:
        """Learns one entry of `names`; ValueError for one that is none."""
        if isinstance(name, str):
            self._pieces[token_id] = name.encode()
        elif isinstance(name, list):
            self._pieces[token_id] = bytes(name)
        elif isinstance(name, dict) and isinstance(name.get("special"), str):
            self._special[token_id] = name["special"]
            if name["special"] == "<|channel>":
                self.channel_start = token_id
            elif name["special"] == "<channel|>":
                self.channel_end = token_id
        else:
            raise ValueError(f"a name of token {token_id}")

    def names(self) -> dict[int, Any]:
        """Each entry, as `names` of a trace has it."""
        special: dict[int, Any] = {token_id: {"special": name} for token_id, name in self._special.items()}
        return {**{token_id: _text_or_bytes(piece) for token_id, piece in self._pieces.items()}, **special}

    def piece(self, token_id: int) -> bytes:
        """The bytes that the token adds to text."""
        return self._pieces.get(token_id, b"")

    def token(self, token_id: int) -> str:
        """The token's name: that of a special one, else its text."""
        name = self._special.get(token_id)
        return name if name is not None else self.piece(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token adds nothing to text."""
        return token_id in self._special


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step; `time` in seconds since the trace began, `changed` positions of the argmax canvas."""

    event: Denoised
    time: float
    changed: int


@dataclass(slots=True)
class TracedCanvas:
    """One canvas; `converged` is None where the run ended before."""

    steps: list[Step] = field(default_factory=list)
    converged: Converged | None = None
    time: float = 0.0


@dataclass(slots=True)
class Trace:
    """A whole trace; `end` is None where the run has not come to its end, `torn` the line that breaks off within."""

    header: Record
    vocabulary: TraceVocabulary
    canvases: list[TracedCanvas] = field(default_factory=list)
    end: Record | None = None
    torn: int | None = None

    @property
    def tokens(self) -> list[Emitted]:
        """The emitted tokens of all converged canvases, those behind a stop string left out."""
        found = [t for canvas in self.canvases if canvas.converged for t in canvas.converged.tokens]
        return found if self.end is None else found[: self.end["tokens"]]
