"""`dgen schema`: the JSON Schema of what generate, infill and choose write."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    trace: Annotated[bool, typer.Option("--trace", help="That of the lines of a --trace file.")] = False,
    infill: Annotated[bool, typer.Option("--infill", help="That of what dgen infill writes.")] = False,
    choose: Annotated[bool, typer.Option("--choose", help="That of what dgen choose writes.")] = False,
) -> None:
    """Print the JSON Schema of what generate writes.

    Draft 2020-12; every line of --format json or jsonl, or of a trace, validates against it.

    Example: dgen schema > dgen.schema.json
    """
    import json

    from dgen.cli.sink import Sink, standard_streams
    from dgen.errors import UsageError
    from dgen.output.fillings import choose_schema, infill_schema
    from dgen.output.schema import schema as output_schema
    from dgen.output.trace_schema import trace_schema

    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, format="text", quiet=False, verbose=False, color=False)
    asked = [
        make
        for flag, make in ((trace, trace_schema), (infill, infill_schema), (choose, choose_schema))
        if flag
    ]
    if len(asked) > 1:
        raise UsageError("several schemas were asked for", hint="Give one of --trace, --infill, --choose.")
    sink.document(json.dumps((asked or [output_schema])[0](), indent=2, ensure_ascii=False))
    sink.close()
