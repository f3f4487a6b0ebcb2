"""A vocabulary that grows as tests ask for tokens, and tokens made from their bytes."""

from __future__ import annotations

import pytest

from dgen.engine.events import Emitted

SPECIALS = ("<|channel>", "<channel|>", "<eos>")


class FakeVocabulary:
    """Ids for byte strings (text) and strings (special tokens), given out at first use."""

    channel_start: int | None = 0
    channel_end: int | None = 1

    def __init__(self) -> None:
        self.symbols: list[bytes | str] = list(SPECIALS)

    def piece(self, token_id: int) -> bytes:
        symbol = self.symbols[token_id]
        return symbol if isinstance(symbol, bytes) else b""

    def token(self, token_id: int) -> str:
        symbol = self.symbols[token_id]
        return symbol.decode(errors="replace") if isinstance(symbol, bytes) else symbol

    def is_special(self, token_id: int) -> bool:
        return isinstance(self.symbols[token_id], str)

    def emitted(self, *symbols: bytes | str) -> list[Emitted]:
        """One token a symbol, at positions from 0."""
        for symbol in symbols:
            if symbol not in self.symbols:
                self.symbols.append(symbol)
        return [
            Emitted(
                token_id=self.symbols.index(symbol),
                position=position,
                canvas=position // 4,
                step=3,
                temperature=0.5,
                entropy=0.25,
            )
            for position, symbol in enumerate(symbols)
        ]


@pytest.fixture(scope="session")
def vocabulary() -> FakeVocabulary:
    return FakeVocabulary()
