"""Who may do what: Roles and bindings as they lie in the state, and tokens. Pure.

A token `<namespace>:<service account>` names a service account (made by `token_of`), any other the
admin, and none nobody. The admin may do everything; service accounts what bindings give them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from apiserver.answers import Json
from apiserver.state import State

_GROUP = "rbac.authorization.k8s.io"
ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody wants to do."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    @property
    def refusal(self) -> str:
        """Why not, in the real server's words."""
        where = (
            f' in the namespace "{self.namespace}"' if self.namespace else " at the cluster scope"
        )
        return (
            f'User "{self.user}" cannot {self.verb} resource "{self.resource}" in API group'
            f' "{self.group}"{where}'
        )


def token_of(namespace: str, account: str) -> str:
    """The bearer token of a service account."""
    return f"sa:{namespace}:{account}"


def user_of(token: str) -> str:
    """The user of a bearer token."""
    found = re.match(r"^sa:([^:]+):([^:]+)", token)
    return f"system:serviceaccount:{found[1]}:{found[2]}" if found else ADMIN


def is_allowed(state: State, action: Action) -> bool:
    """Whether a binding gives the user the right."""
    if action.user == ADMIN:
        return True
    return any(_permits(rule, action) for rule in _rules(state, action))


def _rules(state: State, action: Action) -> list[Json]:
    rules: list[Json] = []
    for _, binding in state.listed((_GROUP, "clusterrolebindings"), ""):
        if _is_subject(binding, action.user):
            rules += _role(state, binding["roleRef"], "")
    if action.namespace:
        for _, binding in state.listed((_GROUP, "rolebindings"), action.namespace):
            if _is_subject(binding, action.user):
                rules += _role(state, binding["roleRef"], action.namespace)
    return rules


def _is_subject(binding: Json, user: str) -> bool:
    namespace = binding["metadata"].get("namespace", "")
    for subject in binding.get("subjects") or ():
        if subject["kind"] == "ServiceAccount":
            where = subject.get("namespace") or namespace
            if user == f"system:serviceaccount:{where}:{subject['name']}":
                return True
        elif subject["name"] in (user, "system:authenticated"):
            return True
    return False


def _role(state: State, reference: Json, namespace: str) -> list[Json]:
    plural = "clusterroles" if reference["kind"] == "ClusterRole" else "roles"
    where = "" if plural == "clusterroles" else namespace
    for ref, role in state.listed((_GROUP, plural), where):
        if ref.name == reference["name"]:
            return list(role.get("rules") or ())
    return []


def _permits(rule: Json, action: Action) -> bool:
    names = rule.get("resourceNames")
    return (
        _has(rule.get("verbs"), action.verb)
        and _has(rule.get("apiGroups"), action.group)
        and _has(rule.get("resources"), action.resource)
        and (not names or action.name in names)
    )


def _has(wanted: list[str] | None, value: str) -> bool:
    parent = "*/" + value.partition("/")[2] if "/" in value else "*"
    return bool(wanted) and any(item in ("*", value, parent) for item in wanted or ())


def access_review(state: State, user: str, body: Json) -> Json:
    """The answer to a SelfSubjectAccessReview: `kubectl auth can-i`."""
    asked = body.get("spec", {}).get("resourceAttributes") or {}
    resource = asked.get("resource", "")
    if sub := asked.get("subresource"):
        resource += f"/{sub}"
    action = Action(
        user,
        asked.get("verb", ""),
        asked.get("group", ""),
        resource,
        asked.get("namespace", ""),
        asked.get("name", ""),
    )
    return {**body, "status": {"allowed": is_allowed(state, action)}}


def token_review(body: Json) -> Json:
    """The answer to a TokenReview."""
    token = body.get("spec", {}).get("token", "")
    return {**body, "status": {"authenticated": bool(token), "user": {"username": user_of(token)}}}
