"""The server as an application of Ray Serve, for KubeRay's RayService (docs/ray.md). No command of ours: Ray's starts it.

serve run foveate.cli.ray_service:application config=/etc/foveate/foveate.yaml
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

from foveate.api.app import OPEN_MAX, create_app
from foveate.assembly import journey
from foveate.assembly.upstream import upstream_journey
from foveate.cli.lifecycle import SWITCH_SECONDS
from foveate.core.errors import Draining, StartupError
from foveate.dashboard import routes as dashboard
from foveate.observe.logging import configure, get_logger
from foveate.settings import Settings, load

log = get_logger(__name__)


def application(args: dict[str, str]) -> Any:
    """Return it. ``args``: ``config``, the path of the settings' file where the gateway is placed. Raises StartupError.

    Reads nothing: Serve calls this on any node.
    """
    if set(args) != {"config"}:
        raise StartupError("The application takes one argument: config, the path of its settings' file.")
    from foveate.runtime.ray.ingress import ingress  # here, as Ray need not be installed

    return ingress(partial(opened, args["config"]), open_max=OPEN_MAX)


@asynccontextmanager
async def opened(config: str) -> AsyncIterator[FastAPI]:
    """The server without its own port: Serve's proxies hold the connections. Raises StartupError."""

    def read() -> Settings:
        return load({}, config=config)

    settings = read()
    if settings.runtime.kind != "ray":
        raise StartupError("Under Ray Serve the workers are on the cluster's nodes: set runtime.kind to ray.")
    sys.setswitchinterval(SWITCH_SECONDS)
    configure(json=settings.log.format == "json", level=settings.log.level)
    build = upstream_journey if settings.engine.kind == "upstream" else journey
    async with build(settings, say=log.info, read=read) as service:
        app = create_app(service, open_max=settings.limits.requests_max)
        dashboard.install(app, service)
        log.info("ready behind Ray Serve", model=service.models[0])
        try:
            yield app
        finally:
            service.drain()
            app.state.gate.close(Draining())  # Serve gave them their time
