"""Options: what they mean, and what is refused with which words."""

from __future__ import annotations

import pickle

import pytest

from headrace.protocol.errors import InvalidConfig, OffsetOutOfRange, TopicNotFound
from headrace.spark.core.offsets import Position, from_json
from headrace.spark.core.options import Place, parse_read, parse_write
from headrace.spark.core.rows import check_columns, group_rows
from headrace.spark.core.starting import resolve, times_of

BASE = {"headrace.bootstrap.servers": "a:1, https://b:2", "subscribe": "t"}
WHERE = {"headrace.bootstrap.servers": "a:1"}


def test_the_least_that_must_be_said_and_the_defaults() -> None:
    options = parse_read(BASE)
    assert options.connect.bootstrap == "http://a:1,https://b:2"
    assert options.subscription.topics == ("t",)
    assert options.fail_on_data_loss
    assert options.starting is None
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.poll_timeout_ms == 120_000
    assert options.group is None
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_spark_puts_among_the_options_is_no_mistake() -> None:
    parse_write({**WHERE, "topic": "t", "checkpointlocation": "/c", "queryname": "q"})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"failOnDataLos": "false"}, "did you mean 'failOnDataLoss'"),
        ({"kafka.bootstrap.servers": "x"}, r"write headrace\. instead"),
        ({"headrace.sasl.mechanism": "x"}, r"headrace\.token\.path"),
        ({"headrace.auto.offset.reset": "x"}, "startingOffsets"),
        ({"assign": '{"t":[0]}'}, "exactly one of.*subscribe and assign were given"),
        ({"startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"t": '}, "startingOffsets is not JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-3 for t/0 is too low; -2 is earliest"),
        ({"startingOffsets": '{"t": {"zero": 1}}'}, "a partition and a number"),
        ({"startingOffsets": '{"t": {"0": "1"}}'}, "a partition and a number"),
        ({"startingOffsets": '{"t": 3}'}, "needs an object with partitions"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": "[1]"}, "a JSON object"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "one of error, latest"),
        ({"maxOffsetsPerTrigger": "0"}, "above 0, got '0'"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "5.*above.*4"),
        ({"maxTriggerDelay": "soon"}, "a time like"),
        ({"failOnDataLoss": "no"}, "true or false, got 'no'"),
        ({"minPartitions": ""}, "minPartitions is empty"),
    ],
)
def test_a_mistake_is_named(extra: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse_read({**BASE, **extra})


def test_something_must_be_read_from_somewhere() -> None:
    with pytest.raises(InvalidConfig, match="none was given"):
        parse_read(WHERE)
    with pytest.raises(InvalidConfig, match=r"headrace\.bootstrap\.servers is missing"):
        parse_read({"subscribe": "t"})
    with pytest.raises(InvalidConfig, match="not a regular expression"):
        parse_read({**WHERE, "subscribePattern": "("})
    with pytest.raises(InvalidConfig, match="assign is JSON like"):
        parse_read({**WHERE, "assign": '{"t": 0}'})


def test_which_topics_and_partitions_are_meant() -> None:
    named = parse_read({**WHERE, "subscribe": "b, a"}).subscription
    assert named.named_topics == ("a", "b")
    assert named.partitions_of("a", 2) == [0, 1]
    assert named.partitions_of("ab", 2) == []
    pattern = parse_read({**WHERE, "subscribePattern": "a.*"}).subscription
    assert pattern.named_topics == ()
    assert [pattern.partitions_of(name, 1) for name in ("ab", "ba")] == [[0], []]
    assigned = parse_read({**WHERE, "assign": '{"t": [3, 1]}'}).subscription
    assert assigned.partitions_of("t", 9) == [1, 3]
    assert assigned.partitions_of("u", 9) == []


def test_one_time_goes_before_times_and_those_before_offsets() -> None:
    offsets = {"startingOffsets": '{"t": {"0": -2, "id": "x"}}'}
    times = {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', **offsets}
    time = {"startingTimestamp": "9", **times}
    assert parse_read({**BASE, **offsets}).starting == Place(
        kind="offsets", by_partition={("t", 0): -2}, ids={"t": "x"}
    )
    assert parse_read({**BASE, **times}).starting == Place(kind="times", by_partition={("t", 0): 5})
    assert parse_read({**BASE, **time}).starting == Place(kind="time", time_ms=9)


def test_batches_end_and_streams_dont() -> None:
    with pytest.raises(InvalidConfig, match="can't be latest"):
        parse_read({**BASE, "startingOffsets": "latest"}).for_batch()
    with pytest.raises(InvalidConfig, match="can't be latest"):
        parse_read({**BASE, "startingOffsets": '{"t": {"0": -1}}'}).for_batch()
    with pytest.raises(InvalidConfig, match="can't be earliest"):
        parse_read({**BASE, "endingOffsets": "earliest"}).for_batch()
    with pytest.raises(InvalidConfig, match="availableNow"):
        parse_read({**BASE, "endingOffsets": "latest"}).for_stream()


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("2 min", 120_000), ("1h", 3_600_000), ("7", 7)],
)
def test_times_are_read_as_spark_reads_them(text: str, ms: int) -> None:
    assert parse_read({**BASE, "maxTriggerDelay": text}).max_trigger_delay_ms == ms


def test_the_group_keeps_its_name_over_restarts() -> None:
    assert parse_read({**BASE, "headrace.group.id": "g"}).group == "g"
    assert parse_read({**BASE, "groupIdPrefix": "job"}).group == "job-t"
    pattern = {**WHERE, "subscribePattern": "a.*|b", "groupIdPrefix": "job"}
    assert parse_read(pattern).group == "job-a.-b"


def test_write_options() -> None:
    options = parse_write({**WHERE, "topic": "t", "owner": "q", "seq": "7", "headrace.acks": "-1"})
    assert (options.owner, options.seq, options.acks) == ("q", 7, "all")
    for extra, words in [
        ({"owner": "q"}, "both or neither"),
        ({"owner": "q", "seq": "-1"}, "whole number"),
        ({"delivery": "exactly-once"}, "one of at-least-once"),
        ({"headrace.compression.type": "gzip"}, "none, lz4, zstd"),
    ]:
        with pytest.raises(InvalidConfig, match=words):
            parse_write({**WHERE, **extra})


def test_a_frame_that_cant_be_written_is_refused() -> None:
    check_columns({"value": "string", "offset": "bigint"}, "t")
    check_columns({"value": "binary", "topic": "string"}, None)
    for columns, topic, words in [
        ({"key": "string"}, "t", "column value"),
        ({"value": "int"}, "t", "string or binary, not int"),
        ({"value": "string", "partition": "bigint"}, "t", "partition is int"),
        ({"value": "string"}, None, "where to"),
    ]:
        with pytest.raises(InvalidConfig, match=words):
            check_columns(columns, topic)


def test_rows_are_grouped_by_where_they_go() -> None:
    assert group_rows("t", None, 3) == {("t", None): None}
    assert group_rows("t", None, 0) == {}
    assert group_rows(["a", "b", "a"], [0, None, 0], 3) == {("a", 0): [0, 2], ("b", None): [1]}


HEADS = {"t": Position("id", {0: 10, 1: 20})}
FIRSTS = {"t": Position("id", {0: 1, 1: 2})}


def test_places_become_offsets() -> None:
    def at(place: Place, **times: dict[tuple[str, int], int | None]) -> dict[int, int]:
        found = resolve(place, earliest=FIRSTS, latest=HEADS, at_times=times.get("times", {}))
        return dict(found["t"].offsets)

    assert at(Place(kind="earliest")) == {0: 1, 1: 2}
    assert at(Place(kind="latest")) == {0: 10, 1: 20}
    mixed = Place(kind="offsets", by_partition={("t", 0): -2, ("t", 1): -1})
    assert at(mixed) == {0: 1, 1: 20}
    time = Place(kind="time", time_ms=5)
    assert times_of(time, HEADS) == {("t", 0): 5, ("t", 1): 5}
    assert at(time, times={("t", 0): 4, ("t", 1): None}) == {0: 4, 1: 20}


def test_places_that_cant_be() -> None:
    def at(place: Place) -> None:
        times = {("t", 0): None, ("t", 1): 3}
        resolve(place, earliest=FIRSTS, latest=HEADS, at_times=times, late="error")

    with pytest.raises(InvalidConfig, match="missing: t/1 not among them: u/0"):
        at(Place(kind="offsets", by_partition={("t", 0): 1, ("u", 0): 1}))
    with pytest.raises(TopicNotFound, match="created again"):
        at(Place(kind="offsets", by_partition={("t", 0): 1, ("t", 1): 1}, ids={"t": "old"}))
    with pytest.raises(OffsetOutOfRange, match="no record at or after 5 ms in t/0"):
        at(Place(kind="time", time_ms=5))


def test_a_kafka_checkpoint_is_told_apart() -> None:
    with pytest.raises(InvalidConfig, match="no topic id"):
        from_json({"t": {"0": 5}})
