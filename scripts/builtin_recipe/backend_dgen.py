"""A backend for `measure`: dgen's own engine at the checkpoint's default settings, one request after another."""

from dataclasses import dataclass
from pathlib import Path

import dgen
from dgen.sampler import derive_seed


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion: its text with markers but without the end, its canvases, and their denoising steps."""

    text: str
    canvases: int
    steps: int


class DgenBackend:
    """Rendered prompts in, answers out; prompt i runs under seed i of `seed`."""

    def __init__(self, folder: Path, *, device: str) -> None:
        self.model = dgen.load(str(folder), device=device)

    def __call__(self, prompts: list[str], *, seed: int) -> list[Answer]:
        """Answer rendered prompts, in their order."""
        return [self._answer(prompt, derive_seed(seed, i)) for i, prompt in enumerate(prompts)]

    def _answer(self, prompt: str, seed: int) -> Answer:
        # Raw: `measure` has put the prompt through the template already.
        completion = self.model.generate(prompt, raw=True, seed=seed).completion
        ids = [token.token_id for token in completion.tokens]
        if completion.finish_reason == "eos":
            ids.pop()
        text = str(self.model.checkpoint.tokenizer.decode(ids, skip_special_tokens=False))
        return Answer(text, len(completion.steps), sum(completion.steps))
