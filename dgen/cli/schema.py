"""`dgen schema`: the JSON Schema of what generate writes."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    trace: Annotated[bool, typer.Option("--trace", help="That of the lines of a --trace file.")] = False,
) -> None:
    """Print the JSON Schema of what generate writes.

    Draft 2020-12; every line of --format json or jsonl, or of a trace, validates against it.

    Example: dgen schema > dgen.schema.json
    """
    import json

    from dgen.cli.sink import Sink, standard_streams
    from dgen.output.schema import schema as output_schema
    from dgen.output.trace_schema import trace_schema

    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, format="text", quiet=False, verbose=False, color=False)
    sink.document(json.dumps((trace_schema if trace else output_schema)(), indent=2, ensure_ascii=False))
    sink.close()
