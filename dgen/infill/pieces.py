"""What is given of a text as token ids to be pinned, and the ids of a filling back as text.

Knows a tokenizer and a Vocabulary. A space belongs to the token behind it, so a space before a gap is left to the gap,
whose text must then begin with it (`spaced`); failing that it can be pinned as a token of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dgen.errors import UsageError
from dgen.infill.template import Template
from dgen.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Pieces:
    """Token ids of each piece of a template; `spaced` says of each gap whether its text must begin with a space."""

    ids: tuple[tuple[int, ...], ...]
    spaced: tuple[bool, ...]


def encode_pieces(template: Template, tokenizer: Any, vocabulary: Vocabulary, *, spaced: bool) -> Pieces:
    """Encode what is given, without the space before each gap if `spaced`.

    Raises:
        UsageError: a piece whose tokens don't give its text back: a control token written out, say.
    """
    texts = list(template.pieces)
    leads = [spaced and text.endswith(" ") for text in texts[:-1]]
    for index, lead in enumerate(leads):
        if lead:
            texts[index] = texts[index][:-1]
    return Pieces(tuple(encode(text, tokenizer, vocabulary) for text in texts), tuple(leads))


def encode(text: str, tokenizer: Any, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of a text that must come back byte for byte.

    Raises:
        UsageError: they don't give the text back.
    """
    try:
        wanted = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text is no valid text: {error.reason}", hint="Write it in UTF-8.") from error
    ids = tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else ()
    if b"".join(map(vocabulary.piece, ids)) != wanted:
        control = next((vocabulary.token(i) for i in ids if vocabulary.is_special(i)), None)
        what = f"the control token {control}" if control else "characters that its tokenizer changes"
        raise UsageError(
            f"the given text holds {what}, and could not be returned unchanged", hint="Leave that out."
        )
    return ids


def fill_text(
    ids: Sequence[int], vocabulary: Vocabulary, *, spaced: bool, opens: bool = False, blank: bool = False
) -> str | None:
    """A gap's text without the space that stands before the gap; None where the ids can't stand in one.

    They can't if one is a control token, if they make no valid or (unless `blank`) no visible text, if the space is
    missing, or if the gap `opens` the text and they begin with one.
    """
    if any(vocabulary.is_special(token_id) for token_id in ids):
        return None
    try:
        text = b"".join(map(vocabulary.piece, ids)).decode()
    except UnicodeDecodeError:
        return None
    if spaced:
        if not text.startswith(" "):
            return None
        text = text[1:]
    if opens and text[:1].isspace():
        return None
    return text if blank or text.strip() else None
