"""A tiny random DiffusionGemma checkpoint and its tokenizer, made in well under a second.

Structure follows the released model (both layer kinds with their own head sizes, experts in every layer, tied
weights, a vision tower, scalars that differ between encoder and decoder, several EOS ids, a vocabulary padded
beyond the tokenizer); sizes do not. Weights lean towards copying the canvas, so that logits are peaked and
canvases converge after several steps, yet every layer has a say in every logit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import processors
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
    GemmaTokenizer,
)
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)

SPECIALS = (
    *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
    *("<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool_response>"),
    *("<|image>", "<|image|>", "<image|>"),
)
PAD, EOS, BOS, UNK = 0, 1, 2, 3
TURN, TURN_END, THINK = SPECIALS.index("<|turn>"), SPECIALS.index("<turn|>"), SPECIALS.index("<|think|>")
CHANNEL, CHANNEL_END = SPECIALS.index("<|channel>"), SPECIALS.index("<channel|>")
TOOL_RESPONSE = SPECIALS.index("<|tool_response>")
RELEASED_EOS = (EOS, TURN_END, TOOL_RESPONSE)

FINAL_NORM, MIX = 6.0, 0.45

WORDS = (
    *("a", "an", "and", "are", "cat", "fox", "hat", "I", "in", "is", "it", "no", "of", "on", "red", "run"),
    *("sat", "sky", "sun", "the", "tea", "to", "was", "we", "yes", "you", "user", "model", "thought"),
)
BARE_WORDS = ("user", "model", "thought")  # those that a template writes without a space before
CHARACTERS = "\n▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"()-+=<>|/é"

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- set lead = messages and messages[0]['role'] in ['system', 'developer'] -%}
{%- if lead or enable_thinking -%}
{{- '<|turn>system\\n' -}}
{%- if enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
{%- if lead -%}{{- messages[0]['content'] | trim -}}{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in (messages[1:] if lead else messages) -%}
{%- if message['role'] not in ['user', 'assistant', 'tool'] -%}
{{- raise_exception('a system message must come first') -}}
{%- endif -%}
{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
{{- message['content'] | trim -}}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
{%- if not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""


def tiny_tokenizer() -> GemmaTokenizer:
    """A Gemma-like tokenizer: ▁ for space, merges of a few words, bytes for the rest; BOS on plain text."""
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *CHARACTERS]
    known, merges = set(pieces), []
    for text in [*(f"▁{word}" for word in WORDS), *BARE_WORDS]:
        for cut in range(1, len(text)):
            if text[: cut + 1] not in known:
                known.add(text[: cut + 1])
                pieces.append(text[: cut + 1])
                merges.append((text[:cut], text[cut]))
    with _quiet():
        tokenizer = GemmaTokenizer(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            sot_token="<|turn>",
            eot_token="<turn|>",
            think_token="<|think|>",
            soc_token="<|channel>",
            eoc_token="<channel|>",
            boi_token="<|image>",
            image_token="<|image|>",
            eoi_token="<image|>",
            additional_special_tokens=["<|tool_response>"],
            padding_side="left",
        )
        _put_bos_first(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(
    *,
    seed: int = 0,
    canvas_length: int = 8,
    window: int = 8,
    vocab: int = 480,
    layers: str = "sf",
    softcap: float = 30.0,
    eos: int | Sequence[int] | None = RELEASED_EOS,
    generation: bool = True,
    tied: bool = True,
    **overrides: Any,
) -> tuple[DiffusionGemmaForBlockDiffusion, GemmaTokenizer]:
    """The model in fp32, in eval mode, on the CPU, with its tokenizer.

    Args:
        layers: one letter a layer, `s` sliding or `f` full; the last must be `f`.
        eos: eos_token_id of the generation config; None leaves it unset there.
        generation: False leaves the generation config empty.
        tied: False gives encoder, decoder and head weights of their own.
        overrides: fields of the text config, else of the top config.
    """
    assert layers.endswith("f"), layers
    assert set(layers) <= {"s", "f"}, layers
    tokenizer = tiny_tokenizer()
    assert vocab >= len(tokenizer), f"vocab must be at least {len(tokenizer)}"
    text = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": len(layers),
        "layer_types": ["sliding_attention" if kind == "s" else "full_attention" for kind in layers],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "sliding_window": window,
        "max_position_embeddings": 512,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "final_logit_softcapping": softcap,
        "tie_word_embeddings": tied,
    }
    top = {"canvas_length": canvas_length, "tie_word_embeddings": tied}
    for key, value in overrides.items():
        known_text = key in text or key in DiffusionGemmaTextConfig.__dataclass_fields__
        (text if known_text else top)[key] = value
    with _quiet(), torch.random.fork_rng(devices=[]):
        config = DiffusionGemmaConfig(
            text_config=DiffusionGemmaTextConfig(**text),
            vision_config=_tiny_vision(),
            boi_token_id=SPECIALS.index("<|image>"),
            image_token_id=SPECIALS.index("<|image|>"),
            eoi_token_id=SPECIALS.index("<image|>"),
            **top,
        )
        model = DiffusionGemmaForBlockDiffusion(config).eval().requires_grad_(False)
    _fill(model, torch.Generator().manual_seed(seed))
    model.generation_config = _generation(eos) if generation else DiffusionGemmaGenerationConfig()
    return model, tokenizer


def tiny_checkpoint(path: str | os.PathLike[str], *, generation: bool = True, **settings: Any) -> Path:
    """Write `tiny_model(**settings)` to the folder `path` and return the folder.

    `generation=False` leaves out generation_config.json; see `tiny_model` for the rest.
    """
    path = Path(path)
    model, tokenizer = tiny_model(generation=generation, **settings)
    with _quiet():
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    if not generation:
        (path / "generation_config.json").unlink(missing_ok=True)
    return path


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file (None removes one): how tests break a checkpoint."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        if value is None:
            data.pop(key, None)
        else:
            data[key] = value
    path.write_text(json.dumps(data), encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers inside the block."""
    log = transformers.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _put_bos_first(tokenizer: GemmaTokenizer) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos>:0 $A:0", pair="<bos>:0 $A:0 <bos>:1 $B:1", special_tokens=[("<bos>", BOS)]
    )


