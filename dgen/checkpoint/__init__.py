"""A name, a folder or `builtin` -> model, tokenizer and the checkpoint's own defaults, through transformers.

Everything that can be wrong with a checkpoint is told before a weight is read, each with one line and a hint.
Imports neither torch nor transformers until a checkpoint is at hand; runs no code that a checkpoint brings.
"""

from __future__ import annotations

from dgen.checkpoint.loading import Checkpoint, load
from dgen.checkpoint.source import BUILTIN, RELEASED

__all__ = ["BUILTIN", "RELEASED", "Checkpoint", "load"]
