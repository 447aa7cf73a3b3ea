"""A pod's volumes as folders, and where each is mounted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kubelet.client import Json
from kubelet.environment import Missing, Sources, field_of

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def references(pod: Json) -> tuple[set[str], set[str]]:
    """The names of the ConfigMaps and of the Secrets that a pod refers to."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for source in _sources(pod):
        if found := source.get("configMap"):
            maps.add(found["name"])
        if found := source.get("secret"):
            secrets.add(found.get("secretName") or found.get("name"))
    for container in pod["spec"]["containers"]:
        for each in container.get("envFrom") or ():
            maps |= {each["configMapRef"]["name"]} if "configMapRef" in each else set()
            secrets |= {each["secretRef"]["name"]} if "secretRef" in each else set()
        for each in container.get("env") or ():
            source = each.get("valueFrom") or {}
            maps |= {source["configMapKeyRef"]["name"]} if "configMapKeyRef" in source else set()
            secrets |= {source["secretKeyRef"]["name"]} if "secretKeyRef" in source else set()
    return maps, secrets


def _sources(pod: Json) -> list[Json]:
    """Volumes and the parts of projected ones."""
    found = []
    for volume in pod["spec"].get("volumes") or ():
        found.append(volume)
        found.extend((volume.get("projected") or {}).get("sources") or ())
    return found


def files_of(volume: Json, pod: Json, sources: Sources) -> dict[str, bytes] | None:
    """The files of a volume made of API objects; None for one that isn't.

    Raises:
        Missing: an object or key isn't there.
    """
    if projected := volume.get("projected"):
        files: dict[str, bytes] = {}
        for source in projected.get("sources") or ():
            files |= files_of(source, pod, sources) or {}
        return files
    if found := volume.get("configMap"):
        return _chosen(found, sources.config_maps, found["name"], "configmap")
    if found := volume.get("secret"):
        name = found.get("secretName") or found.get("name")
        return _chosen(found, sources.secrets, name, "secret")
    if found := volume.get("downwardAPI"):
        return {
            item["path"]: field_of(pod, item["fieldRef"]["fieldPath"]).encode()
            for item in found.get("items") or ()
            if "fieldRef" in item
        }
    return None


def _chosen(
    source: Json, among: Mapping[str, dict[str, bytes]], name: str, what: str
) -> dict[str, bytes]:
    if name not in among:
        if source.get("optional"):
            return {}
        raise Missing(f'{what} "{name}" not found')
    data = among[name]
    if not source.get("items"):
        return data
    for item in source["items"]:
        if item["key"] not in data:
            raise Missing(f'{what} "{name}" references non-existent key: {item["key"]}')
    return {item["path"]: data[item["key"]] for item in source["items"]}


def project(folder: Path, files: dict[str, bytes]) -> None:
    """Makes the folder hold exactly these files; each changes at once or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for present in folder.iterdir():
        if present.name not in files:
            present.unlink()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() == data:
            continue
        fresh = folder / f".{path.name}.new"
        fresh.write_bytes(data)
        os.replace(fresh, path)


def mounts_of(container: Json, folders: Mapping[str, Path]) -> list[tuple[str, str]]:
    """(folder, mount path) of a container."""
    found = []
    for mount in container.get("volumeMounts") or ():
        source = folders[mount["name"]]
        if mount.get("subPath"):
            source = source / mount["subPath"]
        found.append((str(source), mount["mountPath"]))
    return found
