"""What etcd holds: objects, one counter of revisions, and the history that watches read.

No Kubernetes rule lives here but resourceVersion; `lifecycle` has the others. No I/O and no clock:
a state can be saved and put back (`save`, `restore`), which is what an etcd restore does, and its
history cut (`compact`), which is what makes a real server answer 410.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from apiserver import answers
from apiserver.answers import Json

HISTORY_MAX = 20_000
"""Events kept; a real server keeps five minutes of them."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Where an object lies. `namespace` is empty for what has none."""

    group: str
    plural: str
    namespace: str
    name: str

    @property
    def collection(self) -> tuple[str, str]:
        """Its resource, whatever the version."""
        return self.group, self.plural


@dataclass(frozen=True, slots=True)
class Event:
    """One write. `object` is the state after it (for DELETED the last one), `previous` before."""

    revision: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    ref: Ref
    object: Json
    previous: Json | None


@dataclass(frozen=True, slots=True)
class Saved:
    """A backup."""

    revision: int
    objects: dict[Ref, Json]


@dataclass(slots=True)
class State:
    """Objects by place; values are never changed in place, so they can be handed out."""

    objects: dict[tuple[str, str], dict[Ref, Json]] = field(default_factory=dict)
    revision: int = 1
    compacted: int = 1
    history: list[Event] = field(default_factory=list)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)

    def get(self, ref: Ref) -> Json | None:
        """The object there, or None."""
        return self.objects.get(ref.collection, {}).get(ref)

    def all(self) -> Iterator[tuple[Ref, Json]]:
        """Every object."""
        for found in list(self.objects.values()):
            yield from list(found.items())

    def listed(self, collection: tuple[str, str], namespace: str) -> list[tuple[Ref, Json]]:
        """A resource's objects by namespace and name; all namespaces if it is empty."""
        found = self.objects.get(collection, {})
        return sorted(
            ((ref, value) for ref, value in found.items() if namespace in ("", ref.namespace)),
            key=lambda pair: pair[0],
        )

    def put(self, ref: Ref, value: Json) -> Json:
        """Creates or replaces; the stored object, with its new revision."""
        previous = self.get(ref)
        self.revision += 1
        stored = copy.deepcopy(value)
        stored["metadata"]["resourceVersion"] = str(self.revision)
        self.objects.setdefault(ref.collection, {})[ref] = stored
        kind: Literal["ADDED", "MODIFIED"] = "ADDED" if previous is None else "MODIFIED"
        self._tell(Event(self.revision, kind, ref, stored, previous))
        return stored

    def remove(self, ref: Ref) -> Json:
        """Removes what is there; its last state, with the revision of the removal."""
        previous = self.objects[ref.collection].pop(ref)
        self.revision += 1
        last = copy.deepcopy(previous)
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._tell(Event(self.revision, "DELETED", ref, last, previous))
        return last

    def since(self, revision: int) -> list[Event]:
        """All events after a revision.

        Raises:
            ApiError: 410, some of them were forgotten.
        """
        if revision < self.compacted:
            raise answers.expired(f"too old resource version: {revision} ({self.compacted})")
        start = bisect_right(self.history, revision, key=lambda event: event.revision)
        return self.history[start:]

    def at(
        self, collection: tuple[str, str], namespace: str, revision: int
    ) -> list[tuple[Ref, Json]]:
        """The objects as they were at a revision.

        Raises:
            ApiError: 410, forgotten.
        """
        found = dict(self.listed(collection, namespace))
        for event in reversed(self.since(revision)):
            if event.ref.collection != collection or namespace not in ("", event.ref.namespace):
                continue
            if event.previous is None:
                found.pop(event.ref, None)
            else:
                found[event.ref] = event.previous
        return sorted(found.items(), key=lambda pair: pair[0])

    def compact(self) -> None:
        """Forgets all history: who asks from an older revision gets 410."""
        self.history.clear()
        self.compacted = self.revision

    def save(self) -> Saved:
        """A backup of now."""
        return Saved(self.revision, dict(self.all()))

    def restore(self, saved: Saved) -> None:
        """Goes back to a backup: revisions go back too and are given out again."""
        self.objects.clear()
        for ref, value in saved.objects.items():
            self.objects.setdefault(ref.collection, {})[ref] = value
        self.revision = saved.revision
        self.history.clear()
        self.compacted = saved.revision

    def _tell(self, event: Event) -> None:
        self.history.append(event)
        if len(self.history) > HISTORY_MAX:
            self.compacted = self.history[HISTORY_MAX // 10].revision
            del self.history[: HISTORY_MAX // 10 + 1]
        for listener in self.listeners:
            listener(event)
