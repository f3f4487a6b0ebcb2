"""What each token id adds to text, as bytes: the ground for streaming text and for log-probability records.

Reads a tokenizer once and keeps no hold on it; standard library only. Knows byte-fallback tokenizers (a
visible character for the space, `<0xNN>` for bytes) and GPT-style byte-level ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Token ids -> raw tokens and bytes. Ids without a token, and special ones, add nothing to text.

    Args:
        tokens: id -> raw token.
        special: ids of special tokens.
        replacements: (text in a token, what it stands for), applied in order; no effect if `byte_level`.
        byte_fallback: `<0xNN>` stands for one byte.
        byte_level: each character of a token stands for one byte (GPT-style).
        marks: ids of channel_start, channel_end and think, where the model has them.
    """

    def __init__(
        self,
        tokens: Mapping[int, str],
        *,
        special: Iterable[int] = (),
        replacements: Iterable[tuple[str, str]] = (("▁", " "),),
        byte_fallback: bool = True,
        byte_level: bool = False,
        marks: Mapping[str, int | None] | None = None,
    ) -> None:
        self._tokens = dict(tokens)
        self._special = frozenset(special)
        self._replacements = tuple(replacements)
        self._byte_fallback = byte_fallback
        self._byte_level = byte_level
        self._pieces: dict[int, bytes] = {}
        self.size = max(self._tokens, default=-1) + 1
        marks = marks or {}
        self.channel_start = marks.get("channel_start")
        self.channel_end = marks.get("channel_end")
        self.think = marks.get("think")

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> Vocabulary:
        """Read a transformers tokenizer: vocabulary, special tokens, decoder and the marks that it names."""
        ids = dict(tokenizer.get_vocab())
        special = set(tokenizer.all_special_ids)
        for index, token in tokenizer.added_tokens_decoder.items():
            if token.special:
                special.add(index)
        steps = _decoder_steps(tokenizer)
        kinds = {step.get("type") for step in steps}
        replacements = [step for step in map(_replacement, steps) if step]

        def mark(attribute: str, token: str) -> int | None:
            return ids.get(getattr(tokenizer, attribute, None) or token)

        return cls(
            {index: token for token, index in ids.items()},
            special=special,
            replacements=replacements if steps else (("▁", " "),),
            byte_fallback=not steps or "ByteFallback" in kinds,
            byte_level="ByteLevel" in kinds,
            marks={
                "channel_start": mark("soc_token", "<|channel>"),
                "channel_end": mark("eoc_token", "<channel|>"),
                "think": mark("think_token", "<|think|>"),
            },
        )

    def token(self, token_id: int) -> str:
        """The raw token; `<unused N>` for an id that has none."""
        return self._tokens.get(token_id, f"<unused {token_id}>")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which adds nothing to text."""
        return token_id in self._special

    def piece(self, token_id: int) -> bytes:
        """The UTF-8 bytes that the token adds to text; may end within a character."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self._decode(token_id)
        return self._pieces[token_id]

    def _decode(self, token_id: int) -> bytes:
        token = self._tokens.get(token_id)
        if token is None or token_id in self._special:
            return b""
        if self._byte_level:
            return b"".join(_BYTE_OF.get(char) or char.encode() for char in token)
        byte = _BYTE.fullmatch(token)
        if byte and self._byte_fallback:
            return bytes([int(byte[1], 16)])
        for written, meant in self._replacements:
            token = token.replace(written, meant)
        return token.encode()


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    """The decoder's steps as the tokenizers library writes them; none for a tokenizer without a backend."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    # A component's pickled state is its JSON; writing out the whole tokenizer would take a second.
    state = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state.get("type") == "Sequence" else [state]
    return steps


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    if step.get("type") == "Replace" and "String" in step.get("pattern", {}):
        return step["pattern"]["String"], step["content"]
    if step.get("type") == "Metaspace":
        return step.get("replacement", "▁"), " "
    return None


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in plain)
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    alphabet.update({chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
