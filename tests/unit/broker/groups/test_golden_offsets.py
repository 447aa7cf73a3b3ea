"""The records of `__offsets`, byte for byte: what old versions committed must stay readable."""

from __future__ import annotations

from headrace.broker.groups import records
from headrace.protocol.ids import TopicId
from testkit.golden import golden

TOPIC_ID = TopicId(bytes(range(16)))


def test_a_committed_offset_is_written_byte_for_byte() -> None:
    assert records.encode_key("billing", TOPIC_ID, 3) == golden("offsets-key")
    value = records.encode_value(
        4_096, leader_epoch=7, metadata="m", commit_time_ms=1_700_000_000_123
    )
    assert value == golden("offsets-value")


def test_a_committed_offset_is_read() -> None:
    found = records.decode(golden("offsets-key"), golden("offsets-value"))
    assert found is not None
    key, value = found
    assert (key.group, key.topic_id, key.partition) == ("billing", TOPIC_ID, 3)
    assert value is not None
    assert (value.offset, value.leader_epoch, value.metadata) == (4_096, 7, "m")
    assert value.commit_time_ms == 1_700_000_000_123


def test_a_forgotten_offset_has_no_value() -> None:
    found = records.decode(golden("offsets-key"), None)
    assert found is not None
    assert found[1] is None
