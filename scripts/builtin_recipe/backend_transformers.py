"""A backend for `measure`: transformers' own generate at the checkpoint's default settings.

Prompts of one length run as one batch (no padding). Each row converges on its own, and its own steps are counted.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion: its text without the markers, its canvases, and the decoder passes of all of them."""

    text: str
    canvases: int
    steps: int


class TransformersBackend:
    """Rendered prompts in, answers out. Batches are cut at `batch` rows."""

    def __init__(self, folder: Path, *, device: str, batch: int = 64) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=torch.float32)
        self.model: Any = model.eval().to(device)
        self.device, self.batch = device, batch

    def __call__(self, prompts: list[str], *, seed: int) -> list[Answer]:
        """Answer rendered prompts, in their order."""
        torch.manual_seed(seed)
        ids = [self.tokenizer(p, add_special_tokens=False).input_ids for p in prompts]
        groups: dict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(ids):
            groups[len(row)].append(i)
        out: dict[int, Answer] = {}
        for _, members in sorted(groups.items()):
            for at in range(0, len(members), self.batch):
                rows = members[at : at + self.batch]
                out.update(zip(rows, self._run([ids[i] for i in rows]), strict=True))
        return [out[i] for i in range(len(prompts))]

    def _run(self, ids: list[list[int]]) -> list[Answer]:
        inputs = torch.tensor(ids, device=self.device)
        result = self.model.generate(inputs)
        new = result.sequences[:, inputs.shape[1] :]
        settings = self.model.generation_config
        ends = torch.tensor(settings.eos_token_id, device=new.device)
        length = self.model.config.canvas_length
        # tokens_per_forward counts what is no padding; the same count gives the decoder passes back exactly.
        counted = (new != settings.pad_token_id).sum(dim=-1)
        passes = (counted / result.tokens_per_forward).round().int()
        answers = []
        for row, steps in zip(new, passes.tolist(), strict=True):
            stops = torch.isin(row, ends).nonzero()
            stop = int(stops[0]) if len(stops) else len(row)
            text = str(self.tokenizer.decode(row[:stop], skip_special_tokens=False))
            answers.append(Answer(text, min(stop, len(row) - 1) // length + 1, steps))
        return answers
