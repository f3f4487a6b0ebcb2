"""Where a checkpoint lies: `builtin`, a folder, or a name on the Hugging Face hub, fetched into its cache.

Knows names, paths and the hub's failures; reads no file of the checkpoint. The small files come first, so
that a wrong checkpoint is refused before its weights are fetched.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgen.errors import CheckpointError, UsageError

BUILTIN = "builtin"
RELEASED = "google/diffusiongemma-26B-A4B-it"
BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "builtin"

Progress = Callable[[str, int, int], None]
"""Called with what is done ("download" or "load"), bytes done so far, and bytes in all (0: unknown)."""

_NAMES_HINT = f"Give a folder that holds config.json, a hub name such as {RELEASED}, or {BUILTIN}."
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".json", ".h5", ".onnx")
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHT_FILES = ("*.safetensors",)


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint's folder; with `hub` it lies in the hub's cache, and `revision` is its commit hash."""

    name: str
    path: Path
    revision: str | None = None
    hub: bool = False


def locate(model: str, *, revision: str | None = None, offline: bool = False) -> Source:
    """Find the folder of `model`; of a hub name, only configuration and tokenizer are fetched.

    `builtin` is always the shipped checkpoint (a folder of that name is `./builtin`); then an existing folder
    wins over a hub name.

    Raises:
        CheckpointError: no such folder, not a folder, or the hub can't give it.
        UsageError: a revision of something that has none.
    """
    if not model.strip():
        raise CheckpointError("the model's name is empty", hint=_NAMES_HINT)
    # os.path and not Path's methods: these answer for any text, be it too long or of an unknown ~user.
    path = BUILTIN_FOLDER if model == BUILTIN else Path(os.path.expanduser(model))
    if model == BUILTIN and not os.path.isfile(path / "config.json"):
        raise CheckpointError(
            "the built-in checkpoint is missing from this installation", hint="Reinstall dgen."
        )
    if os.path.isdir(path):
        if revision is not None:
            raise UsageError(
                f"revision {revision} of {model}: only a model from the hub has revisions",
                hint="Leave --revision out.",
            )
        return Source(model, path)
    if os.path.exists(path):
        hint = "Give the folder that holds it." if path.suffix == ".safetensors" else _NAMES_HINT
        raise CheckpointError(f"{model} is a file, not a folder", hint=hint)
    if model.startswith((".", "/", "~", "\\")) or path.suffix in _FILE_SUFFIXES or path.is_absolute():
        raise CheckpointError(f"no folder {model}", hint=_NAMES_HINT)
    if not _HUB_NAME.fullmatch(model):
        raise CheckpointError(f"{model} is neither a folder nor a hub name (owner/name)", hint=_NAMES_HINT)
    folder = _fetch(model, revision, _SMALL_FILES, offline=offline, progress=None)
    return Source(model, folder, revision=folder.name, hub=True)


def fetch_weights(source: Source, *, offline: bool, progress: Progress | None = None) -> None:
    """Fetch the safetensors files of a hub checkpoint that `locate` found; nothing to do for a folder."""
    if source.hub:
        _fetch(source.name, source.revision, _SMALL_FILES + _WEIGHT_FILES, offline=offline, progress=progress)


def _fetch(
    name: str, revision: str | None, patterns: Sequence[str], *, offline: bool, progress: Progress | None
) -> Path:
    from huggingface_hub import snapshot_download

    meter = _Meter(progress)
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
            local_files_only=offline,
            tqdm_class=meter.bar_class(),
        )
    except Exception as error:  # the hub client's network errors share no base class
        raise _explain(error, name, revision, offline) from error
    finally:
        meter.progress = None  # some bars are closed much later
    return Path(folder)


def _explain(error: Exception, name: str, revision: str | None, offline: bool) -> CheckpointError:
    """The hub client's failure in one line."""
    from huggingface_hub import constants, errors

    at = f"{name} at revision {revision}" if revision else name
    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{name} is gated on the hub, and this account has no access",
            hint=f"Accept its terms at {constants.ENDPOINT}/{name}, then log in with: hf auth login",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return CheckpointError(
            f"the hub has no model {name} (or it is private), and there is no such folder here",
            hint="Check the spelling; for a private model, log in with: hf auth login",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{name} has no revision {revision}", hint="Give a branch, a tag or a full commit hash."
        )
    if isinstance(error, errors.HFValidationError):
        return CheckpointError(f"{name} is no name that the hub could have", hint=_NAMES_HINT)
    unreachable = isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled))
    if unreachable and (offline or constants.HF_HUB_OFFLINE):
        return CheckpointError(
            f"{at} is not (completely) in the local cache, and dgen runs offline",
            hint="Fetch it once without --offline and without HF_HUB_OFFLINE, or give a folder.",
        )
    if unreachable:
        return CheckpointError(
            f"{at} is not in the local cache, and the hub ({constants.ENDPOINT}) can't be reached",
            hint="Check the network, or give a folder.",
        )
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(
        f"{at} can't be fetched: {reason}", hint="Check network and disk space, then try again."
    )


class _Meter:
    """Bytes of one fetch, out of all bars that the client draws; they never run backwards."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.done = self.total = 0

    def report(self, done: float, total: float | None) -> None:
        self.done, self.total = max(self.done, int(done)), max(self.total, int(total or 0))
        if self.progress is not None:
            self.progress("download", self.done, self.total)

    def bar_class(self) -> type[Any]:
        """A tqdm class that writes nothing and reports here."""
        from tqdm import tqdm  # not the hub's own, which transformers switches off

        meter = self

        class Bar(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)
                kwargs.update(disable=meter.progress is None, file=io.StringIO())
                super().__init__(*args, **kwargs)

            def display(self, *args: Any, **kwargs: Any) -> None:
                # The client keeps one bar that counts files, and one or two that count bytes.
                if self.unit == "B":
                    meter.report(self.n, self.total)

        return Bar
