"""The store's bytes: exactly these, and rubbish is a value, not an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.core import encoding
from headrace.broker.core.model import (
    ClusterObject,
    Generation,
    Leader,
    Member,
    PartitionRecord,
    Registration,
    Shard,
    TopicObject,
    Unreadable,
)
from headrace.protocol.ids import TopicId

TOPIC = TopicId(bytes(range(16)))
CLUSTER = ClusterObject(
    "c1", store_term=3, tombstones={TOPIC: 2}, config={"flush.ms": 5}, version=7
)
TOPIC_OBJECT = TopicObject("orders", TOPIC, 6, 3, {"flush.ms": 5}, version=2)
REGISTRATION = Registration(3, 9, Generation(1, 2), "http://x", "rack", "running", 1, "0.1", "n", 4)
RECORD = PartitionRecord(
    topic_id=TOPIC,
    partition=0,
    partition_epoch=7,
    leader_epoch=4,
    leader=Leader(1, 9),
    isr=(Member(1, Generation(0, 2)),),
    elr=(Member(2, Generation(0, 0)),),
    replicas=(1, 2, 3),
    adding=(3,),
    min_isr=2,
    recovery="possible_loss",
)


def test_a_shard_is_written_as_documented() -> None:
    assert encoding.encode_shard(Shard(TOPIC, 0, (RECORD,), term=5)) == (
        b'{"v":1,"topic_id":"000102030405060708090a0b0c0d0e0f","index":0,"term":5,'
        b'"records":[[7,4,[1,9],[[1,0,2]],[[2,0,0]],[1,2,3],[3],[],2,false,1]]}'
    )


def test_a_full_shard_of_three_replicas_stays_small() -> None:
    assert len(encoding.encode_shard(Shard(TOPIC, 0, (RECORD,) * 64))) < 6_000


def test_objects_come_back_as_they_were() -> None:
    assert encoding.decode_cluster(encoding.encode_cluster(CLUSTER)) == CLUSTER
    assert encoding.decode_topic(encoding.encode_topic(TOPIC_OBJECT)) == TOPIC_OBJECT
    assert encoding.decode_registration(encoding.encode_registration(REGISTRATION)) == REGISTRATION


@pytest.mark.parametrize(
    "decode",
    [
        encoding.decode_cluster,
        encoding.decode_topic,
        encoding.decode_registration,
        encoding.decode_shard,
    ],
)
def test_rubbish_is_unreadable(decode: object) -> None:
    assert callable(decode)
    whole = encoding.encode_topic(TOPIC_OBJECT)
    for raw in (b"", b"{}", b"[]", b"\xff\xfe", b'{"v":2}', b'{"v":1}', whole[:-1], b"null"):
        assert isinstance(decode(raw), Unreadable)


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_raise(raw: bytes) -> None:
    encoding.decode_shard(raw)
    encoding.decode_record(raw, TOPIC, 0)
    encoding.decode_cluster(raw)


def test_an_id_that_is_none_is_unreadable() -> None:
    raw = encoding.encode_topic(TOPIC_OBJECT).replace(b"0001", b"zz")
    assert isinstance(encoding.decode_topic(raw), Unreadable)
