"""The gateway as an application of Ray Serve: Serve's proxies take the connections and one replica answers. The only code that knows Serve.

For clusters whose traffic has to come in through Serve, as with KubeRay's RayService; elsewhere the gateway's own port is one hop less.
Does not cover: what the application is, which whoever calls :func:`ingress` brings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from foveate.core.errors import StartupError

try:
    from ray import serve
except ImportError as error:
    raise StartupError(
        "Ray Serve is not installed here: pip install 'foveate[ray-serve]', or see docs/ray.md."
    ) from error

Opens = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the ASGI application, on the event loop that it answers on. Pickled: a function that nodes can import, or a partial of one."""


@serve.ingress()
class Gateway:
    """The replica."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self._scope = AsyncExitStack()

    async def __serve_build_asgi_app__(self) -> Any:
        """Called by Serve, which asks the proxies to send requests here when this has returned."""
        return await self._scope.enter_async_context(self._opens())

    async def __del__(self) -> None:
        """Called by Serve once no request is open, or those that are have had their time."""
        await self._scope.aclose()


def ingress(opens: Opens, *, open_max: int) -> serve.Application:
    """Return the application. ``open_max`` requests are let in: how many are open at a time is the gateway's own choice, below that.

    One replica: another would be another server, with workers of its own.
    """
    deployment = serve.deployment(name="gateway", num_replicas=1, max_ongoing_requests=open_max)(Gateway)
    return deployment.bind(opens)
