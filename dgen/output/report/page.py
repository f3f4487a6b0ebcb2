"""Fills the page: a trace's data as JSON, the answer as plain text, style and script inline.

Everything of the trace is escaped here or set as text by the script: a token may be `</script>`. The page's own policy
forbids it every connection.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from dgen.engine.events import Emitted
from dgen.output.live.cells import visible
from dgen.output.text import TextStream
from dgen.output.traced import Trace, TracedCanvas

_FOLDER = Path(__file__).parent


def report(trace: Trace) -> str:
    """The whole page."""
    answer, reasoning = texts(trace)
    parts = {
        "title": _safe(f"dgen trace: {trace.header['model']}, seed {trace.header['seed']}"),
        "facts": "".join(
            f"<div><dt>{_safe(name)}</dt><dd>{_safe(fact)}</dd></div>" for name, fact in _facts(trace)
        ),
        "prompt": _safe(_plain(trace, trace.header["prompt_ids"])),
        "answer": _safe(answer) or "<i>nothing was emitted</i>",
        "reasoning": f"<h2>Thoughts</h2><pre>{_safe(reasoning)}</pre>" if reasoning else "",
        "style": _read("report.css"),
        "script": _read("report.js"),
        "data": _script_json(_data(trace)),
    }
    return Template(_read("page.html")).substitute(parts)


def texts(trace: Trace) -> tuple[str, str]:
    """The answer and the thoughts of the run."""
    stops = trace.header["settings"].get("stop")
    known = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    stream = TextStream(trace.vocabulary, stops if known else ())
    stream.push(trace.tokens)
    stream.finish()
    return stream.answer, stream.reasoning


def _safe(text: str) -> str:
    """The text for HTML; what would turn it around, or not show at all, as visible escapes."""
    return escape(visible(text))


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _facts(trace: Trace) -> list[tuple[str, str]]:
    header, end = trace.header, trace.end
    runtime = header["runtime"]
    steps = sum(len(canvas.steps) for canvas in trace.canvases)
    finish = "no end: killed, or going on" if end is None else end["finish_reason"]
    if end is not None and end["error"]:
        finish += f": {end['error']}"
    facts = [
        ("model", f"{header['model']}" + (f" @ {header['revision'][:12]}" if header.get("revision") else "")),
        ("seed", str(header["seed"])),
        ("ran on", ", ".join(str(runtime[name]) for name in ("device", "dtype") if name in runtime)),
        ("canvases", f"{len(trace.canvases)} of {header['canvas_len']} positions"),
        ("steps", str(steps)),
        ("tokens", str(len(trace.tokens))),
        ("ended by", finish),
    ]
    if end is not None:
        facts.append(("took", f"{end['time']:.2f} s"))
    return [*facts, ("dgen", header["dgen_version"])]


def _plain(trace: Trace, ids: list[int]) -> str:
    """Ids as text, special tokens by their names."""
    parts = []
    for token_id in ids:
        name = trace.vocabulary.token(token_id) if trace.vocabulary.is_special(token_id) else ""
        parts.append(name.encode() or trace.vocabulary.piece(token_id))
    return b"".join(parts).decode(errors="replace")


def _data(trace: Trace) -> dict[str, Any]:
    confidence = trace.header["settings"].get("confidence")
    return {
        "canvasLen": trace.header["canvas_len"],
        "confidence": confidence if isinstance(confidence, (int, float)) else None,
        "names": trace.vocabulary.names(),
        "canvases": [_canvas(canvas) for canvas in trace.canvases],
    }


def _canvas(canvas: TracedCanvas) -> dict[str, Any]:
    converged = canvas.converged
    return {
        "steps": [
            {
                "time": step.time,
                "temperature": step.event.temperature,
                "mean": step.event.mean_entropy,
                "accepted": [at for at, accepted in enumerate(step.event.accepted) if accepted],
                "entropy": step.event.entropy,
                "draft": step.event.draft,
                "changed": step.changed,
            }
            for step in canvas.steps
        ],
        "convergedBy": converged.converged_by if converged else None,
        "emitted": len(converged.tokens) if converged else 0,
        "top": [_top(token) for token in converged.tokens] if converged else [],
    }


def _top(token: Emitted) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    return {
        "logprob": _finite(token.logprob),
        "rank": token.rank,
        "top": [(token_id, _finite(value)) for token_id, value in token.top],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _script_json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for the end of its element, or for anything else."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
