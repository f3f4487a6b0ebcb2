"""Load a checkpoint: every check that needs no weight first, the model last.

What comes out is what transformers would load, in eval mode, without gradients, on one device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgen.checkpoint import configuration, defaults, memory, network, source, target, weights
from dgen.errors import CheckpointError
from dgen.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model and what its files say about it.

    Args:
        model: DiffusionGemmaForBlockDiffusion in eval mode, without gradients, on `device`.
        tokenizer: transformers' tokenizer of the checkpoint.
        vocabulary: what each token id adds to text.
        defaults: dgen settings that generation_config.json sets, unchecked: max_tokens, steps, entropy_bound,
            t_min, t_max, stability, confidence.
        eos_ids: end-of-sequence ids of generation config, config and tokenizer together.
        name: what the user asked for.
        path: the folder.
        revision: the hub's commit hash; None for a folder.
        canvas_len: positions of a canvas.
        vocab_size: of the model; may exceed the tokenizer's.
        max_context: positions that the model was made for (max_position_embeddings).
        window: positions that a sliding layer sees, the current one included (sliding_window).
    """

    model: Any
    tokenizer: Any
    vocabulary: Vocabulary
    defaults: Mapping[str, Any]
    eos_ids: frozenset[int]
    name: str
    path: Path
    revision: str | None
    dtype: torch.dtype
    device: torch.device
    canvas_len: int
    vocab_size: int
    max_context: int
    window: int


def load(
    model: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    progress: source.Progress | None = None,
) -> Checkpoint:
    """Load `builtin`, a folder, or a hub name.

    Args:
        device: auto (CUDA where there is a card), cpu, cuda or cuda:N.
        dtype: auto, float32 (fp32) or bfloat16 (bf16); see `target.pick_dtype` for auto.
        offline: never ask the hub; only what lies in its local cache.
        progress: called with ("download" or "load", bytes done, bytes in all).

    Raises:
        CheckpointError: whatever keeps the checkpoint from being loaded.
        UsageError: a device or dtype that can't be had, or a revision of a folder.
    """
    target.check_names(device, dtype)
    place = source.locate(model, revision=revision, offline=offline)
    raw = configuration.read_config(place.path, name=model)
    generation = configuration.read_generation(place.path, name=model)
    settings = defaults.settings_of(generation, name=model)
    configuration.require_transformers(name=model)
    where = target.pick_device(device)
    advice = configuration.upgrade_advice(raw)
    with _quiet():
        config = network.build_config(place.path, name=model, advice=advice)
        skeleton = network.build_skeleton(config, name=model, advice=advice)
        tokenizer = _read_tokenizer(place.path, name=model)
        _check_tokenizer_size(tokenizer, config.text_config.vocab_size, name=model)
        source.fetch_weights(place, offline=offline, progress=progress)
        stored = weights.read_headers(place.path, name=model)
        tied = network.ties(skeleton)
        weights.check_keys(stored, network.shapes(skeleton), tied, name=model, advice=advice)
        chosen = _fit(skeleton, weights.main_dtype(stored), dtype, where, name=model)
        net = network.read(place.path, config, dtype=chosen, tied=tied, name=model)
    target.make_current(where)
    network.move(net, where, progress)
    _give_generation_config(net, generation)
    text = config.text_config
    return Checkpoint(
        model=net,
        tokenizer=tokenizer,
        vocabulary=Vocabulary.from_tokenizer(tokenizer),
        defaults=settings,
        eos_ids=defaults.eos_ids(
            (
                generation.get("eos_token_id"),
                raw.get("eos_token_id"),
                raw.get("text_config", {}).get("eos_token_id"),
                tokenizer.eos_token_id,
            ),
            vocab_size=text.vocab_size,
        ),
        name=model,
        path=place.path,
        revision=place.revision,
        dtype=net.dtype,
        device=where,
        canvas_len=config.canvas_length,
        vocab_size=text.vocab_size,
        max_context=text.max_position_embeddings,
        window=text.sliding_window,
    )


def _fit(skeleton: Any, stored: str, dtype: str, device: torch.device, *, name: str) -> str:
    """The dtype to load in, once there is memory for it."""
    import torch

    chosen = target.pick_dtype(dtype, stored, device)
    need = network.count_entries(skeleton) * int(getattr(torch, chosen).itemsize)
    memory.require_memory(need, device, name=name, dtype=chosen)
    # Weights in the files' own dtype are mapped into memory; others are first converted there as a whole.
    if device.type != "cpu" and chosen != stored:
        memory.require_memory(need, torch.device("cpu"), name=name, dtype=chosen)
    return chosen


def _read_tokenizer(folder: Path, *, name: str) -> Any:
    from transformers import AutoTokenizer

    # Without any file, the class would make up a vocabulary of five tokens.
    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model")):
        raise CheckpointError(
            f"{name} holds no tokenizer (tokenizer.json)",
            hint="Copy it from the checkpoint that this one was made from.",
        )
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise CheckpointError(
            f"the tokenizer of {name} is unreadable: {network.one_line(error)}",
            hint="Fetch or copy the checkpoint again.",
        ) from error


def _check_tokenizer_size(tokenizer: Any, vocab_size: int, *, name: str) -> None:
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab_size:
        raise CheckpointError(
            f"the tokenizer of {name} has the id {largest}, and the model only {vocab_size} embeddings",
            hint="Tokenizer and weights belong to different models: fetch or copy the checkpoint again.",
        )


def _give_generation_config(model: Any, generation: Mapping[str, Any]) -> None:
    """Let transformers' own `generate` see the file's values, where its checks accept them."""
    # dgen reads the file by itself; only the reference loop would go without.
    with suppress(ValueError, TypeError, AttributeError):
        # The class takes the sampler's name out of the mapping that it is given.
        model.generation_config = model.generation_config_class(**copy.deepcopy(dict(generation)))


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' advice and progress bars are off inside, and as they were before outside."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
