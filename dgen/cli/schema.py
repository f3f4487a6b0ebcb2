"""`dgen schema`: the JSON Schema of what generate writes."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of what generate writes.

    Draft 2020-12; every line of --format json or jsonl validates against it.

    Example: dgen schema > dgen.schema.json
    """
    import json

    from dgen.cli.sink import Sink, standard_streams
    from dgen.output.schema import schema as build_schema

    stdout, stderr = standard_streams()
    sink = Sink(stdout, stderr, format="text", quiet=False, verbose=False, color=False)
    sink.document(json.dumps(build_schema(), indent=2, ensure_ascii=False))
    sink.close()
