"""Floors of a step and of a causal pass, counted by hand from a tiny model's own weights."""

import pytest
from timed import report
from tiny import tiny_model

from dgen.bench.floors import Sizes

CANVAS, VOCAB, HIDDEN = 8, 480, 32


@pytest.fixture(scope="module")
def model():
    return tiny_model(layers="ssf", window=8)[0]


def matrices(weights):
    return sum(weight.numel() for weight in weights if weight.ndim > 1)


def decoder_weights(model, *, experts):
    return [
        weight
        for name, weight in model.model.decoder.named_parameters()
        if (".experts." in name) == experts and "embed_tokens" not in name
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_head_and_self_conditioning_read_the_output_matrix_once_each(tied):
    step = Sizes.of(tiny_model(tied=tied)[0]).step(batch=2, context=0)
    matrix, logits, products = 4 * VOCAB * HIDDEN, 4 * 2 * CANVAS * VOCAB, 2 * 2 * CANVAS * VOCAB * HIDDEN
    assert (step["head"].bytes, step["head"].flops) == (matrix + logits, products)
    assert (step["condition"].bytes, step["condition"].flops) == (matrix, products)
    assert (step["sampler"].bytes, step["sampler"].flops) == (logits, 0)


def test_a_decoder_pass_reads_its_weights_and_the_experts_that_are_hit(model):
    sizes = Sizes.of(model)
    dense = sum(weight.nbytes for weight in decoder_weights(model, experts=False))
    experts = sum(weight.nbytes for weight in decoder_weights(model, experts=True))
    assert experts == 4 * 3 * 4 * (32 * 16 * 3)  # bytes, layers, experts, gate and up and down
    assert sizes.step(batch=1, context=0, hit=4)["decoder"].bytes == dense + experts
    assert sizes.step(batch=1, context=0, hit=1)["decoder"].bytes == dense + experts // 4
    by_chance = sizes.step(batch=1, context=0)["decoder"].bytes
    assert by_chance == pytest.approx(dense + experts * (1 - 0.5**8), abs=2)


@pytest.mark.parametrize(("context", "kept"), [(3, 3), (7, 7), (20, 7)])
def test_the_prefix_is_read_within_each_layers_window(model, context, kept):
    sizes = Sizes.of(model)
    none, some = (sizes.step(batch=2, context=n, hit=4)["decoder"] for n in (0, context))
    # Two sliding layers of 2 key heads x 8, a full one of 1 x 16; keys and values, of two requests.
    entries = 2 * (2 * kept * 2 * 2 * 8 + context * 2 * 1 * 16)
    assert some.bytes - none.bytes == 4 * entries
    # Scores and their product with the values: 4 query heads, 2 operations each.
    assert some.flops - none.flops == 4 * 2 * CANVAS * 4 * (2 * kept * 8 + context * 16)


def test_operations_of_a_step_are_those_of_its_matrices_and_of_attention(model):
    found = Sizes.of(model).step(batch=1, context=0)["decoder"].flops
    dense = matrices(decoder_weights(model, experts=False))
    routed = matrices(decoder_weights(model, experts=True)) * 2 / 4  # 2 of 4 experts a token
    attention = 4 * CANVAS * CANVAS * 4 * (8 + 8 + 16)
    assert found == 2 * CANVAS * (dense + routed) + attention


def test_a_causal_pass_stops_at_the_last_layers_keys_and_values(model):
    sizes = Sizes.of(model)
    layers = list(model.model.decoder.layers)
    named = [pair for layer in layers[:-1] for pair in layer.named_parameters()]
    first = [weight for name, weight in named if not name.startswith("experts.")]
    experts = [weight for name, weight in named if name.startswith("experts.")]
    last = layers[-1]
    needed = [last.input_layernorm.weight, last.self_attn.k_proj.weight, last.self_attn.k_norm.weight]
    work = sizes.causal_pass(batch=1, tokens=64, context=0)
    every = sum(weight.nbytes for weight in [*first, *needed, *experts])
    assert work.bytes == pytest.approx(every, abs=2)  # 64 tokens hit all 4 experts, but for a breath
    assert sizes.causal.entries == matrices([*first, *needed])


@pytest.mark.parametrize(("tokens", "context"), [(3, 0), (8, 0), (20, 0), (20, 5), (4, 30)])
def test_attention_of_a_causal_pass_sees_what_the_window_lets_it_see(model, tokens, context):
    sizes = Sizes.of(model)
    found = sizes.causal_pass(batch=2, tokens=tokens, context=context).flops
    routed = matrices(decoder_weights(model, experts=True)) * 2 / 4 * 2 / 3
    weights = 2 * 2 * tokens * (sizes.causal.entries + routed)
    seen = sum(min(context + i + 1, 8) for i in range(tokens))
    assert found - weights == pytest.approx(2 * 2 * 4 * 4 * 8 * seen)  # batch, sliding layers, 4, heads, size


def test_the_prefix_of_a_commit_leaves_out_the_last_layer(model):
    sizes = Sizes.of(model)
    without, behind = (sizes.causal_pass(batch=1, tokens=8, context=n).bytes for n in (0, 20))
    assert behind - without == 4 * 2 * (7 * 2 * 2 * 8)


def test_works_follow_each_other_and_each_takes_its_longer_half():
    found = report()  # 1e10 bytes and operations a second
    step = next(figure for figure in found.figures if figure.key == "step.b1.p64")
    assert found.floor(step) == pytest.approx(2e6 / 1e10 + 2e6 / 1e10)
    assert step.floor_bytes == 3_000_000
    assert found.floor(found.figures[-1]) is None
