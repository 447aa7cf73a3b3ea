"""What the API server says no with: a `Status` object, its code and its reason.

One function a reason, named after it, so that a call reads like the real server's
`apierrors.NewConflict(...)`. Pure; `server` turns an `ApiError` into the HTTP answer.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An answer that isn't a success. `headers` go with it (Retry-After)."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.headers = headers or {}

    @property
    def status(self) -> Json:
        """The `Status` object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def success(details: Json) -> Json:
    """The `Status` of a deletion that is complete."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def not_found(plural: str, name: str) -> ApiError:
    """404 for an object."""
    return ApiError(
        404, "NotFound", f'{plural} "{name}" not found', details={"name": name, "kind": plural}
    )


def no_such_path() -> ApiError:
    """404 for a resource that isn't served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, name: str) -> ApiError:
    """409 at a creation."""
    return ApiError(
        409,
        "AlreadyExists",
        f'{plural} "{name}" already exists',
        details={"name": name, "kind": plural},
    )


def conflict(plural: str, name: str, why: str) -> ApiError:
    """409 at an update or a deletion with preconditions."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {plural} "{name}": {why}',
        details={"name": name, "kind": plural},
    )


def modified(plural: str, name: str) -> ApiError:
    """409: the resourceVersion is an old one."""
    why = (
        "the object has been modified; please apply your changes to the latest version and"
        " try again"
    )
    return conflict(plural, name, why)


def expired(message: str) -> ApiError:
    """410: history before this point was forgotten."""
    return ApiError(410, "Expired", message)


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> ApiError:
    """422 with the field paths."""
    text = ", ".join(f"{path}: {why}" for path, why in causes)
    if len(causes) > 1:
        text = f"[{text}]"
    return ApiError(
        422,
        "Invalid",
        f'{kind} "{name}" is invalid: {text}',
        details={
            "name": name,
            "kind": kind,
            "causes": [
                {"reason": "FieldValueInvalid", "message": why, "field": path}
                for path, why in causes
            ],
        },
    )


def forbidden(plural: str, name: str, why: str) -> ApiError:
    """403."""
    subject = f'{plural} "{name}"' if name else plural
    return ApiError(
        403, "Forbidden", f"{subject} is forbidden: {why}", details={"name": name, "kind": plural}
    )


def unauthorized() -> ApiError:
    """401."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def unsupported_media_type(got: str) -> ApiError:
    """415."""
    return ApiError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include:"
        f" application/json-patch+json, application/merge-patch+json (got {got})",
    )


def too_large_revision(wanted: int, current: int) -> ApiError:
    """504: a revision from the future."""
    return ApiError(
        504,
        "Timeout",
        f"Too large resource version: {wanted}, current: {current}",
        details={"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
    )
