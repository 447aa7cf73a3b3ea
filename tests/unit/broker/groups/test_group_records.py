"""The records of groups, byte for byte, and the state that a log of them makes."""

from __future__ import annotations

import pytest

from headrace.broker.core.groups.model import (
    Change,
    Group,
    Header,
    HeaderSet,
    Step,
    StepSet,
    Subscription,
    SubscriptionSet,
    TargetSet,
)
from headrace.broker.groups.records import decode_change, encode_change, encode_key, encode_value
from headrace.broker.groups.state import GroupOffsets, Loading
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.ids import TopicId, TopicIdPartition

TOPIC_ID = TopicId(bytes(range(16)))
WHERE = TopicIdPartition(TOPIC_ID, 3)
CHANGES: list[tuple[Change, str, str]] = [
    (HeaderSet(Header(7, 5, 4, 9)), "9201a167", "9501070504" + "09"),
    (
        SubscriptionSet(
            "m",
            Subscription(topics=("t",), version=2, session_timeout_ms=9, rebalance_timeout_ms=8),
        ),
        "9302a167a16d",
        "9a0191a17402c0c0a7756e69666f726d0908a0c2",
    ),
    (
        TargetSet("m", frozenset({WHERE})),
        "9303a167a16d",
        "920181c410" + TOPIC_ID.hex() + "9103",
    ),
    (
        StepSet("m", Step(6, 5, {WHERE: 6}, {})),
        "9304a167a16d",
        "95010605" + "81c410" + TOPIC_ID.hex() + "810306" + "80",
    ),
]


@pytest.mark.parametrize(("change", "key", "value"), CHANGES)
def test_a_change_is_written_byte_for_byte_and_read_again(
    change: Change, key: str, value: str
) -> None:
    row = encode_change("g", change)
    assert (row[0].hex(), (row[1] or b"").hex()) == (key, value)
    assert decode_change(*row) == ("g", change)
    gone = type(change)(*(["m", None] if hasattr(change, "member_id") else [None]))
    assert encode_change("g", gone) == (row[0], None)
    assert decode_change(row[0], None) == ("g", gone)


def test_kinds_of_a_newer_version_are_skipped_and_damage_is_told() -> None:
    assert decode_change(b"\x92\x09\xa1g", b"\x91\x01") is None
    assert decode_change(None, b"") is None
    with pytest.raises(CorruptBatch):
        decode_change(b"\x92\x01\xa1g", b"\x91")


def test_loading_keeps_the_last_value_of_each_key() -> None:
    loading = Loading()
    rows = [encode_change("g", change) for change, _, _ in CHANGES]
    old = encode_change("g", HeaderSet(Header(1, 1, 1, 1)))
    commits = [
        (
            encode_key("g", TOPIC_ID, number % 4),
            encode_value(number, leader_epoch=0, metadata="", commit_time_ms=1),
        )
        for number in range(9)
    ]
    forgotten = (encode_key("g", TOPIC_ID, 1), None)
    every = [old, *rows, *commits, forgotten, (b"\x92\x0a\xa1g", b"newer")]
    loading.take([key for key, _ in every], [value for _, value in every])
    offsets, groups = GroupOffsets(), dict[str, Group]()
    for _ in loading.decode_slices(offsets, groups):
        pass
    assert {where.partition: found.offset for where, found in offsets.of("g").items()} == {
        0: 8, 2: 6, 3: 7,
    }  # fmt: skip
    assert groups["g"].header == Header(7, 5, 4, 9)
    assert groups["g"].owners == {WHERE: "m"}
