"""The Python front door: a loaded checkpoint that turns prompts into answers.

`load` resolves settings and reads the checkpoint; a `Generator` builds jobs, runs them on the engine, one or
many at a time, and writes their records. The command line is a client of this module. Nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dgen._version import __version__
from dgen.checkpoint import Checkpoint
from dgen.checkpoint import load as load_checkpoint
from dgen.denoiser.base import Denoiser
from dgen.denoiser.choice import build_denoiser
from dgen.engine.engine import Engine
from dgen.engine.events import Completion, Event, Finished
from dgen.errors import CheckpointError, DgenError, SettingsError, UsageError
from dgen.job import HandedOut, Job, build_request
from dgen.output.records import completion_record
from dgen.output.text import Piece, TextStream
from dgen.prompt import build_prompt
from dgen.sampler import kernels_for
from dgen.settings import SETTINGS, Layer, Resolved, resolve

MAX_DRAWN_SEED = 2**32
LoadProgress = Callable[[str, int, int], None]


@dataclass(slots=True, repr=False)
class Answer:
    """One finished request: its text, its completion, and the record that the command line would write."""

    text: str
    reasoning: str
    completion: Completion
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Answer(text={self.text!r}, finish_reason={self.finish_reason!r}, seed={self.seed})"

    @property
    def seed(self) -> int:
        """The seed that repeats this answer."""
        return self.completion.seed

    @property
    def finish_reason(self) -> str:
        """eos, stop, length, interrupted or error."""
        return self.completion.finish_reason


class Generator:
    """A checkpoint on a device, ready to answer.

    Args:
        checkpoint: what `dgen.checkpoint.load` returned.
        resolved: settings with their sources; those that shape a request are the defaults of every call.
        layers: the layers behind `resolved`, so that a call's own settings can be laid on top.
        load_seconds: how long the checkpoint took, for the record.
        num_slots: how many requests may run at a time, where the settings don't say.

    Raises:
        SettingsError: the denoiser or the context asked for can't be had.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        resolved: Resolved,
        layers: Sequence[Layer],
        *,
        load_seconds: float = 0.0,
        num_slots: int = 1,
    ) -> None:
        self.checkpoint = checkpoint
        self.resolved = resolved
        self.load_seconds = load_seconds
        self._layers = tuple(layers)
        asked = resolved.settings
        self.denoiser: Denoiser = build_denoiser(
            checkpoint.model,
            denoiser=asked.denoiser,
            num_slots=asked.slots or num_slots,
            fewer=asked.slots is None,
            max_context=asked.max_context,
            graphs=asked.graphs,
        )
        self.kernels = kernels_for(asked.kernel, self.denoiser.device)
        self.engine = Engine(self.denoiser, self.kernels, graphs=asked.graphs)

    def resolve(self, *layers: Layer) -> Resolved:
        """The settings of a request with further layers on top; SettingsError for one that shapes the run."""
        for name in (name for layer in layers for name in layer.values):
            if name in SETTINGS and SETTINGS[name].scope == "run":
                raise SettingsError(
                    f"{name} can't be changed after loading", hint=f"Give it to dgen.load({name}=...)."
                )
        return resolve([*self._layers, *layers])

    @property
    def runtime(self) -> dict[str, str]:
        """What runs the requests, as records tell it: device, dtype, denoiser and sampler kernels."""
        return {
            "device": str(self.checkpoint.device),
            "dtype": str(self.checkpoint.dtype).removeprefix("torch."),
            "denoiser": self.denoiser.name,
            "kernels": self.kernels.name,
        }

    def job(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        request_id: str | None = None,
        **settings: Any,
    ) -> Job:
        """Build and check a request; nothing runs yet.

        Args:
            prompt: the user's text; or `messages`, a list of {"role", "content"}.
            system: a system message put before the prompt.
            raw: use the prompt as plain text, without the chat template.
            settings: any setting of `dgen.settings.Settings` that shapes a request, by name.

        Raises:
            UsageError, SettingsError, ContextError: what can't be run, before any work.
        """
        resolved = self.resolve(Layer("argument", settings)) if settings else self.resolved
        asked = resolved.settings
        if asked.seed is None:
            resolved = Resolved(
                replace(asked, seed=secrets.randbelow(MAX_DRAWN_SEED)), {**resolved.sources, "seed": "drawn"}
            )
        prompt_ids = build_prompt(
            self.checkpoint.tokenizer,
            prompt=prompt,
            messages=messages,
            system=system,
            think=asked.think,
            raw=raw,
            most=self.denoiser.max_context,
        )
        request = build_request(resolved.settings, prompt_ids, self.checkpoint.eos_ids)
        self.engine.check(request)
        stream = TextStream(self.checkpoint.vocabulary, asked.stop)
        return Job(request, resolved, stream, request_id or f"dgen-{secrets.token_hex(8)}")

    def run(self, job: Job) -> Iterator[Event | Piece]:
        """The engine's events of one job and, as canvases converge, the pieces of text that they release.

        The last one is always Finished.

        Raises:
            UsageError: the job has been run, or another stream of this model has not ended.
        """
        self.engine.require_idle()  # before the job is used up
        job.begin()
        # Closed by name: whoever keeps an exception that passes here keeps this frame, and the engine would stay taken.
        with contextlib.closing(self.engine.run([job.request])) as events:
            for event in events:
                told = job.follow(event, self.engine.stop)
                if isinstance(event, Finished):
                    events.close()  # the slot is free from here on, whether or not the caller comes back for more
                yield from told
        if job.completion is None:
            yield from job.follow(job.interrupted_at_once(), self.engine.stop)

    def run_many(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Event | Piece]]:
        """As `run` for many jobs at a time: each job's events and pieces, beside the job that they belong to.

        The next job is taken when a slot is free. An iterator that has nothing for now, while jobs are
        running, may say so by StopIteration: it is asked again after each step.

        Raises:
            UsageError: as in `run`.
        """
        handed_out = HandedOut(jobs)
        with contextlib.closing(self.engine.run(handed_out)) as events:
            for event in events:
                job = handed_out.jobs[event.index]
                if isinstance(event, Finished):
                    del handed_out.jobs[event.index]
                for told in job.follow(event, self.engine.stop):
                    yield job, told

    def record(self, job: Job) -> dict[str, Any]:
        """The completion record of a finished job (see `dgen schema`)."""
        if job.completion is None:
            raise UsageError("this job has not been run to its end", hint="Exhaust `run` first.")
        return self._record(
            job.completion,
            stream=job.text,
            request_id=job.request_id,
            settings=job.resolved.request_settings(),
            timing=job.timing(self.load_seconds),
            vocabulary=self.checkpoint.vocabulary if job.request.logprobs is not None else None,
            logprobs_of=job.request.logprobs_of,
        )

    def refusal(
        self, error: DgenError, resolved: Resolved, *, request_id: str, prompt_tokens: int = 0
    ) -> dict[str, Any]:
        """The completion record of a request that came to nothing; `resolved` holds a seed.

        Args:
            prompt_tokens: of a request that was run; none of one that could not be built.
        """
        seed = resolved.settings.seed
        assert seed is not None
        return self._record(
            Completion(
                0, (), "error", prompt_tokens, (), (), seed, error=error.message, error_hint=error.hint
            ),
            stream=TextStream(self.checkpoint.vocabulary),
            request_id=request_id,
            settings=resolved.request_settings(),
            timing={"load": self.load_seconds, "prefill": None, "denoise": None, "total": None},
        )

    def _record(self, completion: Completion, **fields: Any) -> dict[str, Any]:
        return completion_record(
            completion,
            model=self.checkpoint.name,
            revision=self.checkpoint.revision,
            runtime=self.runtime,
            dgen_version=__version__,
            **fields,
        )

    def generate(self, prompt: str | None = None, **options: Any) -> Answer:
        """Answer one prompt; arguments as in `job`.

        Raises:
            DgenError: as in `job`. A failure while running is an Answer whose finish_reason is "error".
        """
        job = self.job(prompt, **options)
        for _ in self.run(job):
            pass
        assert job.completion is not None
        return Answer(job.text.answer, job.text.reasoning, job.completion, self.record(job))

    def stream(self, prompt: str | None = None, **options: Any) -> Iterator[Event | Piece]:
        """Events and pieces of text of one prompt, as they happen; arguments as in `job`.

        One request at a time: exhaust or close a stream before the next one begins.
        """
        return self.run(self.job(prompt, **options))


