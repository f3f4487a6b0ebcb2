"""transformers' modules as the fused forward reads them: one memory, and what can't be run by name."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model
from torch import nn

from dgen.denoiser import weights
from dgen.denoiser.fused import FusedDenoiser
from dgen.denoiser.reference import ReferenceDenoiser
from dgen.denoiser.weights import _joined, stack_weights, unsupported
from dgen.errors import SettingsError
from dgen.sampler import chunks

pytestmark = pytest.mark.usefixtures("interpreter")


def bytes_held(model) -> int:
    """Of every storage that the model's parameters and buffers lie in, once each."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.state_dict().values()
    }
    return sum(storages.values())


def logits_of(model):
    denoiser = ReferenceDenoiser(model)
    denoiser.prefill(0, torch.tensor([2, 50, 60]))
    canvas = torch.arange(20, 20 + denoiser.canvas_len)[None]
    denoiser.condition(
        torch.tensor([0]),
        denoiser.denoise(torch.tensor([0]), canvas),
        torch.tensor([0.7]),
        None,
        torch.zeros(1, denoiser.canvas_len, dtype=torch.bool),
    )
    return denoiser.denoise(torch.tensor([0]), canvas)


@pytest.mark.parametrize("tied", [True, False])
def test_fusing_moves_weights_and_changes_and_doubles_none(tied):
    model = tiny_model(tied=tied)[0]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held, logits = bytes_held(model), logits_of(model)
    parameters = dict(model.named_parameters())
    for _ in range(2):  # a second time finds the work done
        FusedDenoiser(model, max_context=32)
        assert bytes_held(model) == held
        assert {name: p.data_ptr() for name, p in parameters.items()} == {
            name: p.data_ptr() for name, p in model.named_parameters()
        }
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(logits_of(model), logits)


def test_joined_products_are_views_of_one_storage_and_stay_so():
    model = tiny_model()[0]
    first = stack_weights(model.model.decoder)
    second = stack_weights(model.model.decoder)
    for layer, made, again in zip(model.model.decoder.layers, first.layers, second.layers, strict=True):
        assert made.qkv.data_ptr() == again.qkv.data_ptr() == layer.self_attn.q_proj.weight.data_ptr()
        assert made.gate_up.data_ptr() == again.gate_up.data_ptr()
        assert (
            layer.mlp.up_proj.weight.untyped_storage().data_ptr() == made.gate_up.untyped_storage().data_ptr()
        )
        parts = [
            p.weight for p in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj) if p
        ]
        assert torch.equal(made.qkv, torch.cat(parts))
        layer.self_attn.k_proj.weight.data[0, 0] = 123.0
        assert made.qkv[layer.self_attn.q_proj.out_features, 0] == 123.0


def test_neighbours_in_one_storage_are_taken_as_they_lie_and_others_are_not():
    whole = torch.arange(40.0).view(10, 4)
    near = [nn.Parameter(part, requires_grad=False) for part in whole.split([6, 4])]
    assert _joined(near).data_ptr() == whole.data_ptr()
    turned = [nn.Parameter(part, requires_grad=False) for part in (whole[6:], whole[:6])]
    joined = _joined(turned)
    assert torch.equal(joined, torch.cat([whole[6:], whole[:6]]))
    apart = [nn.Parameter(part, requires_grad=False) for part in (whole[:3], whole[5:])]
    assert torch.equal(_joined(apart), torch.cat([whole[:3], whole[5:]]))


def text(model):
    return model.config.get_text_config()


def set_activation(model):
    text(model).hidden_activation = "silu"


def set_bidirectional(model):
    text(model).use_bidirectional_attention = "all"


def set_half(model):
    model.half()


def set_softcap(model):
    text(model).final_logit_softcapping = 2000.0


def set_rope(model):
    model.model.decoder.rotary_emb.rope_type["full_attention"] = "dynamic"


def set_quantized(model):
    class Linear4bit(nn.Linear):
        pass

    attention = model.model.decoder.layers[1].self_attn
    attention.q_proj = Linear4bit(32, 64, bias=False)


def set_quantized_experts(model):
    experts = model.model.decoder.layers[0].experts
    experts.gate_up_proj = nn.Parameter(experts.gate_up_proj.to(torch.float16), requires_grad=False)


def set_odd_heads(model):
    model.model.decoder.layers[0].self_attn.head_dim = 7


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_activation, "its activation is silu"),
        (set_bidirectional, "its encoder is not causal"),
        (set_half, "its dtype is float16"),
        (set_softcap, "its softcap is 2000"),
        (set_rope, "its rotary positions are of the type dynamic"),
        (set_quantized, r"its weights are quantized \(Linear4bit\)"),
        (set_quantized_experts, "its weights are of several dtypes"),
        (set_odd_heads, "its heads have the odd size 7"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_run_is_refused_by_name(change, reason):
    model = tiny_model()[0]
    assert unsupported(model) is None
    change(model)
    with pytest.raises(SettingsError, match=f"can't run this model: {reason}") as caught:
        FusedDenoiser(model)
    assert caught.value.hint == "Use --denoiser reference (or auto)."


def test_a_softcap_is_left_to_the_sampler_only_where_its_kernels_take_it():
    assert weights.SOFTCAPS == chunks.SOFTCAPS


def test_every_projection_counts_not_only_the_first():
    """A checkpoint that is quantized in part is refused too."""
    refused = []
    for path in ("self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "router.proj"):
        model = tiny_model()[0]
        owner, name = path.split(".")
        module = getattr(model.model.decoder.layers[0], owner)
        plain = getattr(module, name)
        made = type("Linear4bit", (nn.Linear,), {})(plain.in_features, plain.out_features, bias=False)
        setattr(module, name, made)
        refused.append((path, unsupported(model)))
    assert all(reason is not None for _, reason in refused), refused
