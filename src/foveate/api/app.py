"""The HTTP surface: its routes as one table, and what they answer when something is wrong before a handler runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import foveate
from foveate.api import convert, documentation, errors, relaying, replies
from foveate.api.admin import AdminRoutes
from foveate.api.budget import BudgetReply, budget_reply
from foveate.api.callers import caller_of
from foveate.api.estimation import EstimateReply, Estimation
from foveate.api.exchange import Parse
from foveate.api.gate import Gate
from foveate.api.generation import Generation
from foveate.api.invalid import refusal
from foveate.api.routing import Row, json_reply
from foveate.api.schema import ChatRequest, CompletionRequest
from foveate.core.budget import Caller
from foveate.core.clock import wall
from foveate.core.errors import FoveateError, MethodNotAllowed, ModelNotFound, RouteNotFound
from foveate.core.request import Request as Asked
from foveate.journey.port import Service

OPEN_MAX: Final = 4096
BODY_SECONDS_MAX: Final = 120.0

_SHOWN_CHARACTERS_MAX: Final = 100

Body = TypeVar("Body", bound=BaseModel)


class Routes:
    """The handlers. Each takes the raw request and returns a response; errors are raised."""

    def __init__(self, service: Service, gate: Gate, *, body_seconds_max: float) -> None:
        self._service = service
        self._gate = gate
        self._body_seconds_max = body_seconds_max
        self._started = int(wall())

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation that may hold pictures, at once or as a stream."""
        return self._generation(self._chat(), "chatcmpl")

    async def completions(self, request: Request) -> Response:
        """Continue a text. For pictures use chat completions."""
        parse = relaying.completion if self._service.relays else parser(CompletionRequest, convert.completion)
        return self._generation(parse, "cmpl")

    async def estimate(self, request: Request) -> Response:
        """Tell what a chat request would cost, and whether it would be admitted, without running the model.

        The body is that of chat completions; `stream` does not matter. 200 also where the request would be refused: `admitted` is then
        false, and `refusals` says why.
        """
        return Estimation(
            self._service,
            self._gate,
            self._chat(),
            prefix="estimate",
            body_seconds_max=self._body_seconds_max,
        )

    async def budget(self, request: Request) -> Response:
        """Publish what the caller's requests may cost: every limit of its tier, and what media may be."""
        return json_reply(budget_reply(self._service.terms(self._caller(request))))

    async def models(self, request: Request) -> Response:
        """List the models that are served."""
        self._caller(request)
        return json_reply(replies.ModelList([self._model(name) for name in self._service.models]))

    async def model(self, request: Request) -> Response:
        """Tell about one model."""
        self._caller(request)
        name = request.path_params["model"]
        if name not in self._service.models:
            raise ModelNotFound(f"The model {name[:_SHOWN_CHARACTERS_MAX]!r} does not exist here.", param="model")
        return json_reply(self._model(name))

    async def health(self, request: Request) -> Response:
        """Tell that the process is up."""
        return json_reply(replies.Health())

    async def ready(self, request: Request) -> Response:
        """Tell whether a request can be answered now: 200, or 503 with the reason."""
        readiness = self._service.readiness()
        reply = json_reply(replies.Ready(readiness.ready, readiness.reason), status=200 if readiness.ready else 503)
        if not readiness.ready:
            reply.headers["retry-after"] = "1"
        return reply

    async def metrics(self, request: Request) -> Response:
        """Return the Prometheus exposition."""
        body, content_type = await self._service.metrics()
        return Response(body, headers={"content-type": content_type})

    async def version(self, request: Request) -> Response:
        """Tell the server's version."""
        return json_reply(replies.Version(foveate.__version__))

    def _caller(self, request: Request) -> Caller:
        return caller_of(self._service, request.scope["headers"])

    def _chat(self) -> Parse:
        return relaying.chat if self._service.relays else parser(ChatRequest, convert.chat)

    def _generation(self, parse: Parse, prefix: str) -> Generation:
        return Generation(self._service, self._gate, parse, prefix=prefix, body_seconds_max=self._body_seconds_max)

    def _model(self, name: str) -> replies.Model:
        return replies.Model(name, self._started, self._service.context_tokens_max or msgspec.UNSET)