def _tiny_vision() -> Gemma4VisionConfig:
    return Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        patch_size=2,
        position_embedding_size=8,
    )


def _generation(eos: int | Sequence[int] | None) -> DiffusionGemmaGenerationConfig:
    return DiffusionGemmaGenerationConfig(
        max_new_tokens=32,
        max_denoising_steps=48,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
        t_min=0.4,
        t_max=0.8,
        stability_threshold=1,
        confidence_threshold=0.005,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=eos if eos is None or isinstance(eos, int) else list(eos),
    )


def _fill(model: DiffusionGemmaForBlockDiffusion, generator: torch.Generator) -> None:
    """Random weights for every parameter; scalars that differ by layer and between encoder and decoder."""
    gains = {
        # Peaked logits before the softcap.
        "decoder.norm.weight": FINAL_NORM,
        "language_model.norm.weight": FINAL_NORM,
        # What a layer adds beside what the canvas holds already: below 1 the model tends to keep its canvas.
        "post_attention_layernorm.weight": MIX,
        "post_feedforward_layernorm.weight": MIX,
        # Attention does not divide by the root of the head size.
        "q_norm.weight": None,
        "k_norm.weight": None,
    }
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1:
            weight.copy_(noise * weight.shape[-1] ** -0.5)
            continue
        gain = next((value for end, value in gains.items() if name.endswith(end)), 1.0)
        weight.copy_((weight.shape[0] ** -0.25 if gain is None else gain) * (1 + 0.1 * noise))
    embedding, canvas_embedding = model.get_input_embeddings().weight, model.model.decoder.embed_tokens.weight
    for head in {model.lm_head.weight, embedding, canvas_embedding}:  # one and the same when tied
        head[list(RELEASED_EOS)] *= 1.2  # else one canvas in hundreds would end a request
    layers = zip(model.model.encoder.language_model.layers, model.model.decoder.layers, strict=True)
    for index, (encoder, decoder) in enumerate(layers):
        encoder.layer_scalar.fill_(0.8 + 0.1 * index)
        decoder.layer_scalar.fill_(1.1 - 0.15 * index)
