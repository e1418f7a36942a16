"""``foveate serve``: start the server and keep it until a signal ends it."""

from __future__ import annotations

from typing import Any

from foveate.cli.flags import with_settings
from foveate.settings import load


def _serve(given: dict[str, Any], config: str | None) -> None:
    """Serve a model with an OpenAI-compatible API. Without --model: the small model that ships with Foveate."""
    # Imported here so that --help, and every other subcommand, starts without the server's libraries.
    from foveate.cli.lifecycle import serve_until_signalled

    serve_until_signalled(lambda: load(given, config=config))


serve = with_settings(_serve)
