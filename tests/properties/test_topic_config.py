"""Topic settings: what comes in is right or refused by name, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core.model import ConfigValue
from headrace.broker.core.topic_config import (
    TOPIC_CONFIG,
    Setting,
    effective,
    min_insync_replicas,
    normalise,
    resolve,
    validate,
)
from headrace.protocol.errors import InvalidConfig

KINDS = {"int": int, "bool": bool, "ratio": float, "word": str, "words": str}

keys = st.sampled_from(sorted(TOPIC_CONFIG))
values: st.SearchStrategy[ConfigValue] = st.one_of(
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from(["1", " 7 ", "-1", "1e3", "TRUE", "lz4", "9" * 5000, "٣"]),
)


def _refusal(key: str, value: ConfigValue) -> str | None:
    try:
        validate({key: value})
    except InvalidConfig as error:
        return error.message
    return None


@given(keys, values)
def test_a_value_is_taken_in_its_own_type_or_refused_by_the_keys_name(
    key: str, value: ConfigValue
) -> None:
    refusal = _refusal(key, value)
    if refusal is not None:
        assert refusal.startswith(key)
        assert len(refusal) < 300
        return
    taken = validate({key: value})[key]
    assert type(taken) is KINDS[TOPIC_CONFIG[key].kind]
    assert normalise(key, taken) == taken
    assert normalise(key, str(taken)) == taken


@given(st.dictionaries(st.text(max_size=30) | keys, values, max_size=5), st.integers(1, 5))
def test_stored_settings_of_any_kind_never_stop_a_topic(
    config: dict[str, ConfigValue], replicas: int
) -> None:
    found = effective(config, {}, replicas=replicas)
    assert set(found) == set(TOPIC_CONFIG)
    assert 1 <= resolve(config, {}, replicas=replicas).min_insync_replicas <= replicas


@given(st.text(max_size=60))
def test_an_unknown_key_is_refused(key: str) -> None:
    if key not in TOPIC_CONFIG:
        with pytest.raises(InvalidConfig, match="no topic setting"):
            validate({key: 1})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("retention_ms", "retention.ms"),
        ("retention.mss", "retention.ms"),
        ("min.insync.replica", "min.insync.replicas"),
        ("Cleanup-Policy", "cleanup.policy"),
    ],
)
def test_a_near_miss_names_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(InvalidConfig, match=f"did you mean {meant}\\?"):
        validate({typed: 1})


@pytest.mark.parametrize("value", ["compact,delete", "delete, Compact", "delete,compact,delete"])
def test_policies_are_put_in_one_order(value: str) -> None:
    assert validate({"cleanup.policy": value}) == {"cleanup.policy": "compact,delete"}
    assert validate({"cleanup.policy": "compact"}) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("value", ["", "compact,shred", ",", True])
def test_no_other_policies_are_taken(value: ConfigValue) -> None:
    with pytest.raises(InvalidConfig, match=r"^cleanup\.policy"):
        validate({"cleanup.policy": value})


def test_the_lags_of_compaction_agree() -> None:
    with pytest.raises(InvalidConfig, match="above max"):
        validate({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})


def test_the_topic_comes_before_the_cluster_and_the_cluster_before_the_default() -> None:
    found = effective({"flush.ms": 5}, {"flush.ms": 6, "segment.ms": "7"}, replicas=1)
    assert found["flush.ms"] == Setting(5, "topic")
    assert found["segment.ms"] == Setting(7, "cluster")
    assert found["retention.bytes"] == Setting(-1, "default")


@pytest.mark.parametrize(
    ("config", "defaults", "replicas", "minimum"),
    [
        ({}, {}, 1, 1),
        ({}, {}, 2, 1),
        ({}, {}, 3, 2),
        ({"min.insync.replicas": 3}, {}, 1, 1),
        ({}, {"min.insync.replicas": 2}, 2, 2),
        ({"min.insync.replicas": 1}, {"min.insync.replicas": 3}, 3, 1),
    ],
)
def test_the_effective_minimum(
    config: dict[str, ConfigValue], defaults: dict[str, ConfigValue], replicas: int, minimum: int
) -> None:
    assert min_insync_replicas(config, defaults, replicas=replicas) == minimum


def test_flushing_by_itself_depends_on_the_replicas() -> None:
    assert resolve({}, {}, replicas=1).flush_policy == "batch"
    assert resolve({}, {}, replicas=3).flush_policy == "interval"
    assert resolve({"flush.policy": "none"}, {}, replicas=1).flush_policy == "none"


def test_every_default_is_valid_and_every_key_is_explained() -> None:
    for key in TOPIC_CONFIG.values():
        assert key.doc.endswith(".")
        if key.default is not None:
            assert normalise(key.name, key.default) == key.default
