"""dgen: diffusion text generation with exact log-probabilities.

    import dgen
    model = dgen.load("builtin")
    print(model.generate("What is 7 plus 5?").text)

Names are imported on first use (PEP 562), so that `import dgen` and `dgen --help` never wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dgen._version import __version__

if TYPE_CHECKING:
    from dgen.engine.events import Committed, Completion, Converged, Denoised, Emitted, Finished, Prefilled
    from dgen.engine.request import Request
    from dgen.errors import DgenError
    from dgen.generator import Answer, Generator, load
    from dgen.output.text import Piece
    from dgen.settings import Settings

_HOMES = {
    "Answer": "dgen.generator",
    "Committed": "dgen.engine.events",
    "Completion": "dgen.engine.events",
    "Converged": "dgen.engine.events",
    "Denoised": "dgen.engine.events",
    "DgenError": "dgen.errors",
    "Emitted": "dgen.engine.events",
    "Finished": "dgen.engine.events",
    "Generator": "dgen.generator",
    "Piece": "dgen.output.text",
    "Prefilled": "dgen.engine.events",
    "Request": "dgen.engine.request",
    "Settings": "dgen.settings",
    "load": "dgen.generator",
}

__all__ = [
    "Answer",
    "Committed",
    "Completion",
    "Converged",
    "Denoised",
    "DgenError",
    "Emitted",
    "Finished",
    "Generator",
    "Piece",
    "Prefilled",
    "Request",
    "Settings",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dgen' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
