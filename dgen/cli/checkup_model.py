"""Whether a model fits: its weights, the denoiser that would run it, and the context that is left for its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dgen.cli.check import Check, size
from dgen.cli.values import count_of
from dgen.settings import Settings

if TYPE_CHECKING:
    from dgen.checkpoint.fit import Fit

_SLOTS = (1, 8)
"""Numbers of slots whose context is told: one request, and a batch."""


class ModelCheckup:
    """Three questions about the model of `run`, in this order; each knows what the ones before have found.

    Args:
        doing: told what takes its time.
        memory: free bytes to judge against, if not the device's.
    """

    def __init__(self, run: Settings, doing: Callable[[str], None], *, memory: int | None = None) -> None:
        self._run, self._doing, self._memory = run, doing, memory
        self._fit: Fit | None = None
        self._fused = False

    def weights(self) -> Check:
        """Whether the weights fit, and whether they are here."""
        run = self._run
        self._doing(f"reading the configuration of {run.model}")
        from dgen.checkpoint.fit import fit

        found = self._fit = fit(
            run.model,
            revision=run.revision,
            device=run.device,
            dtype=run.dtype,
            offline=run.offline,
            free=self._memory,
        )
        sizes = ", ".join(f"{size(need)} as {dtype}" for dtype, need in found.need.items())
        free = f"{size(found.free)} {self._where}"
        detail = f"the weights of {found.name} take {sizes}; {free}: "
        if found.need[found.dtype] > found.free:
            other = next(iter(found.fitting), "")
            hint = f"It fits with --dtype {other}." if other else "Free some memory, or use a bigger machine."
            return Check("model", "fail", f"{detail}does not fit as {found.dtype}", hint)
        return _stored(found, f"{detail}fits as {found.dtype}", offline=run.offline)

    @property
    def _where(self) -> str:
        if self._memory is not None:
            return "by --memory"
        assert self._fit is not None
        return f"free on {self._fit.device}"

    def denoiser(self) -> Check:
        """Which denoiser would run the model, and why."""
        if self._fit is None:
            return Check("denoiser", "skip", "not tested: there is no model")
        from dgen.denoiser.choice import takes_fused, why_reference

        asked, model, device = self._run.denoiser, self._fit.skeleton, self._fit.device
        self._fused = asked == "fused"  # where it can't run, its context is still what was asked about
        self._fused = takes_fused(model, asked, device=device)
        name = "fused (our forward for CUDA)" if self._fused else "reference (transformers' forward)"
        if asked != "auto":
            return Check("denoiser", "ok", f"{name}, as asked")
        why = why_reference(model, device=device)
        return Check("denoiser", "ok", name if why is None else f"{name}: {why}")

    def context(self) -> Check:
        """What context is left beside the weights, and whether what was asked for fits."""
        from dgen.denoiser.need import check_context

        fit, run = self._fit, self._run
        if fit is None:
            return Check("context", "skip", "not reckoned: there is no model")
        left = fit.free - fit.need[fit.dtype]
        if left < 0:
            return Check("context", "skip", "not reckoned: the weights don't fit")
        config = fit.skeleton.config
        most, canvas = config.get_text_config().max_position_embeddings, config.canvas_length
        slots, wanted = run.slots or 1, run.max_context
        if wanted is not None:
            check_context(wanted, canvas)
        need = self._need(slots)
        positions = min(most, wanted) if wanted is not None else min(most, 2 * canvas)
        if need.bytes(positions) > left:
            raise need.refusal(positions, left, canvas_len=canvas)
        detail = f"{self._holds(slots, most, left)}; the model has {most}. {_takes(need, most)}"
        if wanted is None:
            return Check("context", "ok", detail)
        detail += f"; {positions} in {count_of(slots, 'slot')}: {size(need.bytes(positions))}"
        if wanted > most:
            return Check("context", "warn", f"{detail}. No slot gets the {wanted} asked for")
        return Check("context", "ok", detail)

    def _holds(self, asked: int, most: int, left: int) -> str:
        """What context the memory that is left holds, for few slots and many."""
        assert self._fit is not None
        counts = sorted({*_SLOTS, asked})
        longest = {count: self._need(count).longest(most, left) for count in counts}
        # Less than a prompt and a canvas is of no use.
        least = self._fit.skeleton.config.canvas_length + 1
        fits = " or ".join(f"{count_of(count, 'slot')} of {n}" for count, n in longest.items() if n >= least)
        lacks = [f"{count_of(count, 'slot')} don't fit" for count, n in longest.items() if n < least]
        return f"{size(left)} beside the weights hold {'; '.join([f'{fits} positions', *lacks])}"

    def _need(self, slots: int) -> Any:
        from dgen.denoiser.need import need_of

        assert self._fit is not None
        return need_of(self._fit.skeleton, fused=self._fused, num_slots=slots)


def _takes(need: Any, most: int) -> str:
    rings, each = need.of_slot(most)
    return f"A slot takes {size(rings)} and {size(each)} a position"


def _stored(found: Fit, detail: str, *, offline: bool) -> Check:
    """Whether weights that fit are on this machine, or can be."""
    if found.here:
        return Check("model", "ok", detail)
    from dgen.checkpoint.cache import hub_cache

    cache = hub_cache()
    if offline or cache.offline:
        return Check(
            "model", "fail", f"{detail}, but its weights are not in the cache", "Fetch it once online."
        )
    if min(found.need.values()) > cache.free:
        return Check(
            "model", "fail", f"{detail}, but the cache's disk has {size(cache.free)}", "Free some disk space."
        )
    return Check("model", "warn", f"{detail}; the first run fetches its weights")
