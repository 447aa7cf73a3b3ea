"""From a request's path and method to what it asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from apiserver.answers import Json, no_such_path

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Target:
    """A resource's path, taken apart. `name` is empty for a collection."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        """As RBAC and faults name it: with the subresource."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


def parse(path: str) -> Target | None:
    """The target; None for a path of discovery.

    Raises:
        ApiError: 404.
    """
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"] and len(parts) > 2:
        return _target("", "v1", parts[2:])
    if parts[:1] == ["apis"] and len(parts) > 3:
        return _target(parts[1], parts[2], parts[3:])
    return None


def _target(group: str, version: str, rest: list[str]) -> Target:
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise no_such_path()
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource)


def verb_of(method: str, target: Target, query: Json) -> str:
    """The verb in RBAC's words."""
    if method == "GET":
        if query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE" and not target.name:
        return "deletecollection"
    return _VERBS.get(method, method.lower())
