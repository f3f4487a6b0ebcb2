"""The sampler between its two products: LM head, row statistics with softmax, softmax @ embedding, as one chain.

Both products share the matrix [vocab, hidden], as the released model's tied embedding does; all in bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from dgen.bench.logits import SOFTCAP, TEMPERATURE
from dgen.bench.measure import Bench, Body
from dgen.bench.quantiles import quantile
from dgen.bench.report import DGEN, REFERENCE, Figure, Work
from dgen.bench.row_stats import reference_need
from dgen.sampler import SamplerKernels, kernels_for

PRODUCTS = "the two products"
_SPREAD = 3.0  # standard deviation of the logits
_SIDE = {"cpu": 1024, "cuda": 8192}  # of the square product that is the yardstick


@dataclass(frozen=True, slots=True)
class Chain:
    """Sizes of one chain."""

    rows: int
    vocab: int
    hidden: int

    @property
    def bytes(self) -> int:
        """What can't stay on the chip: the matrix twice; the logits written, read twice; the softmax both ways."""
        return 2 * (2 * self.vocab * self.hidden + 5 * self.rows * self.vocab)

    @property
    def flops(self) -> float:
        """Of both products."""
        return 4.0 * self.rows * self.vocab * self.hidden

    @property
    def name(self) -> str:
        """Part of a figure's title."""
        return f"{self.rows}x{self.vocab}, hidden {self.hidden}"


def product_rate(bench: Bench) -> float:
    """FLOP/s of a large bf16 product (fp32 on a CPU), of the median."""
    side = _SIDE[bench.device.type]
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    generator = torch.Generator(bench.device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=generator, device=bench.device).to(dtype) for _ in range(2))
    bench.progress("matrix products")
    bench.timer.warm_up(lambda: a @ b)
    samples = bench.timer.interleave({"product": lambda: a @ b}, bench.repeats)
    return 2.0 * side**3 / quantile(samples["product"], 0.5)


def chain_figures(bench: Bench, kernels: SamplerKernels, chain: Chain, *, only: str = "") -> Iterator[Figure]:
    """The LM head, `p @ E`, and the chain; only where kernels run beside a reference.

    All or nothing: `only` is part of the whole chain's key, or none is timed.
    """
    if bench.device.type != "cuda" or only not in f"chain.{chain.rows}x{chain.vocab}":
        return
    need = chain.bytes
    lack = bench.lack(need)
    parts = None if lack else _Parts(bench, chain)
    for key, title, call in (
        ("lm_head", "LM head", None if parts is None else parts.lm_head),
        ("embed", "softmax @ embedding", None if parts is None else parts.embed),
    ):
        figure = bench.figure(
            f"chain.{chain.rows}x{chain.vocab}.{key}",
            f"{title} {chain.name}",
            [Body("cuBLAS", call or (lambda: None), 0)],
            floor=Work(
                "the matrix read, logits or softmax moved once",
                2 * (chain.vocab * chain.hidden + chain.rows * (chain.vocab + chain.hidden)),
                chain.flops / 2,
            ),
            skipped=lack,
        )
        yield figure
    figure = bench.figure(
        f"chain.{chain.rows}x{chain.vocab}",
        f"LM head, row statistics, softmax @ embedding {chain.name}",
        _bodies(kernels, parts, chain),
        floor=Work(
            "the matrix read twice, logits written and read twice, softmax written and read",
            chain.bytes,
            chain.flops,
        ),
        skipped=lack,
    )
    yield figure


def _bodies(kernels: SamplerKernels, parts: _Parts | None, chain: Chain) -> list[Body]:
    def nothing() -> None:
        return None

    def whole(implementation: SamplerKernels) -> Callable[[], object]:
        return nothing if parts is None else lambda: parts.chain(implementation)

    reference = kernels_for("torch", "cuda")
    both = nothing if parts is None else parts.products
    entries = chain.rows * chain.vocab
    return [
        Body(DGEN, whole(kernels), 0),
        Body(REFERENCE, whole(reference), reference_need(entries)),
        Body(PRODUCTS, both, 0),
    ]


class _Parts:
    """Random inputs of one chain, and its pieces."""

    def __init__(self, bench: Bench, chain: Chain) -> None:
        generator = torch.Generator(bench.device).manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            values = torch.empty(shape, dtype=torch.bfloat16, device=bench.device)
            return values.normal_(generator=generator)

        self.hidden = draw(chain.rows, chain.hidden)
        self.matrix = draw(chain.vocab, chain.hidden).mul_(_SPREAD / chain.hidden**0.5)
        self.temps = torch.full((1,), TEMPERATURE, device=bench.device)
        self.rows = chain.rows
        self.softmax = torch.softmax(self.lm_head().float() / TEMPERATURE, dim=-1).to(torch.bfloat16)

    def lm_head(self) -> torch.Tensor:
        """Logits [rows, vocab]."""
        return self.hidden @ self.matrix.T

    def embed(self) -> torch.Tensor:
        """[rows, hidden]."""
        return self.softmax @ self.matrix

    def products(self) -> torch.Tensor:
        """Both products without what lies between."""
        self.lm_head()
        return self.embed()

    def chain(self, kernels: SamplerKernels) -> torch.Tensor:
        """All three: argmax, draw and entropy are made and thrown away, the softmax is embedded."""
        logits = self.lm_head()
        _, _, _, probs = kernels.row_stats(logits, self.temps, self.rows, 0, torch.bfloat16, softcap=SOFTCAP)
        assert probs is not None
        return probs @ self.matrix
