"""What is known of the resources, and which pass a piece of news is for.

Resources are kept as they were last heard of or listed; that they are up to date isn't assumed by
anybody: what is written is written against what was read, and a full list replaces all of them at
each resync, also those whose deletion nobody heard of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.operator import names
from headrace.operator.kube import paths
from headrace.operator.process.work_queue import Key
from headrace.operator.spec import JsonObject

Name = tuple[str, str]
"""Namespace and name."""

CHILD_DELAY_S = 0.1
"""Pods and claims change several times in a row; they are looked at together."""

BATCH_DELAY_S = 0.1
"""Topics that are applied together are looked at together."""

ASKED_OF_ALL = ("Topic", "ConsumerGroup")
"""Kinds that are looked at cluster by cluster, all that belong to one in one pass."""


class Ask(Protocol):
    """Orders a pass; `urgent`: a person has changed something."""

    def __call__(self, key: Key, *, delay_s: float, urgent: bool = False) -> None:
        """See `WorkQueue.ask`."""


@dataclass(slots=True)
class Desk:
    """The knowledge. `ask` orders a pass; it does nothing while this process doesn't lead."""

    ask: Ask
    _known: dict[str, dict[Name, JsonObject]] = field(
        default_factory=lambda: {kind.name: {} for kind in paths.CUSTOM}
    )
    _news: dict[Key, set[Name]] = field(default_factory=dict)

    # --- news ---

    def heard(self, event: str, value: JsonObject) -> None:
        """An event of a watch."""
        kind = value.get("kind", "")
        if kind not in self._known:
            self._heard_of_child(value)
            return
        name = _name(value)
        before = self._known[kind].get(name)
        if event == "DELETED":
            self._known[kind].pop(name, None)
            self._note(kind, value)
            self._note_rivals(kind, value)
            return
        if before is not None and _is_older(value, before):
            return
        self._known[kind][name] = value
        if before is None or _wish(before) != _wish(value):
            self._note(kind, value)
            self._note_rivals(kind, value)

    def listed(self, kind: str, values: Iterable[JsonObject]) -> None:
        """All there are of a kind; each gets a pass."""
        found = {_name(value): value for value in values}
        gone = [value for name, value in self._known[kind].items() if name not in found]
        self._known[kind] = found
        for value in [*gone, *found.values()]:
            self._note(kind, value)

    def written(self, value: JsonObject) -> None:
        """The operator's own write: what comes back by the watch is no news."""
        kind, name = value["kind"], _name(value)
        if name in self._known[kind]:
            self._known[kind][name] = value

    def gone(self, value: JsonObject) -> None:
        """The operator knows by itself that a resource is no more; the watch may never tell, if it
        began after that."""
        kind, name = value["kind"], _name(value)
        known = self._known[kind].get(name)
        if known is not None and known["metadata"].get("uid") == value["metadata"].get("uid"):
            del self._known[kind][name]

    def _heard_of_child(self, value: JsonObject) -> None:
        meta = value["metadata"]
        cluster = (meta.get("labels") or {}).get("app.kubernetes.io/instance")
        if cluster:
            key = Key(paths.BROKER_CLUSTER.name, meta["namespace"], cluster)
            self.ask(key, delay_s=CHILD_DELAY_S)

    def _note(self, kind: str, value: JsonObject) -> None:
        namespace, name = _name(value)
        if kind not in ASKED_OF_ALL:
            self.ask(Key(kind, namespace, name), delay_s=0.0, urgent=True)
            for each in ASKED_OF_ALL:
                for belonging in self.of(Key(each, namespace, name)):
                    self._note(each, belonging)
            return
        key = Key(kind, namespace, cluster_of(value))
        self._news.setdefault(key, set()).add((namespace, name))
        self.ask(key, delay_s=BATCH_DELAY_S)

    def _note_rivals(self, kind: str, value: JsonObject) -> None:
        """Others that want the same topic or group: who rules it may have changed."""
        if kind not in ASKED_OF_ALL:
            return
        key = Key(kind, _name(value)[0], cluster_of(value))
        rivals = {_name(each) for each in self.of(key) if subject_of(each) == subject_of(value)}
        self._news.setdefault(key, set()).update(rivals)

    # --- for passes ---

    def of(self, key: Key) -> list[JsonObject]:
        """All resources of a kind that belong to a cluster."""
        return [
            value
            for (namespace, _), value in self._known[key.kind].items()
            if namespace == key.namespace and cluster_of(value) == key.name
        ]

    def take_news(self, key: Key) -> set[Name]:
        """What there is news of since it was asked for last."""
        return self._news.pop(key, set())

    def put_back(self, key: Key, left: Iterable[Name]) -> None:
        """News that couldn't be dealt with."""
        self._news.setdefault(key, set()).update(left)

    # --- for metrics ---

    def states(self) -> Mapping[tuple[str, str], int]:
        """The number of resources by kind and state."""
        counts = {(kind, "ready"): 0 for kind in self._known}
        for kind, found in self._known.items():
            for value in found.values():
                state = _state(value)
                counts[kind, state] = counts.get((kind, state), 0) + 1
        return counts


def _name(value: JsonObject) -> Name:
    meta = value["metadata"]
    return meta.get("namespace", ""), meta["name"]


def cluster_of(value: JsonObject) -> str:
    """The BrokerCluster that a Topic or ConsumerGroup names."""
    reference = (value.get("spec") or {}).get("clusterRef")
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else ""


def subject_of(value: JsonObject) -> str:
    """The topic or group that a resource is about."""
    field_name = "topicName" if value["kind"] == "Topic" else "groupName"
    named = (value.get("spec") or {}).get(field_name)
    return named if isinstance(named, str) and named else str(value["metadata"]["name"])


def _wish(value: JsonObject) -> object:
    """What a person can change: all but status. It is what passes are made for."""
    meta = value["metadata"]
    # Of a cluster also whether it is ready: its topics wait for that.
    state = _state(value) if value["kind"] == paths.BROKER_CLUSTER.name else ""
    return (
        state,
        meta.get("uid"),
        meta.get("generation"),
        meta.get("annotations"),
        meta.get("deletionTimestamp"),
        meta.get("finalizers"),
    )


def _is_older(value: JsonObject, known: JsonObject) -> bool:
    """An event that was on its way while something newer was read. Revisions of one object are
    numbers that grow in all servers there are; others are taken as they come."""
    if value["metadata"].get("uid") != known["metadata"].get("uid"):
        return False
    one, other = value["metadata"].get("resourceVersion"), known["metadata"].get("resourceVersion")
    if not (str(one).isdecimal() and str(other).isdecimal()):
        return False
    return int(str(one)) < int(str(other))


def _state(value: JsonObject) -> str:
    annotations = value["metadata"].get("annotations") or {}
    if (annotations.get(names.PAUSE) or "").lower() == "true":
        return "paused"
    for each in (value.get("status") or {}).get("conditions") or ():
        if each.get("type") == "Ready":
            return {"True": "ready", "False": "not_ready"}.get(each.get("status"), "unknown")
    return "unknown"
