"""``foveate settings``: the settings in force, or their reference page."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
import yaml

from foveate import settings


def show_settings(
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help="YAML file of settings.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md instead.")] = False,
) -> None:
    """Print the settings in force (file and environment) as YAML, ready to be a settings file but for the proxy's password.

    Settings that serve or a reload would refuse are refused here, in the same words; the keys file is read for that.
    """
    if markdown:
        typer.echo(settings.reference(), nl=False)
        return
    # Imported here so that the page of settings, and every other subcommand, is printed without the server's code.
    from foveate.assembly import check

    loaded = settings.load(config=config)
    check(loaded)
    values = loaded.model_dump(mode="json")
    values["multimodal_budget"] = {
        name: {key: value for key, value in msgspec.to_builtins(budget).items() if key != "tier"}
        for name, budget in settings.budgets(loaded.multimodal_budget).items()
    }
    values["fetch"]["proxy"] = _without_password(loaded.fetch.proxy)
    typer.echo(yaml.safe_dump(values, sort_keys=False), nl=False)


def _without_password(proxy: str | None) -> str | None:
    """Return the proxy's address as it may be shown: what is printed ends in tickets and build logs."""
    return proxy if proxy is None or "@" not in proxy else f"http://***@{proxy.rpartition('@')[2]}"
