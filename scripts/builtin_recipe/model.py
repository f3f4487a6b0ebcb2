"""The demo model: its sizes, its start, and its files as transformers reads them.

Builds transformers' own DiffusionGemma classes, with a one-layer vision tower of width 16, since the class can't do
without one.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, Gemma4VisionConfig
from transformers.models.diffusion_gemma import DiffusionGemmaTextConfig

from builtin_recipe import template as chat
from builtin_recipe.sizes import CANVAS, LAYERS, VOCABULARY, WINDOW
from builtin_recipe.tokenizer import id_of


def build_config(*, hidden: int = 256, layers: tuple[str, ...] = LAYERS, vocabulary: int = VOCABULARY) -> Any:
    """The configuration; smaller `hidden` (a multiple of 64) and fewer `layers` serve tests."""
    text_config: Any = DiffusionGemmaTextConfig  # takes keywords that its fields don't show
    vision_config: Any = Gemma4VisionConfig
    whole_config: Any = DiffusionGemmaConfig
    text = text_config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 5 // 4,
        num_hidden_layers=len(layers),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        global_head_dim=hidden // 2,
        num_global_key_value_heads=1,
        layer_types=list(layers),
        sliding_window=WINDOW,
        max_position_embeddings=4096,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=hidden * 3 // 16,
        final_logit_softcapping=30.0,
        pad_token_id=id_of(chat.PAD),
        eos_token_id=id_of(chat.EOS),
        bos_token_id=id_of(chat.BOS),
    )
    vision = vision_config(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        global_head_dim=16,
        patch_size=4,
        position_embedding_size=16,
        pooling_kernel_size=1,
    )
    return whole_config(
        text_config=text,
        vision_config=vision,
        canvas_length=CANVAS,
        boi_token_id=id_of(chat.IMAGE_START),
        image_token_id=id_of(chat.IMAGE),
        eoi_token_id=id_of(chat.IMAGE_END),
        pad_token_id=id_of(chat.PAD),
        eos_token_id=[id_of(chat.EOS), id_of(chat.END_OF_TURN), id_of(chat.TOOL_RESPONSE)],
        bos_token_id=id_of(chat.BOS),
    )


def build_model(config: Any, *, seed: int) -> Any:
    """A model with fresh weights in fp32, drawn from `seed`.

    Attention has no scaling, so the norms of queries and keys start at head_dim ** -0.25 to take its place.
    """
    torch.manual_seed(seed)
    model = DiffusionGemmaForBlockDiffusion(config).float()
    hidden = config.text_config.hidden_size
    with torch.no_grad():
        for name, weight in model.model.decoder.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(weight.shape[0] ** -0.25)
            elif weight.ndim >= 2:
                fan_in = weight.shape[-1]
                weight.normal_(0.0, hidden**-0.5 if "embed_tokens" in name else fan_in**-0.5)
    model.tie_weights()
    return model


def generation_settings() -> dict[str, Any]:
    """What generation_config.json says: the released checkpoint's defaults."""
    return {
        "bos_token_id": id_of(chat.BOS),
        "pad_token_id": id_of(chat.PAD),
        "eos_token_id": [id_of(chat.EOS), id_of(chat.END_OF_TURN), id_of(chat.TOOL_RESPONSE)],
        "max_new_tokens": 256,
        "max_denoising_steps": 48,
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "sampler_config": {"entropy_bound": 0.1, "_cls_name": "EntropyBoundSamplerConfig"},
    }


def write_model(model: Any, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (fp16, each tied weight once, readable by all).

    config.json asks for fp32, so that a plain load runs in the precision that the quality table was measured in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    places: set[tuple[int, int]] = set()
    for name, tensor in sorted(
        model.state_dict().items(), key=lambda item: ("encoder.language" in item[0], item[0])
    ):
        place = (tensor.data_ptr(), tensor.numel())
        if place in places or name == "lm_head.weight":
            continue
        places.add(place)
        tensors[name] = tensor.detach().to("cpu", torch.float16).contiguous().clone()
    path = folder / "model.safetensors"
    save_file(tensors, str(path), metadata={"format": "pt"})
    os.chmod(path, 0o644)
    config = model.config.to_dict()
    config["architectures"] = ["DiffusionGemmaForBlockDiffusion"]
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    settings = json.dumps(generation_settings(), indent=2) + "\n"
    (folder / "generation_config.json").write_text(settings, encoding="utf-8")
