"""What can be chosen from: given answers and the text that they stand in, checked as text, before a model is needed."""

from __future__ import annotations

from collections.abc import Sequence

from dgen.errors import UsageError
from dgen.infill.template import parse_template

MOST_CHOICES = 1000
_EXAMPLE = "For example: --answer 'It is {{}}.'"


def check_choices(
    choices: Sequence[str], *, prompt: str | None, system: str | None, answer: str, passes: int
) -> tuple[str, str]:
    """The answer's text before and behind the choice.

    Raises:
        UsageError: too few or too many choices, an empty or repeated one, an answer without exactly one gap of
            open size, or nothing to answer.
    """
    if not all(text.strip() for text in choices):
        raise UsageError("a choice is empty", hint="Give each some text, for example --choices yes,no")
    if not 2 <= len(choices) <= MOST_CHOICES:
        count = "there is 1 choice" if len(choices) == 1 else f"there are {len(choices)} choices"
        raise UsageError(f"{count}; give 2 to {MOST_CHOICES}", hint="For example: --choices yes,no,maybe")
    seen = set()
    for text in choices:
        if text in seen:
            raise UsageError(f"the choice '{text}' is given twice", hint="Leave one of them out.")
        seen.add(text)
    template = parse_template(answer, example=_EXAMPLE)
    if len(template.gaps) != 1:
        raise UsageError(
            f"the answer's text has {len(template.gaps)} gaps; the choice goes into one", hint=_EXAMPLE
        )
    size = template.gaps[0].most
    if size is not None:
        raise UsageError(
            f"the gap {{{{{size}}}}} in --answer has a size; each choice is scored at its own length",
            hint="Write {{}} for the choice.",
        )
    before, behind = template.pieces
    if prompt is None and not (before + behind).strip():
        raise UsageError("there is nothing to choose for", hint="Give --prompt, or --answer 'Coal is {{}}.'")
    if system is not None and prompt is None:
        raise UsageError("a system text needs a prompt", hint="Add --prompt, or leave --system out.")
    if passes < 1:
        raise UsageError(f"--passes must be at least 1, not {passes}", hint="The default is 4.")
    return before, behind
