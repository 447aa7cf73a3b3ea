"""Who is asking, and may they? Every handler passes both questions.

The policy for clients is allow-all until the security issue lands (README says so); paths between
brokers ask for the cluster secret from the first commit.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import quote, unquote

from aiohttp import web

from headrace.protocol import routes
from headrace.protocol.errors import Forbidden, Unauthenticated
from headrace.protocol.requests import PRINCIPAL_HEADER, SECRET_HEADER


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `kind` is `anonymous` (a client) or `broker` (a peer with the secret)."""

    kind: str
    name: str


ANONYMOUS = Principal("anonymous", "anonymous")
PEER = Principal("broker", "broker")


@dataclass(frozen=True, slots=True)
class Policy:
    """Authentication and authorisation of one broker."""

    cluster_secret: bytes

    def authenticate(self, request: web.BaseRequest) -> Principal:
        """The principal behind a request; of one that a broker passes on, the client's.

        Raises:
            Unauthenticated: a cluster secret was shown and is wrong.
        """
        shown = request.headers.get(SECRET_HEADER)
        if shown is None:
            return ANONYMOUS
        if hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self.cluster_secret):
            return _on_behalf(request.headers.get(PRINCIPAL_HEADER))
        raise Unauthenticated("the cluster secret is wrong; do both brokers read the same file?")

    def authorize(self, principal: Principal, action: str, resource: str) -> None:
        """Whether the principal may do `action` (read, write, create, alter, delete, describe)
        on `resource` (`topic:NAME`, `group:NAME`, `cluster`, or a path between brokers).

        Raises:
            Forbidden: it may not.
        """
        if resource.startswith(routes.INTERNAL_PREFIX) and principal.kind != "broker":
            raise Forbidden(f"{action} on {resource} is for brokers of this cluster only")


def principal_text(principal: Principal) -> str:
    """The principal as a header carries it."""
    return f"{principal.kind}:{quote(principal.name, safe='')}"


def _on_behalf(text: str | None) -> Principal:
    if text is None:
        return PEER
    kind, _, name = text.partition(":")
    return Principal(kind, unquote(name))
