"""What the API server does to an object at each write, and what follows from a removal.

Metadata (uid, generation, creation time), the split between spec and status, preconditions,
optimistic concurrency, no-op updates, graceful deletion, finalizers, garbage collection by owner
references and the end of a namespace. Time and random numbers come from its `Source`.
"""

from __future__ import annotations

import copy
import datetime
import random
import uuid
from dataclasses import dataclass, field

from apiserver import answers, schemas, validation
from apiserver.answers import Json
from apiserver.registry import Registry
from apiserver.resources import Resource
from apiserver.state import Ref, State

_SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a deletion was asked with."""

    uid: str | None = None
    resource_version: str | None = None
    propagation: str = "Background"
    grace_s: int | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, body: Json, query: Json) -> DeleteOptions:
        """From the body or, failing that, the query."""
        conditions = body.get("preconditions") or {}
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        orphan = "Orphan" if body.get("orphanDependents") else "Background"
        return cls(
            conditions.get("uid"),
            conditions.get("resourceVersion"),
            body.get("propagationPolicy") or query.get("propagationPolicy") or orphan,
            None if grace is None else int(grace),
            bool(body.get("dryRun") or query.get("dryRun")),
        )


@dataclass(slots=True)
class Lifecycle:
    """Writes to a `State` by Kubernetes' rules."""

    state: State
    registry: Registry
    random: random.Random = field(default_factory=random.Random)

    def now(self) -> str:
        """The time as the API writes it."""
        return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- creation and update ---

    def create(
        self, resource: Resource, namespace: str, value: Json, *, dry_run: bool = False
    ) -> Json:
        """POST.

        Raises:
            ApiError: 400, 403 (the namespace ends), 404 (no namespace), 409 (exists), 422.
        """
        value = self._named(resource, namespace, value)
        ref = Ref(*resource.collection, namespace, value["metadata"]["name"])
        self._check_namespace(resource, ref)
        if self.state.get(ref) is not None:
            raise answers.already_exists(self._qualified(resource), ref.name)
        if value["metadata"].get("resourceVersion"):
            raise answers.bad_request("resourceVersion should not be set on objects to be created")
        return self._create(resource, ref, value, dry_run=dry_run)

    def _create(self, resource: Resource, ref: Ref, value: Json, *, dry_run: bool) -> Json:
        meta = value["metadata"]
        for key in _SYSTEM_FIELDS:
            meta.pop(key, None)
        meta["uid"] = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        meta["creationTimestamp"] = self.now()
        if resource.has_status:
            meta["generation"] = 1
            if resource.custom:
                value.pop("status", None)
        value = schemas.admit(resource, value, None)
        validation.check(resource, value, None)
        self._initialise(resource, value)
        if dry_run:
            return value
        stored = self.state.put(ref, value)
        self.registry.changed(resource, stored)
        return stored

    def update(
        self,
        resource: Resource,
        ref: Ref,
        value: Json,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """PUT, or the result of a patch.

        Raises:
            ApiError: 404, 409 (another revision or uid), 422.
        """
        value = copy.deepcopy(value)
        previous = self.state.get(ref)
        meta = value.setdefault("metadata", {})
        if meta.setdefault("name", ref.name) != ref.name:
            raise answers.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL"
                f" ({ref.name})"
            )
        if ref.namespace and meta.setdefault("namespace", ref.namespace) != ref.namespace:
            raise answers.bad_request("the namespace of the object does not match the URL's")
        if previous is None:
            return self._update_of_absent(resource, ref, value, dry_run=dry_run)
        self._check_revision(resource, ref, meta, previous)
        value = self._merged(resource, value, previous, subresource)
        value = schemas.admit(resource, value, previous)
        validation.check(resource, value, previous)
        if value == previous:
            return previous
        if dry_run:
            return value
        if self._is_finished(value):
            return self._remove(resource, ref, value)
        stored = self.state.put(ref, value)
        self.registry.changed(resource, stored)
        return stored

    def _update_of_absent(
        self, resource: Resource, ref: Ref, value: Json, *, dry_run: bool
    ) -> Json:
        meta = value["metadata"]
        if not resource.create_on_update:
            raise answers.not_found(self._qualified(resource), ref.name)
        if meta.get("uid"):
            raise answers.conflict(
                self._qualified(resource), ref.name, "Precondition failed: UID in precondition"
            )
        meta.pop("resourceVersion", None)
        self._check_namespace(resource, ref)
        return self._create(resource, ref, value, dry_run=dry_run)

    def _check_revision(self, resource: Resource, ref: Ref, meta: Json, previous: Json) -> None:
        plural = self._qualified(resource)
        if meta.get("uid") and meta["uid"] != previous["metadata"]["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {meta['uid']},"
                f" UID in object meta: {previous['metadata']['uid']}"
            )
            raise answers.conflict(plural, ref.name, why)
        wanted = meta.get("resourceVersion")
        if not wanted:
            if not resource.unconditional_update:
                cause = ("metadata.resourceVersion", "must be specified for an update")
                raise answers.invalid(resource.kind, ref.name, [cause])
            return
        if not wanted.isascii() or not wanted.isdecimal():
            raise answers.bad_request(f'invalid resource version "{wanted}"')
        if wanted != previous["metadata"]["resourceVersion"]:
            raise answers.modified(plural, ref.name)

    def _merged(self, resource: Resource, value: Json, previous: Json, subresource: str) -> Json:
        """What is stored: a write to one half of an object leaves the other."""
        if subresource == "status":
            value = {**previous, **({"status": value["status"]} if "status" in value else {})}
            return copy.deepcopy(value)
        if resource.has_status:
            value.pop("status", None)
            if "status" in previous:
                value["status"] = previous["status"]
        meta, old = value["metadata"], previous["metadata"]
        for key in (*_SYSTEM_FIELDS, "generation", "resourceVersion"):
            meta.pop(key, None)
            if key in old:
                meta[key] = old[key]
        if "deletionTimestamp" in old:
            _check_no_new_finalizers(resource, meta, old)
        for key in ("labels", "annotations", "finalizers", "ownerReferences"):
            if key in meta and not meta[key]:
                del meta[key]
        if resource.has_status and _desired(value) != _desired(previous):
            meta["generation"] = old.get("generation", 0) + 1
        value.setdefault("apiVersion", previous["apiVersion"])
        value.setdefault("kind", previous["kind"])
        return value

    # --- deletion ---

    def delete(self, resource: Resource, ref: Ref, options: DeleteOptions) -> Json:
        """DELETE: the object while it lingers, else a Status.

        Raises:
            ApiError: 404, 409 (a precondition fails).
        """
        previous = self.state.get(ref)
        if previous is None:
            raise answers.not_found(self._qualified(resource), ref.name)
        self._check_preconditions(resource, ref, previous, options)
        if options.dry_run:
            return previous
        value = copy.deepcopy(previous)
        meta = value["metadata"]
        if options.propagation == "Orphan":
            self._orphan(meta["uid"])
        if options.propagation == "Foreground" and self._dependents(meta["uid"]):
            meta.setdefault("finalizers", []).append(_FOREGROUND)
        grace_s = self._grace_s(resource, value, options)
        if not meta.get("finalizers") and grace_s == 0 and resource.kind != "Namespace":
            self._remove(resource, ref, value)
            return answers.success(
                {"name": ref.name, "group": ref.group, "kind": ref.plural, "uid": meta["uid"]}
            )
        meta.setdefault("deletionTimestamp", self.now())
        meta["deletionGracePeriodSeconds"] = grace_s
        if "generation" in meta and "deletionTimestamp" not in previous["metadata"]:
            meta["generation"] += 1
        if resource.kind == "Namespace":
            value["status"] = {"phase": "Terminating"}
        stored = previous if value == previous else self.state.put(ref, value)
        if _FOREGROUND in meta.get("finalizers", ()):
            self._collect(meta["uid"], foreground=True)
        if resource.kind == "Namespace":
            self._empty_namespace(ref.name)
        return stored

    def _check_preconditions(
        self, resource: Resource, ref: Ref, previous: Json, options: DeleteOptions
    ) -> None:
        meta = previous["metadata"]
        for what, wanted, there in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.resource_version, meta["resourceVersion"]),
        ):
            if wanted is not None and wanted != there:
                why = (
                    f"Precondition failed: {what} in precondition: {wanted},"
                    f" {what} in object meta: {there}"
                )
                raise answers.conflict(self._qualified(resource), ref.name, why)

    def _grace_s(self, resource: Resource, value: Json, options: DeleteOptions) -> int:
        """A pod on a node stays until the kubelet deletes it again without grace."""
        if resource.kind != "Pod" or not value.get("spec", {}).get("nodeName"):
            return 0
        phase = value.get("status", {}).get("phase")
        if phase in ("Succeeded", "Failed"):
            return 0
        asked = value["spec"].get("terminationGracePeriodSeconds", 30)
        return int(asked if options.grace_s is None else options.grace_s)

    def _is_finished(self, value: Json) -> bool:
        """Whether the last finalizer of an object that is being deleted is gone."""
        meta = value["metadata"]
        return (
            "deletionTimestamp" in meta
            and not meta.get("finalizers")
            and not meta.get("deletionGracePeriodSeconds")
            and value.get("kind") != "Namespace"
        )

    def _remove(self, resource: Resource, ref: Ref, value: Json) -> Json:
        last = self.state.remove(ref)
        self.registry.removed(resource, last)
        if resource.kind == "CustomResourceDefinition":
            group, _, plural = (last["spec"]["group"], "", last["spec"]["names"]["plural"])
            for found, _value in self.state.listed((group, plural), ""):
                self.state.remove(found)
        self._collect(value["metadata"]["uid"])
        for owner in value["metadata"].get("ownerReferences") or []:
            self._release_owner(owner["uid"])
        if ref.namespace:
            self._finish_namespace(ref.namespace)
        return last

    # --- what follows ---

    def _dependents(self, uid: str) -> list[tuple[Ref, Json]]:
        return [
            (ref, value)
            for ref, value in self.state.all()
            if any(o["uid"] == uid for o in value["metadata"].get("ownerReferences") or ())
        ]

    def _collect(self, uid: str, *, foreground: bool = False) -> None:
        """Deletes what was owned by a removed object and by nobody else who is still there."""
        for ref, value in self._dependents(uid):
            resource = self.registry.of(ref)
            if resource is None or self.state.get(ref) is None:
                continue
            others = [o["uid"] for o in value["metadata"]["ownerReferences"] if o["uid"] != uid]
            if any(self._exists(other) for other in others):
                continue
            policy = "Foreground" if foreground else "Background"
            self.delete(resource, ref, DeleteOptions(propagation=policy))

    def _exists(self, uid: str) -> bool:
        return any(value["metadata"]["uid"] == uid for _, value in self.state.all())

    def _orphan(self, uid: str) -> None:
        for ref, value in self._dependents(uid):
            changed = copy.deepcopy(value)
            owners = changed["metadata"]["ownerReferences"]
            changed["metadata"]["ownerReferences"] = [o for o in owners if o["uid"] != uid]
            self.state.put(ref, changed)

    def _release_owner(self, uid: str) -> None:
        """Ends a foreground deletion once the last dependent is gone."""
        for ref, value in list(self.state.all()):
            meta = value["metadata"]
            if meta["uid"] != uid or _FOREGROUND not in meta.get("finalizers", ()):
                continue
            if not self._dependents(uid) and (resource := self.registry.of(ref)):
                changed = copy.deepcopy(value)
                changed["metadata"]["finalizers"].remove(_FOREGROUND)
                self.update(resource, ref, changed)

    def _empty_namespace(self, namespace: str) -> None:
        for ref, _ in list(self.state.all()):
            resource = self.registry.of(ref)
            if ref.namespace == namespace and resource and self.state.get(ref) is not None:
                self.delete(resource, ref, DeleteOptions())
        self._finish_namespace(namespace)

    def _finish_namespace(self, namespace: str) -> None:
        ref = Ref("", "namespaces", "", namespace)
        found = self.state.get(ref)
        if found is None or "deletionTimestamp" not in found["metadata"]:
            return
        if not any(other.namespace == namespace for other, _ in self.state.all()):
            self.state.remove(ref)

    # --- small parts ---

    def _named(self, resource: Resource, namespace: str, value: Json) -> Json:
        value = copy.deepcopy(value)
        meta = value.setdefault("metadata", {})
        if not meta.get("name"):
            if not meta.get("generateName"):
                cause = ("metadata.name", "Required value: name or generateName is required")
                raise answers.invalid(resource.kind, "", [cause])
            letters = "bcdfghjklmnpqrstvwxz2456789"
            meta["name"] = meta["generateName"] + "".join(self.random.choices(letters, k=5))
        if resource.namespaced and meta.setdefault("namespace", namespace) != namespace:
            raise answers.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )
        for key, right in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if value.setdefault(key, right) != right:
                raise answers.bad_request(
                    f"{key} in the data ({value[key]}) does not match the expected ({right})"
                )
        return value

    def _check_namespace(self, resource: Resource, ref: Ref) -> None:
        if not resource.namespaced:
            return
        found = self.state.get(Ref("", "namespaces", "", ref.namespace))
        if found is None:
            raise answers.not_found("namespaces", ref.namespace)
        if "deletionTimestamp" in found["metadata"]:
            why = (
                f"unable to create new content in namespace {ref.namespace} because it is being"
                " terminated"
            )
            raise answers.forbidden(resource.plural, ref.name, why)

    def _initialise(self, resource: Resource, value: Json) -> None:
        if resource.kind == "Namespace":
            value["status"] = {"phase": "Active"}
            labels = value["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = value["metadata"]["name"]
        if resource.kind == "Pod":
            value.setdefault("status", {"phase": "Pending"})
        if resource.kind == "Secret" and "stringData" in value:
            schemas.encode_string_data(value)
        if resource.kind == "CustomResourceDefinition":
            value["status"] = schemas.established(value, self.now())

    def _qualified(self, resource: Resource) -> str:
        return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _desired(value: Json) -> Json:
    return {key: item for key, item in value.items() if key not in ("metadata", "status")}


def _check_no_new_finalizers(resource: Resource, meta: Json, old: Json) -> None:
    added = set(meta.get("finalizers") or ()) - set(old.get("finalizers") or ())
    if added:
        why = f"Forbidden: no new finalizers can be added if the object is being deleted: {added}"
        raise answers.invalid(resource.kind, meta["name"], [("metadata.finalizers", why)])
