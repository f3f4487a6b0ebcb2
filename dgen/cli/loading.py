"""A checkpoint on its way in, as every command waits for it: said on stderr, and left at once when a signal comes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgen.cli.interruption import Unswallowed
from dgen.cli.progress import Progress
from dgen.cli.threads import settle_threads
from dgen.settings import Layer

if TYPE_CHECKING:
    from dgen.generator import Generator


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can be asked, the seconds that imports took, and the CPU threads it runs on."""

    generator: Generator
    import_seconds: float
    threads: int

    def prepare(self, progress: Progress) -> list[str]:
        """Compile and capture what requests need, before the first one waits for it; what was done, a line each."""
        progress.update("compiling kernels, capturing graphs")
        done: list[str] = []
        self.generator.engine.prepare(done.append)
        return done


def load_generator(progress: Progress, layers: Sequence[Layer], *, num_slots: int = 1) -> Loaded:
    """Import torch and transformers, and load the checkpoint that `layers` name, for up to `num_slots` requests.

    Raises:
        CheckpointError, SettingsError: as in `dgen.generator.from_layers`.
        KeyboardInterrupt, Terminated: a signal; not before an import is over that caught it.
    """
    started = time.perf_counter()
    with Unswallowed() as signals:
        progress.update("importing torch and transformers")
        from dgen.generator import from_layers

        signals.check()  # rather than after minutes of loading
        import_seconds = time.perf_counter() - started
        progress.update("loading the checkpoint")
        generator = from_layers(layers, progress=progress.amount, num_slots=num_slots)
    return Loaded(generator, import_seconds, settle_threads(generator.checkpoint.model))