def load(model: str | os.PathLike[str] = "builtin", **settings: Any) -> Generator:
    """Load a checkpoint and return a Generator.

    Args:
        model: "builtin" (the demo checkpoint that ships with dgen), a folder, or a hub name.
        settings: any setting of `dgen.settings.Settings`, by name: `device`, `dtype`, `offline`, `seed`, ...
            Unlike the command line, neither the environment nor a preset is consulted.

    Raises:
        CheckpointError: the checkpoint can't be used; the message says why.
        SettingsError: a setting is unknown or out of range.
    """
    # What Python callers have at hand: a Path, a torch.dtype.
    named = {"model": os.fspath(model), **settings}
    if "dtype" in named:
        named["dtype"] = str(named["dtype"]).removeprefix("torch.")
    return from_layers([Layer("argument", named)])


def from_layers(
    layers: Sequence[Layer], *, progress: LoadProgress | None = None, num_slots: int = 1
) -> Generator:
    """Load the checkpoint that `layers` name; its own defaults are laid under them.

    Args:
        num_slots: as in `Generator`; memory may leave fewer.
        progress: called with "download" or "load", bytes done and bytes in all.

    Raises:
        CheckpointError, SettingsError: as in `load`.
    """
    run = resolve(layers, partial=True).settings
    started = time.perf_counter()
    checkpoint = load_checkpoint(
        run.model,
        revision=run.revision,
        device=run.device,
        dtype=run.dtype,
        offline=run.offline,
        progress=progress,
    )
    own = Layer("checkpoint", checkpoint.defaults)
    try:
        resolve([own])
    except SettingsError as error:
        raise CheckpointError(
            f"generation_config.json of {checkpoint.name} is not usable: {error.message}", hint=error.hint
        ) from None
    all_layers = [own, *layers]
    return Generator(
        checkpoint,
        resolve(all_layers),
        all_layers,
        load_seconds=time.perf_counter() - started,
        num_slots=num_slots,
    )
