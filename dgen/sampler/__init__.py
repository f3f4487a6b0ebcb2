"""What happens to logits: argmax, draw, entropy, log-probabilities, accept and renoise.

A library of its own: it knows tensors only, no model, no tokenizer and no request, and imports nothing else
of dgen but its errors. `kernels_for` picks the fused Triton kernels or the torch references behind one
signature; without Triton everything but those kernels works.
"""

from __future__ import annotations

from dgen.sampler.chunks import CHUNK
from dgen.sampler.entropy_bound import accept, is_confident, is_stable, remember, renoise, temperature
from dgen.sampler.filters import filter_logits
from dgen.sampler.kernels import SamplerKernels, kernels_for
from dgen.sampler.logprobs import stash_converged_logprobs, stash_converged_logprobs_reference
from dgen.sampler.noise import Purpose, derive_seed, gumbel, random_ids, random_ids_reference, seed_to_int64
from dgen.sampler.row_stats import sample_row_stats, sample_row_stats_reference

__all__ = [
    "CHUNK",
    "Purpose",
    "SamplerKernels",
    "accept",
    "derive_seed",
    "filter_logits",
    "gumbel",
    "is_confident",
    "is_stable",
    "kernels_for",
    "random_ids",
    "random_ids_reference",
    "remember",
    "renoise",
    "sample_row_stats",
    "sample_row_stats_reference",
    "seed_to_int64",
    "stash_converged_logprobs",
    "stash_converged_logprobs_reference",
    "temperature",
]
