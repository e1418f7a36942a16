"""The admin API of the caches: what they hold and save, what other capacities would do, and how to drop from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.routing import Row, json_reply
from foveate.core.errors import InvalidParameter, RouteNotFound
from foveate.journey.cache_port import CachedKeys, CachedMedia, CacheOperator, CachesReport, Curve, Dropped
from foveate.journey.port import Service
from foveate.observe.labels import CacheName

KEYS_DEFAULT: Final = 50
KEYS_MAX: Final = 1000
_NAMES: Final[dict[str, CacheName]] = {name: name for name in get_args(CacheName)}

_CACHE: Final = documentation.in_path("cache", {"type": "string", "enum": list(_NAMES)}, "Which cache.")
_NAME: Final = documentation.in_path("name", {"type": "string"}, "An entry's `name`, as the list of keys has it.")
LIMIT: Final = documentation.in_query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": KEYS_MAX, "default": KEYS_DEFAULT},
    "How many entries at most.",
)
_VERSION: Final = documentation.in_query(
    "version", {"type": "string", "minLength": 1}, "A processor version or encoder version.", required=True
)

_HOST: Final = documentation.in_query(
    "host", {"type": "string", "minLength": 1}, "A host, as the list of media has it.", required=True
)


class CacheRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def caches(self, request: Request) -> Response:
        """Tell of each cache what it holds, what became of its look-ups and what its hits saved.

        `media` is the optional cache of fetched bytes, `kv_prefix` the engine's own prefix cache, as far as the engine reports it. The four
        share nothing, and no figure joins them.
        """
        return json_reply(self._operator(request).report())

    async def cache_keys(self, request: Request) -> Response:
        """List the entries hit most often, with the bytes that they really occupy."""
        operator = self._operator(request)
        return json_reply(await operator.hottest(_cache(request), limit_of(request)))

    async def cache_curve(self, request: Request) -> Response:
        """Tell what 1/4 to 16 times the capacity, and an unlimited one, would do for the look-ups that were seen, and what to do about it.

        `advice` is null where `cache.curve_sample_rate` is 0.
        """
        return json_reply(self._operator(request).curve(_cache(request)))

    async def drop_cache_key(self, request: Request) -> Response:
        """Drop one entry. Requests that use it are not harmed; its bytes are free when they have ended."""
        operator = self._operator(request)
        return json_reply(await operator.drop(_cache(request), request.path_params["name"]))

    async def drop_cache_version(self, request: Request) -> Response:
        """Drop every entry that a processor version or encoder version had a part in."""
        operator = self._operator(request)
        version = request.query_params.get("version", "")
        if not version:
            raise InvalidParameter("The version to drop is missing.", param="version")
        return json_reply(await operator.drop_version(_cache(request), version))

    async def cached_media(self, request: Request) -> Response:
        """List the fetched media used most often, by host and path, and for how long their origins declared them fresh."""
        return json_reply(await self._operator(request).hottest_media(limit_of(request)))

    async def drop_cached_medium(self, request: Request) -> Response:
        """Drop what one URL answered. Requests that use it are not harmed; its bytes are free when they have ended."""
        return json_reply(await self._operator(request).drop_medium(request.path_params["name"]))

    async def drop_cached_host(self, request: Request) -> Response:
        """Drop everything that was fetched from a host."""
        operator = self._operator(request)
        host = request.query_params.get("host", "")
        if not host:
            raise InvalidParameter("The host to drop is missing.", param="host")
        return json_reply(await operator.drop_host(host))

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        of, media, document = "/admin/caches/{cache}", "/admin/caches/media", _documented
        return [
            ("GET", "/admin/caches", self.caches, documentation.reading(CachesReport)),
            # Before those whose {cache} would take its name.
            ("GET", f"{media}/keys", self.cached_media, document(CachedMedia, LIMIT, failing=(400,))),
            ("DELETE", f"{media}/keys/{{name}}", self.drop_cached_medium, document(Dropped, _NAME, failing=(404,))),
            ("DELETE", media, self.drop_cached_host, document(Dropped, _HOST, failing=(400,))),
            ("GET", f"{of}/keys", self.cache_keys, document(CachedKeys, _CACHE, LIMIT, failing=(400, 404))),
            ("GET", f"{of}/curve", self.cache_curve, document(Curve, _CACHE, failing=(404,))),
            ("DELETE", f"{of}/keys/{{name}}", self.drop_cache_key, document(Dropped, _CACHE, _NAME, failing=(404,))),
            ("DELETE", of, self.drop_cache_version, document(Dropped, _CACHE, _VERSION, failing=(400, 404))),
        ]

    def _operator(self, request: Request) -> CacheOperator:
        self._check(request)
        return self._service.caches()


def _documented(reply: type[msgspec.Struct], *places: dict[str, Any], failing: tuple[int, ...]) -> dict[str, Any]:
    return documentation.reading(reply, places=places, failing=failing)


def _cache(request: Request) -> CacheName:
    name = _NAMES.get(request.path_params["cache"])
    if name is None:
        raise RouteNotFound(f"There is no such cache, or it cannot be asked that; there are {' and '.join(_NAMES)}.")
    return name


def limit_of(request: Request) -> int:
    """Return how many entries a list may have. Raises InvalidParameter."""
    text = request.query_params.get("limit", str(KEYS_DEFAULT))
    # Checked before int() is, which reads signs, blanks, underscores and thousands of digits of any script.
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(KEYS_MAX)) else 0
    if not 1 <= limit <= KEYS_MAX:
        raise InvalidParameter(
            f"limit is a whole number from 1 to {KEYS_MAX}.", param="limit", limit=KEYS_MAX, actual=limit or None
        )
    return limit
