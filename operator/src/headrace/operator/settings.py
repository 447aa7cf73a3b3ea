"""Settings of the operator's process, by environment: `HEADRACE_OPERATOR_` and a field in capitals.

Nothing about clusters is here: that is in the resources.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.protocol.errors import InvalidConfig

PREFIX = "HEADRACE_OPERATOR_"
_SERVICE_LINK = re.compile(
    r"^HEADRACE_OPERATOR(_METRICS)?_(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_\d+_(TCP|UDP).*)$"
)
"""What Kubernetes tells pods of a Service that is called as the operator."""

_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each field is `HEADRACE_OPERATOR_<FIELD>`."""

    namespaces: str = "*"
    """Namespaces to look after, with commas between; `*`: all of the Kubernetes cluster."""

    leader_election: bool = True
    """Whether a Lease decides which of several operators works. Off: there is but one."""

    lease_name: str = "headrace-operator"
    """The Lease's name. Operators with other namespaces to look after need another one."""

    lease_namespace: str = ""
    """The Lease's namespace; left out, the one that the operator runs in."""

    lease_seconds: float = 15.0
    """How long a leader that is silent is waited for before another takes over."""

    identity: str = ""
    """Who this process is in the Lease; left out, the pod's name, or host and process id."""

    resync_seconds: float = 60.0
    """How often each resource is looked at although nothing was heard of it."""

    poll_seconds: float = 2.0
    """How often a resource is looked at while something is under way."""

    group_poll_seconds: float = 15.0
    """How often the state and lag of consumer groups are asked for; also bounds how often their
    status is written."""

    concurrency: int = 8
    """Clusters that are looked at at the same time."""

    health_host: str = "0.0.0.0"
    """Where /livez, /readyz and /metrics listen."""

    health_port: int = 9421
    """Their port; 0: any that is free, -1: none."""

    apply_file: str = ""
    """A resource (JSON) that is applied whenever this process begins to lead: the chart's first
    cluster."""

    log_format: str = "text"
    """text for people, json for collectors."""

    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @property
    def namespace_list(self) -> tuple[str, ...]:
        """The namespaces, empty for all."""
        found = tuple(each.strip() for each in self.namespaces.split(",") if each.strip())
        return () if "*" in found else found

    @property
    def who(self) -> str:
        """The identity, or what stands in for it."""
        if self.identity:
            return self.identity
        return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


def load(environment: Mapping[str, str]) -> Settings:
    """The settings.

    Raises:
        InvalidConfig: one is unknown or has no possible value.
    """
    known = {each.name: each for each in fields(Settings)}
    found: dict[str, Any] = {}
    for key, text in environment.items():
        if not key.startswith(PREFIX) or _SERVICE_LINK.search(key):
            continue
        name = key.removeprefix(PREFIX).lower()
        if name not in known:
            raise InvalidConfig(f"{key}: there is no such setting; known: {', '.join(known)}")
        found[name] = _read(key, text, known[name].default)
    settings = Settings(**found)
    if not settings.namespace_list and "*" not in settings.namespaces:
        raise InvalidConfig(f"{PREFIX}NAMESPACES is empty; * stands for all")
    return settings


def _read(key: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        lowered = text.strip().lower()
        if lowered not in _TRUE | _FALSE:
            raise InvalidConfig(f"{key}={text!r} is neither true nor false")
        return lowered in _TRUE
    if not isinstance(default, int | float):
        return text
    try:
        value = type(default)(text)
    except ValueError as error:
        raise InvalidConfig(f"{key}={text!r} isn't a number") from error
    if value <= 0 and not key.endswith("_PORT"):
        raise InvalidConfig(f"{key}={text!r} must be above 0")
    return value
