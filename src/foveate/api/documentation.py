"""The OpenAPI document: real request and response schemas, although the handlers read raw bodies and write raw bytes
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from foveate.api import errors, parameters, replies
from foveate.api.budget import BudgetReply
from foveate.api.canary_bodies import CanaryShare, CanaryStart
from foveate.api.estimation import EstimateReply
from foveate.api.schema import ChatRequest, CompletionRequest
from foveate.api.topology_bodies import TopologySet
from foveate.core.budget import TIER_HEADER
from foveate.core.errors import StartupError, error_classes
from foveate.journey.cache_port import Aliases, CachedKeys, CachedMedia, CachesReport, Curve, Dropped, Forgotten
from foveate.journey.canary_port import CanaryReport
from foveate.journey.port import Reloaded, RulesInForce
from foveate.journey.topology_port import TopologyReport
from foveate.observe.cost import CostReport
from foveate.observe.request_line import RequestLine
from foveate.observe.slo import SloReport

_REFERENCE: Final = "#/components/schemas/{name}"

REQUESTS: Final[tuple[type[BaseModel], ...]] = (ChatRequest, CompletionRequest)
REPLIES: Final = (
    replies.ChatCompletion,
    replies.ChatChunk,
    replies.Completion,
    replies.Model,
    replies.ModelList,
    replies.Health,
    replies.Ready,
    replies.Version,
    replies.Upstreams,
    replies.Engines,
    BudgetReply,
    EstimateReply,
    errors.ErrorReply,
    Reloaded,
    RulesInForce,
    CachesReport,
    CachedKeys,
    CachedMedia,
    Curve,
    Dropped,
    Aliases,
    Forgotten,
    CostReport,
    SloReport,
    RequestLine,
    CanaryReport,
    CanaryStart,
    CanaryShare,
    TopologyReport,
    TopologySet,
)

READ_ERRORS: Final = (400, 401, 403, 500, 503)
"""Statuses of a route that reads nothing but headers."""
TEXT_ERRORS: Final = (400, 401, 403, 404, 413, 415, 429, 500, 503, 504)
"""Statuses of a route with a body but without media."""
MEDIA_ERRORS: Final = (*TEXT_ERRORS, 409, 422, 502)
"""Statuses of a route that takes media."""

_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, where the operator configured keys."},
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same key, for clients that send it so.",
    },
}
_SECURITY: Final[list[dict[str, list[str]]]] = [{}, {"bearer": []}, {"apiKey": []}]
_TIER: Final = {
    "name": TIER_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Another budget tier than the key's own; only for keys that are allowed it.",
}


def _text(description_: str) -> dict[str, Any]:
    return {"description": description_, "schema": {"type": "string"}}


_RETRY_AFTER: Final = {"Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer", "minimum": 1}}}
_ERROR_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": _text("`Bearer`")},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
_ANSWER_HEADERS: Final = {
    "Server-Timing": _text(
        "Milliseconds of each stage up to the first token, `ttft` and `unattributed`; `prefill_overlap`, not part of the sum, is prefill "
        "that ran before all pictures were encoded."
    ),
    "X-Request-Id": _text("The answer's id."),
}
_ADJUSTED: Final = {
    "X-Foveate-Adjusted": {
        "description": "How many adjustments were made to fit the budget; absent if none.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


def description() -> str:
    """Return the API's introduction, with the parameter tables written out."""
    accepted = "\n".join(f"- {line}" for line in parameters.accepted_without_effect())
    refused = ", ".join(f"`{name}`" for name in parameters.refused())
    return (
        "OpenAI-compatible server for vision-language models. Every answer carries `Server-Timing` (milliseconds of "
        "each stage up to the first token) and `X-Request-Id`; a client's own short `X-Request-Id` comes back as "
        "`X-Client-Request-Id`. What a request's media may cost is published at `/v1/budget`, and `/v1/estimate` tells what one would.\n\n"
        "A parameter that is not supported is refused by name. Beside the parameters in the schemas these are "
        "accepted, because they "
        f"cannot change the answer (null always is):\n{accepted}\n\nRefused whatever their value: {refused}."
    )


def reference(type_: type) -> dict[str, Any]:
    """Return a reference to a documented type."""
    return {"$ref": _REFERENCE.format(name=type_.__name__)}


