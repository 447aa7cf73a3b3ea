"""Live and static settings: the protocol's list is the broker's."""

from __future__ import annotations

import dataclasses

from headrace.broker.core.cluster_config import CLUSTER_CONFIG
from headrace.broker.settings import Settings
from headrace.protocol.config_keys import LIVE_KEYS


def test_the_list_is_what_the_broker_takes() -> None:
    assert CLUSTER_CONFIG.keys() == LIVE_KEYS


def test_no_key_is_both_live_and_static() -> None:
    static = {item.metadata["key"] for item in dataclasses.fields(Settings)}
    assert not static & LIVE_KEYS
