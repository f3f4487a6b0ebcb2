"""`dgen schema`: the JSON Schema of what the other commands write."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    trace: Annotated[
        bool, typer.Option("--trace", help="Describe the lines of a generate --trace file.")
    ] = False,
    infill: Annotated[bool, typer.Option("--infill", help="Describe the JSON of dgen infill.")] = False,
    choose: Annotated[bool, typer.Option("--choose", help="Describe the JSON of dgen choose.")] = False,
) -> None:
    """Print which fields dgen's JSON output has, as a JSON Schema.

    It names each field, its type and its meaning, for you to look up or for a
    program to check its input by. Nothing is loaded or run.

    Without a flag it describes what generate and chat write with --format json or
    jsonl, and the output lines of a batch. The dialect is draft 2020-12.

    \b
    dgen schema
    dgen schema | jq '."$defs".completion.properties.finish_reason'
    dgen schema --trace > trace.schema.json
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