def create_app(service: Service, *, open_max: int = OPEN_MAX, body_seconds_max: float = BODY_SECONDS_MAX) -> FastAPI:
    """Return the application. ``app.state.gate`` is the :class:`Gate` that knows the open exchanges.

    ``open_max`` bounds the generating requests open at a time, ``body_seconds_max`` how long a body may take to arrive.
    """
    # A redirect to the path without its last slash would be an answer with no typed body, and clients would send their pictures twice.
    app = FastAPI(
        title="Foveate", version=foveate.__version__, description=documentation.description(), redirect_slashes=False
    )
    gate = Gate(open_max=open_max)
    app.state.gate = gate
    routes = Routes(service, gate, body_seconds_max=body_seconds_max)
    for method, path, handler, options in (*_table(routes), *AdminRoutes(service).table()):
        # Wrapped, or FastAPI reads and tokenizes this module's source on the loop when a route is first used: 50 ms.
        app.add_api_route(
            path,
            partial(handler),
            methods=[method],
            name=handler.__name__,
            description=handler.__doc__,
            response_class=Response,
            **options,
        )
    documentation.install(app)
    app.add_exception_handler(FoveateError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _table(routes: Routes) -> list[Row]:
    chat = documentation.generating(
        ChatRequest, replies.ChatCompletion, replies.ChatChunk, failing=documentation.MEDIA_ERRORS
    )
    completion = documentation.generating(CompletionRequest, replies.Completion, replies.Completion)
    return [
        ("POST", "/v1/chat/completions", routes.chat_completions, chat),
        ("POST", "/v1/completions", routes.completions, completion),
        ("POST", "/v1/estimate", routes.estimate, documentation.posting(ChatRequest, EstimateReply)),
        ("GET", "/v1/budget", routes.budget, documentation.reading(BudgetReply)),
        ("GET", "/v1/models", routes.models, documentation.reading(replies.ModelList)),
        (
            "GET",
            "/v1/models/{model:path}",
            routes.model,
            documentation.reading(
                replies.Model,
                places=[documentation.in_path("model", {"type": "string"}, "A model's id.")],
                failing=(404,),
            ),
        ),
        ("GET", "/health", routes.health, documentation.public(replies.Health)),
        ("GET", "/ready", routes.ready, documentation.public(replies.Ready, waiting=True)),
        ("GET", "/metrics", routes.metrics, documentation.exposition()),
        ("GET", "/version", routes.version, documentation.public(replies.Version)),
    ]


def parser(model: type[Body], convert_: Callable[[Body, convert.Arrival], Asked]) -> Parse:
    """Return what validates a body's bytes as ``model`` and converts it."""

    def parse(body: bytes, arrival: convert.Arrival) -> Asked:
        try:
            validated = model.model_validate_json(body)
        except ValidationError as error:
            raise refusal(error) from None
        return convert_(validated, arrival)

    return parse


def _error_reply(error: FoveateError, headers: list[tuple[bytes, bytes]]) -> Response:
    reply = Response(errors.body(error), errors.status(error), media_type="application/json")
    reply.raw_headers.extend(headers)
    return reply


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FoveateError)
    return _error_reply(error, errors.headers(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _error_reply(RouteNotFound(), [])
    allow = (error.headers or {}).get("Allow")
    refused = MethodNotAllowed(f"The method {request.method[:_SHOWN_CHARACTERS_MAX]} is not allowed at this address.")
    return _error_reply(refused, [(b"allow", allow.encode())] if allow else [])


async def _on_bug(request: Request, error: Exception) -> Response:
    """Answer for an exception that no one expected; the server logs its traceback."""
    unexpected = FoveateError()
    return _error_reply(unexpected, errors.headers(unexpected))
