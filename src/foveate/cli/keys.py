"""``foveate keys``: make an API key, or hash one. Neither is written anywhere: what is not copied from the terminal is gone."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated

import typer
import yaml

from foveate.core.budget import DEFAULT_TIER
from foveate.core.errors import StartupError
from foveate.core.keys import digest, key_fault
from foveate.settings.keys import key_entry

KEY_BYTES = 32

keys = typer.Typer(help="Make API keys, and hash them for the keys file.", no_args_is_help=True)


@keys.command("new")
def new(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose key it is.")],
    tier: Annotated[str, typer.Option("--tier", help="Budget tier of its requests.")] = DEFAULT_TIER,
    may_use: Annotated[
        str, typer.Option("--may-use", metavar="TIERS", help="Tiers that a request may ask for, comma-separated.")
    ] = "",
    admin: Annotated[bool, typer.Option("--admin", help="Let it use the admin API.")] = False,
) -> None:
    """Print a fresh random key, once, and the entry that lets a server know it."""
    key = f"fov-{secrets.token_urlsafe(KEY_BYTES)}"
    tiers = [name.strip() for name in may_use.split(",") if name.strip()]
    entry = key_entry(
        {"tenant": tenant, "tier": tier, "sha256": digest(key), "may_use": tiers, "admin": admin}, "The key"
    )
    typer.echo(f"The key of {tenant}. It is kept nowhere and shown only now:\n\n    {key}\n")
    typer.echo("Its entry in the keys file (auth.keys_file):\n")
    typer.echo(yaml.safe_dump([entry.model_dump(mode="json")], sort_keys=False), nl=False)


@keys.command("hash")
def hash_key() -> None:
    """Read a key from standard input and print its SHA-256 for the keys file."""
    if sys.stdin.isatty():
        typer.echo("Type or paste the key, then Enter:", err=True)
    key = sys.stdin.readline().strip()
    fault = key_fault(key)
    if fault is not None:
        raise StartupError(f"This cannot be a key: {fault}.")
    typer.echo(digest(key))
