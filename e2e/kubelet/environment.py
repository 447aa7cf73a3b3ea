"""From a container's description to the words and variables that its process gets. Pure.

The one difference to a real node: there every pod has addresses of its own, so a program may
listen on 0.0.0.0; here all share one network and each pod has one loopback address, so the text
`0.0.0.0` in a container's words and variables becomes the pod's address.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet.client import Json

ANY_ADDRESS = "0.0.0.0"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_KEYED = re.compile(r"^metadata\.(labels|annotations)\['([^']*)'\]$")


class Missing(Exception):
    """Something that the pod needs isn't there: the pod waits for it."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a pod refers to: data of the ConfigMaps and Secrets of its namespace by name."""

    config_maps: Mapping[str, dict[str, bytes]] = field(default_factory=dict)
    secrets: Mapping[str, dict[str, bytes]] = field(default_factory=dict)


def data_of(value: Json) -> dict[str, bytes]:
    """The bytes of a ConfigMap or a Secret by key."""
    data = value.get("data") or {}
    if value["kind"] == "Secret":
        return {key: base64.b64decode(text) for key, text in data.items()}
    binary = value.get("binaryData") or {}
    return {key: text.encode() for key, text in data.items()} | {
        key: base64.b64decode(text) for key, text in binary.items()
    }


def field_of(pod: Json, path: str) -> str:
    """A field by the downward API."""
    if keyed := _KEYED.match(path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        found = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(found.items()))
    at: object = pod
    for step in path.split("."):
        at = at.get(step) if isinstance(at, dict) else None
    return "" if at is None else str(at)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """With $(NAME) replaced where NAME is known; $$ is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def variables_of(container: Json, pod: Json, address: str, sources: Sources) -> dict[str, str]:
    """The variables, in order, each able to name those before it.

    Raises:
        Missing: a ConfigMap, Secret or key that isn't optional.
    """
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        data = _all_of(source, sources)
        found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
    for each in container.get("env") or ():
        if "valueFrom" in each:
            value = _value_from(each["valueFrom"], pod, sources)
            if value is None:
                continue
        else:
            value = expanded(each.get("value", ""), found)
        found[each["name"]] = value.replace(ANY_ADDRESS, address)
    return found


def _all_of(source: Json, sources: Sources) -> dict[str, bytes]:
    if reference := source.get("configMapRef"):
        return _data(sources.config_maps, reference, "configmap")
    return _data(sources.secrets, source["secretRef"], "secret")


def _value_from(source: Json, pod: Json, sources: Sources) -> str | None:
    if reference := source.get("fieldRef"):
        return field_of(pod, reference["fieldPath"])
    if reference := source.get("configMapKeyRef"):
        data = _data(sources.config_maps, reference, "configmap")
    elif reference := source.get("secretKeyRef"):
        data = _data(sources.secrets, reference, "secret")
    else:
        return ""
    if reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    raise Missing(f"couldn't find key {reference['key']} in {reference['name']}")


def _data(among: Mapping[str, dict[str, bytes]], reference: Json, what: str) -> dict[str, bytes]:
    if reference["name"] in among:
        return among[reference["name"]]
    if reference.get("optional"):
        return {}
    raise Missing(f'{what} "{reference["name"]}" not found')


def words_of(container: Json, variables: Mapping[str, str], address: str) -> list[str]:
    """Command and arguments; empty where the image's own entry is meant."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [expanded(word, variables).replace(ANY_ADDRESS, address) for word in words]
