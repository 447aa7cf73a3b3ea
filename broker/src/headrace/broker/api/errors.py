"""From exceptions to answers, in one place: every answer that isn't 2xx is an `ErrorBody`."""

from __future__ import annotations

import logging
import math

from aiohttp import web

from headrace.broker.api.endpoint import json_answer
from headrace.protocol.errors import (
    HeadraceError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    PathNotFound,
    PayloadTooLarge,
)
from headrace.protocol.models import ErrorBody

log = logging.getLogger(__name__)


def error_answer(error: HeadraceError) -> web.Response:
    """The answer that tells of `error`, with `Retry-After` in whole seconds where it has one."""
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_ms / 1000))
    return json_answer(ErrorBody.of(error), status=error.status, headers=headers)


def from_aiohttp(error: web.HTTPException, request: web.BaseRequest) -> HeadraceError:
    """aiohttp's own refusals in our words."""
    if error.status == 404:
        return PathNotFound(f"there is no {request.path}; /openapi.json lists what there is")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}")
    if error.status == 413:
        return PayloadTooLarge(error.text or "the body is too large")
    return InvalidRequest(error.text or error.reason)


def unexpected(error: Exception, request: web.BaseRequest) -> HeadraceError:
    """A fault of ours: told in full to the log, in one line to the caller."""
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return InternalError("the broker failed on this request; its log has the trace")
