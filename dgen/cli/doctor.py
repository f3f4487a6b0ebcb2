"""`dgen doctor`: does this machine run dgen, and does the model fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dgen.cli import options
from dgen.cli.check import Check
from dgen.cli.checkup import checks
from dgen.cli.progress import Progress
from dgen.cli.setting_flags import layers_of, takes_settings
from dgen.cli.sink import Sink, escaped, standard_streams, wants_color
from dgen.cli.values import count_of
from dgen.cli.wrapping import columns_of, hanging
from dgen.errors import SettingsError
from dgen.settings import resolve

_MARKS = {"ok": "ok  ", "warn": "warn", "skip": "skip", "fail": "FAIL"}
_MOST_GIGABYTES = 1e6


@takes_settings(scope="run")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="GB",
            help="Judge the model against so much free memory, of another machine say.",
            show_default=False,
        ),
    ] = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
    **flags: Any,
) -> None:
    """Check this machine: versions, GPU, kernels, cache, and whether a model and its context fit.

    \b
    dgen doctor
    dgen doctor -m google/diffusiongemma-26B-A4B-it --max-context 32768
    dgen doctor -m google/diffusiongemma-26B-A4B-it --dtype bf16 --memory 80
    dgen doctor --json | jq '.checks[] | select(.status != "ok")'

    Exits with 1 when a check fails. Weights are neither read nor fetched.
    """
    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, quiet=quiet, color=wants_color(stderr))
    sink.check()
    run = resolve(layers_of(flags), partial=True).settings
    free = None if memory is None else _bytes(memory)
    with Progress(sink) as progress:
        found = list(checks(run, progress.update, memory=free, debug=debug))
    failed = sum(check.status == "fail" for check in found)
    if as_json:
        document = {"ok": not failed, "checks": [asdict(check) for check in found]}
        sink.document(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        sink.document("\n".join(_lines(found)))
        warned = sum(check.status == "warn" for check in found)
        well = f"nothing failed; {count_of(warned, 'warning')}" if warned else "all is well"
        sink.note(f"{failed} of {len(found)} checks failed" if failed else well)
    sink.close()
    if failed:
        raise typer.Exit(1)


def _bytes(gigabytes: str) -> int:
    try:
        number = float(gigabytes)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST_GIGABYTES:
        raise SettingsError(
            f"--memory must be a number of GB above 0, not '{gigabytes}'", hint="For example: --memory 80"
        )
    return int(number * 1e9)


def _lines(found: Sequence[Check]) -> list[str]:
    width, columns = max(len(check.name) for check in found), columns_of(sys.stdout)
    lines = []
    for check in found:
        head = f"{_MARKS[check.status]}  {check.name:{width}}  "
        for text in filter(None, (check.detail, check.hint)):
            lines += hanging(escaped(text), head, columns)
            head = " " * len(head)
    return lines
