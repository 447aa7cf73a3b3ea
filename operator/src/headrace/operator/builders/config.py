"""The brokers' settings file, and the secret they know each other by."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.operator import names
from headrace.operator.builders.metadata import metadata
from headrace.operator.spec import BrokerClusterSpec, ConfigValue, JsonObject, Owner
from headrace.protocol.config_keys import LIVE_KEYS

FILE = "headrace.toml"
SECRET_KEY = "cluster-secret"

OPERATORS_OWN = frozenset(
    {
        "advertised.url",
        "broker.id",
        "brokers.expected",
        "cluster.name",
        "cluster.secret.file",
        "data.dir",
        "health.host",
        "health.port",
        "host",
        "port",
        "rack",
        "rack.file",
        "store",
    }  # fmt: skip
)
"""Settings that follow from the objects; one in `spec.config` is refused by a condition."""


def static_config(spec: BrokerClusterSpec) -> dict[str, ConfigValue]:
    """What brokers read at their start; a change of it restarts them."""
    return {
        key: value
        for key, value in sorted(spec.config.items())
        if key not in LIVE_KEYS and key not in OPERATORS_OWN
    }


def live_config(spec: BrokerClusterSpec) -> dict[str, ConfigValue]:
    """What is changed while brokers run, through Admin."""
    return {key: value for key, value in sorted(spec.config.items()) if key in LIVE_KEYS}


def config_map(owner: Owner, spec: BrokerClusterSpec) -> JsonObject:
    """The settings file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, names.config_map(owner.name)),
        "data": {FILE: toml(static_config(spec))},
    }


def toml(settings: Mapping[str, ConfigValue]) -> str:
    """The file's text: one line a setting, quoted keys, so that dots make no tables."""
    return "".join(f'"{key}" = {_literal(value)}\n' for key, value in settings.items())


def _literal(value: ConfigValue) -> str:
    # JSON's strings are TOML's basic strings but for pairs of surrogates and DEL, its numbers are
    # TOML's integers.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def secret(owner: Owner, value: str) -> JsonObject:
    """The secret between brokers. It has no owner: volumes that are kept need it again."""
    made = metadata(owner, names.secret(owner.name))
    del made["ownerReferences"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": made,
        "type": "Opaque",
        "stringData": {SECRET_KEY: value},
    }