def request_body(type_: type) -> dict[str, Any]:
    """Return a route's request body for ``openapi_extra``."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference(type_)}}}}


def responses(
    type_: type, *, chunk: type | None = None, failing: Iterable[int] = ()
) -> dict[int | str, dict[str, Any]]:
    """Return a route's responses: JSON of ``type_``, a stream of ``chunk`` if there is one, and the statuses it may fail with."""
    content: dict[str, Any] = {"application/json": {"schema": reference(type_)}}
    if chunk is not None:
        content["text/event-stream"] = {"itemSchema": _event(chunk)}
    return {
        200: {"description": "The answer.", "content": content},
        **{status: _failure(status) for status in sorted(failing)},
    }


def _event(chunk: type) -> dict[str, Any]:
    payload = {"anyOf": [reference(chunk), reference(errors.ErrorReply)]}
    frame = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
    data = {"anyOf": [{"const": "[DONE]"}, frame], "description": "`[DONE]` is the last; an error is the last but one."}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def generating(
    body: type[BaseModel], reply: type, chunk: type, *, failing: Iterable[int] = TEXT_ERRORS
) -> dict[str, Any]:
    """Return the options of a route that generates, at once or as a stream."""
    answers = responses(reply, chunk=chunk, failing=failing)
    adjusted = _ADJUSTED if body is ChatRequest else {}
    answers[200]["headers"] = {**_ANSWER_HEADERS, **adjusted}
    return {"responses": answers, "openapi_extra": {**request_body(body), **_asked()}}


def posting(body: type[BaseModel], reply: type, *, failing: Iterable[int] = TEXT_ERRORS) -> dict[str, Any]:
    """Return the options of a route that takes a body and answers at once."""
    return {"responses": responses(reply, failing=failing), "openapi_extra": {**request_body(body), **_asked()}}


def reading(reply: type, *, places: Iterable[dict[str, Any]] = (), failing: Iterable[int] = ()) -> dict[str, Any]:
    """Return the options of a route that reads no body but asks who asks; ``places`` are its parameters.

    ``failing`` are statuses beside :data:`READ_ERRORS`.
    """
    return {"responses": responses(reply, failing=(*READ_ERRORS, *failing)), "openapi_extra": _asked(*places)}


def changing(reply: type, body: type, *, failing: Iterable[int] = ()) -> dict[str, Any]:
    """Return the options of an operator's route that takes a small body of JSON (a msgspec type)."""
    return {
        "responses": responses(reply, failing=(*READ_ERRORS, *failing)),
        "openapi_extra": {**request_body(body), **_asked()},
    }


def in_path(name: str, schema: dict[str, Any], told: str) -> dict[str, Any]:
    """Return a parameter in the path."""
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": told}


def in_query(name: str, schema: dict[str, Any], told: str, *, required: bool = False) -> dict[str, Any]:
    """Return a parameter in the query."""
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": told}


def public(reply: type, *, waiting: bool = False) -> dict[str, Any]:
    """Return the options of a route that anyone may ask; ``waiting``: it answers in the same shape when the server is not ready."""
    answers = responses(reply)
    if waiting:
        answers[503] = {**answers[200], "description": "Not now, and why.", "headers": _RETRY_AFTER}
    return {"responses": answers}


def exposition() -> dict[str, Any]:
    """Return the options of the route for metrics."""
    answer = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"responses": {200: answer, 503: _failure(503)}}


def _asked(*places: dict[str, Any]) -> dict[str, Any]:
    return {"security": _SECURITY, "parameters": [*places, _TIER]}


def _failure(status: int) -> dict[str, Any]:
    kinds = [
        kind for kind in error_classes().values() if errors.STATUS[kind.kind] == status and kind is not StartupError
    ]
    told = "\n".join(f"- `{kind.code}`: {kind.__doc__}" for kind in sorted(kinds, key=lambda kind: kind.code))
    content = {"application/json": {"schema": reference(errors.ErrorReply)}}
    return {"description": told, "content": content, "headers": _ERROR_HEADERS.get(status, {})}


def install(app: FastAPI) -> None:
    """Make ``app`` produce the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, requests = models_json_schema(
                [(model, "validation") for model in REQUESTS], ref_template=_REFERENCE.format(name="{model}")
            )
            _, answers = msgspec.json.schema_components(REPLIES, ref_template=_REFERENCE)
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update({**requests["$defs"], **answers})
            components["securitySchemes"] = _SCHEMES
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
