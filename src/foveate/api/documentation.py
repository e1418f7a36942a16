"""The OpenAPI document: real request and response schemas, although the handlers read raw bodies and write raw bytes
themselves.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from foveate.api import errors, parameters, replies
from foveate.api.schema import ChatRequest, CompletionRequest
from foveate.journey.port import Reloaded, RulesInForce

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
    errors.ErrorReply,
    Reloaded,
    RulesInForce,
)

_ERRORS: Final = (
    "Every answer that is not a success has this body. 4xx: the request's fault; 429 and 503: too much at once, "
    "see `Retry-After`; 502: a picture's origin failed; 504: too slow; 500: ours."
)


def description() -> str:
    """Return the API's introduction, with the parameter tables written out."""
    accepted = "\n".join(f"- {line}" for line in parameters.accepted_without_effect())
    refused = ", ".join(f"`{name}`" for name in parameters.refused())
    return (
        "OpenAI-compatible server for vision-language models. Every answer carries `Server-Timing` (milliseconds of "
        "each stage up to the first token) and `X-Request-Id`; a client's own short `X-Request-Id` comes back as "
        "`X-Client-Request-Id`.\n\n"
        "A parameter that is not supported is refused by name. Beside the parameters in the schemas these are "
        "accepted, because they "
        f"cannot change the answer (null always is):\n{accepted}\n\nRefused whatever their value: {refused}."
    )


def reference(type_: type) -> dict[str, Any]:
    """Return a reference to a documented type."""
    return {"$ref": _REFERENCE.format(name=type_.__name__)}


def request_body(type_: type[BaseModel]) -> dict[str, Any]:
    """Return a route's request body for ``openapi_extra``."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference(type_)}}}}


def responses(type_: type, *, chunk: type | None = None) -> dict[int | str, dict[str, Any]]:
    """Return a route's responses: JSON of ``type_``, a stream of ``chunk`` if there is one, and the error body."""
    content: dict[str, Any] = {"application/json": {"schema": reference(type_)}}
    if chunk is not None:
        content["text/event-stream"] = {"schema": reference(chunk)}
    return {
        200: {"description": "The answer.", "content": content},
        "default": {"description": _ERRORS, "content": {"application/json": {"schema": reference(errors.ErrorReply)}}},
    }


def install(app: FastAPI) -> None:
    """Make ``app`` produce the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, requests = models_json_schema(
                [(model, "validation") for model in REQUESTS], ref_template=_REFERENCE.format(name="{model}")
            )
            _, answers = msgspec.json.schema_components(REPLIES, ref_template=_REFERENCE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update({**requests["$defs"], **answers})
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
