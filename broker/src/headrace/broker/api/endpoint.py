"""One endpoint as a value: what it takes, what it answers, who serves it.

The router and the OpenAPI document are both made from a table of these, so they can't disagree.
Path and query parameters are msgspec structs: one declaration validates and documents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from headrace.broker.api.auth import Principal
from headrace.protocol.errors import HeadraceError, InvalidRequest, UnsupportedMediaType

JSON = "application/json"
_encoder = msgspec.json.Encoder()


class NoParameters(msgspec.Struct, forbid_unknown_fields=True):
    """For endpoints without path or query parameters."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request after parsing: the principal, the path and query structs, the JSON body."""

    principal: Principal
    path: Any
    query: Any
    body: Any
    request: web.Request


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
Owner = Callable[[Any], int | None]
"""From the path struct to the broker that has to serve it; None: this one, or nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`method path` served by `handler`. `body`: the JSON struct it takes; `binary`: a batch frame
    instead (the handler reads it). `errors`: what callers should expect besides bad requests.
    `owner`: whose it is, where that is one broker for the whole request; it is forwarded there."""

    method: str
    path: str
    handler: Handler
    summary: str
    action: str
    answer: type[msgspec.Struct] | None
    status: int = 200
    also_status: tuple[int, ...] = ()
    path_model: type[msgspec.Struct] = NoParameters
    query_model: type[msgspec.Struct] = NoParameters
    body: type[msgspec.Struct] | None = None
    binary: bool = False
    while_starting: bool = False
    owner: Owner | None = None
    errors: tuple[type[HeadraceError], ...] = ()

    def resource(self, path: Any) -> str:
        """What the policy is asked about."""
        if hasattr(path, "topic"):
            return f"topic:{path.topic}"
        if hasattr(path, "group"):
            return f"group:{path.group}"
        return "cluster"


def parse_parameters(model: type[msgspec.Struct], raw: dict[str, str], *, where: str) -> Any:
    """The struct of path or query parameters.

    Raises:
        InvalidRequest: an unknown one, a missing one, or one of another type.
    """
    try:
        return msgspec.convert(raw, model, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where} parameter: {error}") from error


def parse_json(model: type[msgspec.Struct], content_type: str, body: bytes) -> Any:
    """The struct of a JSON body.

    Raises:
        UnsupportedMediaType: another content type.
        InvalidRequest: no JSON, or not of the documented form.
    """
    # No other type and not none: a form or a script of any web page could send those to a broker
    # that its reader's browser can reach.
    if content_type != JSON:
        raise UnsupportedMediaType(
            f"this path takes {JSON}, the request says {content_type};"
            f" add the header 'Content-Type: {JSON}'"
        )
    try:
        return msgspec.json.decode(body, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not as documented: {error}") from error


def json_answer(
    answer: msgspec.Struct, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """An answer in JSON."""
    return web.Response(
        body=_encoder.encode(answer), status=status, content_type=JSON, headers=headers
    )
