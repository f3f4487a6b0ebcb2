"""A quick look at the model while it trains: the first canvas of held-out questions, by this recipe's own forward.

It follows the checkpoint's default settings (generation_config.json).
The table that counts comes from `measure`, on a real engine.
"""

import random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from builtin_recipe import forward
from builtin_recipe.corpus import KINDS, Question, World
from builtin_recipe.model import generation_settings
from builtin_recipe.sizes import CANVAS, SHORT
from builtin_recipe.template import PAD, render
from builtin_recipe.tokenizer import id_of


def _prefixes(questions: list[Question], tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    rows, pads = [], []
    for question in questions:
        text = render([("user", question.exchange.question)])
        ids = tokenizer.encode(text, add_special_tokens=False).ids[-SHORT:]
        pads.append(SHORT - len(ids))
        rows.append([id_of(PAD)] * pads[-1] + ids)
    return torch.tensor(rows), torch.tensor(pads)


@torch.no_grad()
def denoise(
    model: Any, layout: forward.Layout, flat: Tensor, prefix: Tensor, pads: Tensor, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The first canvas of each row: argmax tokens [rows, CANVAS] and the steps that each took [rows]."""
    device, settings = prefix.device, generation_settings()
    w = forward.views(layout, flat, dtype)
    at = torch.arange(prefix.shape[1] + CANVAS, device=device)[None] - pads[:, None]
    before, here = (forward.rotations(model, a) for a in (at[:, :SHORT].clamp(min=0), at[:, SHORT:]))
    masks = forward.encoder_masks(pads, SHORT, layout.window)
    _, kept, _ = forward.encode(w, layout, prefix, before, masks, dtype=dtype)
    masks = forward.decoder_masks(pads, SHORT, CANVAS, layout.window)
    vocabulary = w["embed_tokens.weight"].shape[0]
    x = torch.randint(0, vocabulary, (len(pads), CANVAS), device=device)
    best, soft = torch.full_like(x, -1), None
    done, steps = torch.zeros_like(pads, dtype=torch.bool), torch.zeros_like(pads)
    count = settings["max_denoising_steps"]
    for step in range(count):
        share = (count - step) / count
        t = torch.tensor(settings["t_min"] + (settings["t_max"] - settings["t_min"]) * share, device=device)
        logits, _ = forward.decode(w, layout, x, soft, here, masks, kept, dtype=dtype)
        logp = (logits / t).log_softmax(dim=-1)
        entropy = -(logp.exp() * logp).sum(dim=-1)
        draw = torch.distributions.Categorical(logits=logp).sample()
        low, order = entropy.sort(dim=-1)
        accept = torch.zeros_like(done[:, None].expand_as(x)).scatter(
            -1, order, low.cumsum(-1) - low <= settings["sampler_config"]["entropy_bound"]
        )
        x = torch.where(accept, draw, torch.randint(0, vocabulary, x.shape, device=device))
        new = logits.argmax(dim=-1)
        steps += ~done
        sure = (new == best).all(dim=-1) & (entropy.mean(dim=-1) < settings["confidence_threshold"])
        best = torch.where(done[:, None], best, new)
        done = done | sure
        if bool(done.all()):
            break
        soft = forward.soft_embeddings(w, layout, logits, t, dtype=dtype)
    return best, steps


def quick_check(
    model: Any,
    layout: forward.Layout,
    flat: Tensor,
    tokenizer: Tokenizer,
    *,
    each: int,
    seed: int,
    dtype: torch.dtype,
) -> str:
    """One line: the right answers and mean steps of each kind, over `each` held-out questions."""
    world, rng = World(), random.Random(f"quick-{seed}")
    out = []
    for kind in KINDS:
        questions = [world.question(kind, rng, held=True) for _ in range(each)]
        prefix, pads = (y.to(flat.device) for y in _prefixes(questions, tokenizer))
        best, steps = denoise(model, layout, flat, prefix, pads, dtype=dtype)
        texts = [
            tokenizer.decode(row, skip_special_tokens=False).split("<turn|>")[0] for row in best.tolist()
        ]
        # A canvas may hold the beginning of a right answer only; of a story the beginning can't be judged.
        right = sum(
            t == q.exchange.answer[: len(t)] and bool(t) for t, q in zip(texts, questions, strict=True)
        )
        score = "" if kind == "stories" else f"{right}/{each} "
        out.append(f"{kind} {score}{steps.float().mean().item():.1f}")
    return " | ".join(out)
