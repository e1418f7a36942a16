"""What can be wrong with a request apart from its media, and who may not ask."""

from __future__ import annotations

from foveate.core.errors.base import Kind, Refused


class InvalidParameter(Refused):
    """A parameter is missing, of the wrong type or out of range."""

    code = "invalid_parameter"


class UnsupportedParameter(Refused):
    """A parameter exists in the API but not here; it is refused rather than ignored."""

    code = "unsupported_parameter"
    sentence = "A parameter of the request is not supported."


class InvalidPart(Refused):
    """A content part is malformed."""

    code = "invalid_content_part"
    sentence = "A content part of the request is not valid."


class ModelNotFound(Refused):
    """The model named is not served here."""

    code = "model_not_found"
    kind = Kind.NOT_FOUND
    sentence = "The model does not exist here."


class RouteNotFound(Refused):
    """The path is not part of the API."""

    code = "not_found"
    kind = Kind.NOT_FOUND
    sentence = "There is nothing at this address."


class AliasNotFound(Refused):
    """A tenant has no such name (`uuid`) for media as an operator gave."""

    code = "alias_not_found"
    kind = Kind.NOT_FOUND
    sentence = "This tenant has no such uuid bound."


class RequestNotFound(Refused):
    """No request with the id that an operator gave is among those that ended last."""

    code = "request_not_found"
    kind = Kind.NOT_FOUND
    sentence = "No request with this id is among those that ended last. The request log may have it (foveate log show)."


class CanaryRunning(Refused):
    """A new version of the model is loading or on trial already; there is one at a time."""

    code = "canary_running"
    kind = Kind.CONFLICT
    sentence = "A new version is loading or on trial already. Promote it or roll it back first."


class CanaryNotFound(Refused):
    """No new version of the model is on trial."""

    code = "no_canary"
    kind = Kind.NOT_FOUND
    sentence = "No new version is on trial."


class CanaryRefused(Refused):
    """A new version of the model cannot be served; the one that serves is untouched."""

    code = "canary_refused"
    kind = Kind.UNDECODABLE
    sentence = "The new version cannot be served."


class TopologyRefused(Refused):
    """The server cannot have the topology that an operator asked for; what there was stays."""

    code = "topology_refused"
    kind = Kind.CONFLICT
    sentence = "The server cannot have this topology."


class EngineUnknown(Refused):
    """There is no engine process of the name that an operator gave."""

    code = "engine_unknown"
    kind = Kind.NOT_FOUND
    sentence = "No engine process has this name."


class MethodNotAllowed(Refused):
    """The path is part of the API, but not with this method; the header ``Allow`` names those that are."""

    code = "method_not_allowed"
    kind = Kind.NOT_ALLOWED
    sentence = "This method is not allowed at this address."


class CacheKeyNotFound(Refused):
    """A cache has no entry of the name that an operator gave."""

    code = "cache_key_not_found"
    kind = Kind.NOT_FOUND
    sentence = "The cache has no entry of this name."


class PromptTooLong(Refused):
    """The prompt, or prompt and answer together, exceed the model's context."""

    code = "context_length_exceeded"
    sentence = "The prompt is longer than the model's context."


class PromptInvalid(Refused):
    """The model's chat template refuses these messages."""

    code = "invalid_messages"
    sentence = "The model's chat template does not accept these messages."


class Unauthenticated(Refused):
    """The request carries no API key, or none that is known here."""

    code = "invalid_api_key"
    kind = Kind.UNAUTHENTICATED
    sentence = "This server needs an API key: send it as Authorization: Bearer KEY."


class NotPermitted(Refused):
    """The API key may not do this: use another tier, or the admin API."""

    code = "not_permitted"
    kind = Kind.FORBIDDEN
    sentence = "This API key may not do that."


class SettingsRefused(Refused):
    """A reload found settings that cannot be used; the old ones stay. The text is for the operator who asked."""

    code = "settings_refused"
    kind = Kind.UNDECODABLE
    sentence = "The settings cannot be used; the old ones stay."


class BodyTooLarge(Refused):
    """The request body exceeds the server's limit."""

    code = "body_too_large"
    kind = Kind.TOO_LARGE
    sentence = "The request body is larger than this server accepts."
