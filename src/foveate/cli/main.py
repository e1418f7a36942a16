"""The ``foveate`` command. A start-up error is one line on stderr and exit code 2."""

from __future__ import annotations

import sys

import typer

from foveate import __version__
from foveate.cli.bench import bench
from foveate.cli.canary import canary
from foveate.cli.check import check
from foveate.cli.cost import cost
from foveate.cli.keys import keys
from foveate.cli.log import log
from foveate.cli.serve import serve
from foveate.cli.show_settings import show_settings
from foveate.cli.topology import topology
from foveate.core.errors import StartupError

app = typer.Typer(
    name="foveate",
    help="Serve vision-language models with every stage before the first token measured, bounded and cached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foveate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


app.command("serve")(serve)
app.command("bench")(bench)
app.command("check")(check)
app.command("cost")(cost)
app.command("settings")(show_settings)
app.add_typer(keys, name="keys")
app.add_typer(log, name="log")
app.add_typer(canary, name="canary")
app.add_typer(topology, name="topology")


def run() -> None:
    """Entry point of the console script."""
    try:
        app()
    except StartupError as error:
        sys.stderr.write(f"foveate: {error.public}\n")
        sys.exit(2)
