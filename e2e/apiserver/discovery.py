"""The paths by which clients learn what is served: /api, /apis, /version, /openapi. Pure."""

from __future__ import annotations

from apiserver.answers import Json, no_such_path
from apiserver.registry import Registry
from apiserver.resources import Resource

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0-emulator", "platform": "linux/amd64"}


def answer(registry: Registry, parts: list[str]) -> Json:
    """The document at a path.

    Raises:
        ApiError: 404.
    """
    match parts:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["api", "v1"]:
            return _resources(registry, "", "v1")
        case ["apis"]:
            groups = sorted({each.group for each in registry.all() if each.group})
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(registry, group) for group in groups],
            }
        case ["apis", group]:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, group)}
        case ["apis", group, version]:
            return _resources(registry, group, version)
        case ["openapi", "v2"]:
            info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
            return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}
        case ["openapi", "v3"]:
            return {"paths": {}}
    raise no_such_path()


def _group(registry: Registry, group: str) -> Json:
    versions = sorted({each.version for each in registry.all() if each.group == group})
    if not versions:
        raise no_such_path()
    listed = [{"groupVersion": f"{group}/{each}", "version": each} for each in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources(registry: Registry, group: str, version: str) -> Json:
    found = [each for each in registry.all() if (each.group, each.version) == (group, version)]
    if not found:
        raise no_such_path()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": [entry for each in found for entry in _entries(each)],
    }


def _entries(resource: Resource) -> list[Json]:
    base: Json = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": VERBS,
        "shortNames": list(resource.short),
        "categories": list(resource.categories),
    }
    entries = [base]
    if resource.has_status:
        entries.append(_sub(resource, "status", resource.kind))
    if resource.scale:
        scale = _sub(resource, "scale", "Scale")
        entries.append({**scale, "group": "autoscaling", "version": "v1"})
    if resource.kind == "Pod":
        entries.append({**_sub(resource, "eviction", "Eviction"), "verbs": ["create"]})
    return entries


def _sub(resource: Resource, name: str, kind: str) -> Json:
    return {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind,
        "verbs": ["get", "patch", "update"],
    }
