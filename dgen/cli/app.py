"""The command line's table of contents; each command lives in a file of its own and imports its engine when run."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dgen._version import __version__
from dgen.cli import bench_generate, bench_sampler, bench_step
from dgen.cli.bench import bench_app
from dgen.cli.chat import chat
from dgen.cli.choose import choose
from dgen.cli.config import config
from dgen.cli.doctor import doctor
from dgen.cli.generate import generate
from dgen.cli.infill import infill
from dgen.cli.interruption import Terminated
from dgen.cli.schema import schema
from dgen.cli.trace import trace_app


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command; a Ctrl-C that it leaves to others keeps a name, where typer would keep a bare code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Terminated(signal.SIGINT) from None


app = typer.Typer(
    name="dgen",
    cls=_Commands,
    help="Diffusion text generation: denoise whole canvases of tokens, stream them, keep exact log-probabilities.",
    epilog='Try: dgen generate --prompt "Tell me a story about a brave fox."',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dgen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    del version


app.command()(generate)
app.command()(chat)
app.command()(infill)
app.command()(choose)
app.command()(schema)
bench_app.command("sampler")(bench_sampler.sampler)
bench_app.command("step")(bench_step.step)
bench_app.command("generate")(bench_generate.generate)
app.command()(config)
app.command()(doctor)
app.add_typer(bench_app, name="bench")
app.add_typer(trace_app, name="trace")
