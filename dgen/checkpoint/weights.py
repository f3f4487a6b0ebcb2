"""What the safetensors files of a folder hold, from their headers alone, against what a model expects.

Standard library only: no weight is read, and nothing but safetensors is ever opened.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dgen.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}

_BITS = {
    "F64": 64,
    "F32": 32,
    "BF16": 16,
    "F16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
}
_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_REFETCH = "Fetch or copy the checkpoint again."


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file; `dtype` in safetensors' spelling."""

    shape: tuple[int, ...]
    dtype: str
    file: str


def read_headers(folder: Path, *, name: str) -> dict[str, Stored]:
    """Key -> tensor of all weight files of `folder`.

    Raises:
        CheckpointError: no weights, pickled weights, missing shards, a damaged file, or quantized weights.
    """
    stored: dict[str, Stored] = {}
    for file in _weight_files(folder, name):
        stored.update(_read_header(file))
    odd = next((key for key, tensor in stored.items() if tensor.dtype not in DTYPES), None)
    if odd is not None:
        raise CheckpointError(
            f"{odd} of {name} is stored as {stored[odd].dtype}: quantized weights are not supported",
            hint="Use the checkpoint in bfloat16 or float32.",
        )
    return stored


def main_dtype(stored: Mapping[str, Stored]) -> str:
    """The dtype of most of the weights, in torch's spelling."""
    counts: Counter[str] = Counter()
    for tensor in stored.values():
        counts[DTYPES[tensor.dtype]] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0]


def check_keys(
    stored: Mapping[str, Stored],
    expected: Mapping[str, tuple[int, ...]],
    ties: Iterable[Sequence[str]],
    *,
    name: str,
    advice: str = "",
) -> None:
    """Compare the files' keys and shapes with a model's.

    Args:
        expected: shape of each parameter and persistent buffer.
        ties: groups of keys that share one tensor; any one of a group stands for all.
        advice: hint in place of the usual one.

    Raises:
        CheckpointError: missing or unexpected keys, or wrong shapes; parts of such a model would be random.
    """
    have = set(stored)
    for group in ties:
        if not have.isdisjoint(group):
            have.update(group)
    missing = sorted(set(expected) - have)
    unexpected = sorted(set(stored) - set(expected))
    if missing or unexpected:
        parts = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        parts += [f"{len(unexpected)} unexpected ({_some(unexpected)})"] if unexpected else []
        raise CheckpointError(
            f"the weights of {name} don't fit its config.json: keys {' and '.join(parts)}",
            hint=advice or "The files are incomplete or of another model: fetch or convert them again.",
        )
    wrong = [key for key in sorted(stored) if stored[key].shape != expected[key]]
    if wrong:
        first = wrong[0]
        raise CheckpointError(
            f"the weights of {name} don't fit its config.json: {len(wrong)} of another shape, first {first}: "
            f"{list(stored[first].shape)} in place of {list(expected[first])}",
            hint=advice or "Weights and config.json are of different models: fetch or convert them again.",
        )


def _some(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more


def _weight_files(folder: Path, name: str) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = _shards(folder / INDEX)
        absent = [shard for shard in shards if not (folder / shard).is_file()]
        if absent:
            raise CheckpointError(
                f"{INDEX} of {name} names {len(absent)} missing files ({_some(absent)})", hint=_REFETCH
            )
        return [folder / shard for shard in shards]
    pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{name} holds pickled weights only ({_some(pickled)}), and reading a pickle can run code",
            hint="Convert them to safetensors (save_pretrained does), or use a checkpoint that has them.",
        )
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        raise CheckpointError(
            f"{name} holds {_some(others)}, but neither {SINGLE} nor {INDEX}",
            hint=f"Add {INDEX}, or rename a single file to {SINGLE}.",
        )
    raise CheckpointError(f"{name} holds no weights ({SINGLE} or {INDEX})", hint=_REFETCH)


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f"{index} is unreadable", hint=_REFETCH) from None
    outside = next((shard for shard in shards if Path(shard).name != shard), None)
    if outside is not None or not shards:
        raise CheckpointError(f"{index} names no file of its own folder: {outside}", hint=_REFETCH)
    return shards


def _read_header(file: Path) -> dict[str, Stored]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if start == b"version ":
                raise CheckpointError(
                    f"{file} is a Git LFS pointer, not the file itself", hint="Run: git lfs pull"
                )
            if size < 8 or not 2 <= length <= _MOST_HEADER_BYTES or 8 + length > size:
                raise CheckpointError(f"{file} is no complete safetensors file ({size} bytes)", hint=_REFETCH)
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        tensors = {key: _stored(entry, file.name) for key, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        raise CheckpointError(
            f"{file} can't be read: {error.strerror}", hint="Check its permissions."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{file} has a damaged header", hint=_REFETCH) from error
    if size != 8 + length + end:
        raise CheckpointError(
            f"{file} is damaged: {size} bytes, and its header speaks of {8 + length + end}", hint=_REFETCH
        )
    return tensors


def _stored(entry: Mapping[str, object], file: str) -> Stored:
    shape = tuple(int(size) for size in entry["shape"])  # type: ignore[attr-defined]
    dtype = str(entry["dtype"])
    begin, end = (int(offset) for offset in entry["data_offsets"])  # type: ignore[attr-defined]
    if dtype in _BITS and (end - begin) * 8 != math.prod(shape) * _BITS[dtype]:
        raise ValueError("offsets and shape disagree")
    return Stored(shape, dtype, file)
