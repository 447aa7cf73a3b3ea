"""The brokers' pod template: one container, what it is told, where its data is, when it is well.

Liveness is the process, never the state of its logs: a broker that recovers for an hour lives. It
is ready once it serves. A stop gets the time to hand leadership over.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from headrace.operator import names
from headrace.operator.builders import config
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner, PodTemplate

DATA_DIR = "/var/lib/headrace"
CONFIG_DIR = "/etc/headrace/config"
SECRET_DIR = "/etc/headrace/secret"
POD_INFO_DIR = "/etc/headrace/pod"
USER = 10_001

FORGET_S = 5
"""How long a stopping broker still takes requests, until all have heard that it leaves Services."""


def pod_template(
    owner: Owner, spec: BrokerClusterSpec, *, rolled_for: str | None = None
) -> JsonObject:
    """The template, with its revision as an annotation: pods of another one are to be restarted.
    `rolled_for`: what a person wrote to have all restarted."""
    template = spec.template.pod
    pod: JsonObject = {
        "metadata": {
            "labels": {**template.labels, **names.labels(owner.name)},
            "annotations": dict(template.annotations),
        },
        "spec": _pod_spec(owner, spec, template),
    }
    if rolled_for:
        pod["metadata"]["annotations"][names.ROLLED_FOR] = rolled_for
    static = config.toml(config.static_config(spec))
    pod["metadata"]["annotations"][names.REVISION] = _hash([pod, static])
    return pod


def _hash(value: Any) -> str:
    raw = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:16]


def _pod_spec(owner: Owner, spec: BrokerClusterSpec, template: PodTemplate) -> JsonObject:
    found: JsonObject = {
        "serviceAccountName": names.service_account(owner.name),
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **template.security_context,
        },
        "enableServiceLinks": False,
        "affinity": template.affinity if template.affinity is not None else _apart(owner),
        "topologySpreadConstraints": _spread(owner, spec, template),
        "containers": [_container(owner, spec, template)],
        "volumes": _volumes(owner),
    }
    if template.node_selector:
        found["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        found["tolerations"] = list(template.tolerations)
    if template.priority_class_name:
        found["priorityClassName"] = template.priority_class_name
    if spec.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": each.name} for each in spec.image_pull_secrets]
    return found


def _apart(owner: Owner) -> JsonObject:
    """Rather on different nodes, but on one where there is but one."""
    term = {
        "labelSelector": {"matchLabels": names.selector(owner.name)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    }  # fmt: skip


def _spread(owner: Owner, spec: BrokerClusterSpec, template: PodTemplate) -> list[JsonObject]:
    if template.topology_spread_constraints is not None:
        return list(template.topology_spread_constraints)
    if spec.rack is None:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": spec.rack.topology_key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector(owner.name)},
        }
    ]


def _container(owner: Owner, spec: BrokerClusterSpec, template: PodTemplate) -> JsonObject:
    found: JsonObject = {
        "name": "broker",
        "image": spec.image,
        "command": ["headrace", "broker", "--config", f"{CONFIG_DIR}/{config.FILE}"],
        "env": [*template.env, *_environment(owner, spec)],
        "ports": [
            {"name": "http", "containerPort": names.PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": names.HEALTH_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe("/livez", period_s=2, failures=60),
        "livenessProbe": _probe("/livez", period_s=10, failures=6),
        "readinessProbe": _probe("/readyz", period_s=2, failures=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(FORGET_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": names.DATA, "mountPath": DATA_DIR},
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": "secret", "mountPath": SECRET_DIR, "readOnly": True},
            {"name": "pod", "mountPath": POD_INFO_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if spec.resources:
        found["resources"] = spec.resources
    if spec.image_pull_policy:
        found["imagePullPolicy"] = spec.image_pull_policy
    return found


def _environment(owner: Owner, spec: BrokerClusterSpec) -> list[JsonObject]:
    host = f"$(POD_NAME).{names.headless_service(owner.name)}.{owner.namespace}.svc"
    found: list[JsonObject] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    settings = {
        "store": f"kubernetes:{owner.namespace}/{owner.name}",
        "host": "0.0.0.0",
        "advertised.url": f"http://{host}:{names.PORT}",
        "data.dir": f"{DATA_DIR}/data",
        "cluster.secret.file": f"{SECRET_DIR}/{config.SECRET_KEY}",
        "log.format": str(spec.config.get("log.format", "json")),
    }
    if spec.rack is not None:
        settings["rack.file"] = f"{POD_INFO_DIR}/rack"
    for key, value in settings.items():
        name = "HEADRACE_" + key.upper().replace(".", "_")
        found.append({"name": name, "value": value})
    return found


def _probe(path: str, *, period_s: int, failures: int) -> JsonObject:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _volumes(owner: Owner) -> list[JsonObject]:
    rack = {"fieldPath": f"metadata.annotations['{names.RACK}']"}
    return [
        {"name": "config", "configMap": {"name": names.config_map(owner.name)}},
        {"name": "secret", "secret": {"secretName": names.secret(owner.name)}},
        {"name": "pod", "downwardAPI": {"items": [{"path": "rack", "fieldRef": rack}]}},
        {"name": "tmp", "emptyDir": {}},
    ]
