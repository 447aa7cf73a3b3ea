"""The OpenAPI document, made from the endpoint table and the protocol's structs (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.broker.api.endpoint import JSON, Endpoint
from headrace.protocol.errors import (
    BY_CODE,
    BrokerUnavailable,
    Forbidden,
    HeadraceError,
    InvalidRequest,
    PayloadTooLarge,
    SlowRequest,
    Throttled,
    Unauthenticated,
    UnsupportedMediaType,
)
from headrace.protocol.models import ErrorBody
from headrace.protocol.requests import BATCH_MEDIA_TYPE


class Document(msgspec.Struct):
    """An OpenAPI document, as far as a reader must know its shape."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


_REF = "#/components/schemas/{name}"
_RETRY_AFTER = {
    "description": "Seconds to wait before the next try, where the broker can tell.",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
}
_ALWAYS: tuple[type[HeadraceError], ...] = (
    InvalidRequest, Unauthenticated, Forbidden, Throttled, BrokerUnavailable,
)  # fmt: skip
_WITH_BODY: tuple[type[HeadraceError], ...] = (PayloadTooLarge, UnsupportedMediaType, SlowRequest)


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The whole document as JSON-ready values."""
    models = _models(endpoints)
    _, components = msgspec.json.schema_components(models, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": (
                "Records in JSON for people and any language; batches as"
                f" `{BATCH_MEDIA_TYPE}` for the SDK. Errors carry a stable `code`: "
                + ", ".join(sorted(BY_CODE))
                + "."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _models(endpoints: Iterable[Endpoint]) -> list[type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {"ErrorBody": ErrorBody}
    for endpoint in endpoints:
        for model in (endpoint.body, endpoint.answer):
            if model is not None:
                found[model.__name__] = model
    return list(found.values())


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9]+", "_", f"{endpoint.method} {endpoint.path}".lower()).strip("_")
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": endpoint.summary,
        "parameters": [
            *_parameters(endpoint.path_model, "path"),
            *_parameters(endpoint.query_model, "query"),
        ],
        "responses": _responses(endpoint),
    }
    if endpoint.binary:
        operation["requestBody"] = {"required": True, "content": _binary()}
    elif endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    return operation


def _parameters(model: type[msgspec.Struct], where: str) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(model)
    body = schema["$defs"][model.__name__]
    required = set(body.get("required", ()))
    return [
        {"name": name, "in": where, "required": where == "path" or name in required, "schema": part}
        for name, part in body.get("properties", {}).items()
    ]


def _json(model: type[msgspec.Struct]) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": _REF.format(name=model.__name__)}}}


def _binary() -> dict[str, Any]:
    return {BATCH_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if endpoint.binary:
        good["content"] = _binary()
    elif endpoint.answer is not None:
        good["content"] = _json(endpoint.answer)
    responses: dict[str, Any] = {str(endpoint.status): good}
    for status in endpoint.also_status:
        responses[str(status)] = {**good, "description": "Done in part; see each entry's error."}
    takes_body = endpoint.binary or endpoint.body is not None
    codes: dict[int, list[str]] = {}
    for error in (*endpoint.errors, *_ALWAYS, *(_WITH_BODY if takes_body else ())):
        codes.setdefault(error.status, []).append(error.code)
    for status, names in sorted(codes.items()):
        responses[str(status)] = {
            "description": "Code " + " or ".join(f"`{name}`" for name in dict.fromkeys(names)),
            "content": _json(ErrorBody),
        }
        if any(BY_CODE[name].retriable for name in names):
            responses[str(status)]["headers"] = {"Retry-After": _RETRY_AFTER}
    return responses
