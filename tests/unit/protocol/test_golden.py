"""The bytes of version 1, written down. Every file is read and, where a library's version can't
change the bytes, written again. A failure here means that stored data would no longer be read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.protocol import batch, framing, requests
from headrace.protocol.compression import Codec
from headrace.protocol.record import Record
from testkit.batches import Row, assign
from testkit.golden import GOLDEN, golden

TOPIC_ID = bytes(range(16))
ROWS: list[Row] = [
    (b"k1", b"first", 1_700_000_000_000, {"tag": b"paid"}),
    (None, b"second", 1_700_000_000_005, None),
    (b"k3", None, 1_699_999_999_999, {"a": None, "b": b""}),
]


def _assigned(raw: bytearray) -> bytes:
    return assign(bytes(raw), base_offset=4_096, append_time_ms=1_700_000_000_123, leader_epoch=7)


def _read(name: str) -> list[Record]:
    raw = golden(name)
    return batch.records("t", 0, raw, batch.read_header(raw))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_of_each_codec_reads_as_the_records_it_was_made_of(codec: str) -> None:
    assert _read(f"batch-v1-{codec}") == [
        Record("t", 0, 4_096 + number, key, value, stamp, headers or {})
        for number, (key, value, stamp, headers) in enumerate(ROWS)
    ]
    header = batch.read_header(golden(f"batch-v1-{codec}"))
    assert header.codec == Codec[codec.upper()]
    assert header.append_time_ms == 1_700_000_000_123
    assert header.leader_epoch == 7
    assert header.max_timestamp_ms == 1_700_000_000_005
    assert header.uncompressed_length == 54


def test_an_uncompressed_batch_is_written_byte_for_byte() -> None:
    assert _assigned(batch.encode_records(ROWS)) == golden("batch-v1-none")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_is_written_with_the_same_fields(codec: Codec) -> None:
    """The compressed bytes are the library's business and may change with its version."""
    new = batch.read_header(_assigned(batch.encode_records(ROWS, codec=codec)))
    old = batch.read_header(golden(f"batch-v1-{codec.name.lower()}"))
    assert new == old._replace(
        length=new.length, assigned_crc=new.assigned_crc, sealed_crc=new.sealed_crc
    )


def test_a_batch_fresh_from_the_producer() -> None:
    assert bytes(batch.encode_records([(None, b"value", 0, None)])) == golden("batch-v1-sealed")
    assert _read("batch-v1-sealed") == [Record("t", 0, 0, None, b"value", 0, {})]


def test_a_batch_of_an_idempotent_producer() -> None:
    rows: list[Row] = [(None, b"a", 5, None), (None, b"b", 5, None)]
    raw = batch.encode_records(
        rows, producer_id=81_985_529_216_486_895, producer_epoch=3, base_sequence=1_000
    )
    assert _assigned(raw) == golden("batch-v1-idempotent")
    header = batch.read_header(golden("batch-v1-idempotent"))
    assert header.producer_id == 81_985_529_216_486_895
    assert (header.producer_epoch, header.base_sequence) == (3, 1_000)
    assert [record.value for record in _read("batch-v1-idempotent")] == [b"a", b"b"]


def test_a_batch_of_tombstones() -> None:
    raw = batch.encode_records([(b"k1", None, 5, None), (b"", None, 5, None)])
    assert _assigned(raw) == golden("batch-v1-tombstones")
    found = _read("batch-v1-tombstones")
    assert [(record.key, record.value) for record in found] == [(b"k1", None), (b"", None)]


def test_a_compacted_batch_keeps_its_offsets() -> None:
    raw = batch.encode(
        keys=[b"a", b"b"], values=[b"1", b"2"], timestamps=None, headers=None, record_count=2,
        first_timestamp_ms=5, max_timestamp_ms=5, offset_deltas=[1, 4], last_offset_delta=5,
    )  # fmt: skip
    assert _assigned(raw) == golden("batch-v1-compacted")
    assert [record.offset for record in _read("batch-v1-compacted")] == [4_097, 4_100]
    assert batch.read_header(golden("batch-v1-compacted")).next_offset == 4_102


def test_a_batch_emptied_by_compaction_keeps_its_place() -> None:
    raw = batch.encode(
        keys=None, values=None, timestamps=None, headers=None, record_count=0,
        first_timestamp_ms=5, max_timestamp_ms=5, last_offset_delta=5,
        producer_id=9, producer_epoch=0, base_sequence=6,
    )  # fmt: skip
    assert _assigned(raw) == golden("batch-v1-emptied")
    assert _read("batch-v1-emptied") == []
    assert batch.read_header(golden("batch-v1-emptied")).next_offset == 4_102


SEALED = bytes(batch.encode_records([(None, b"value", 0, None)]))
STORED = assign(SEALED, base_offset=4_096, append_time_ms=1_700_000_000_123, leader_epoch=7)
FRAMES: list[tuple[str, msgspec.Struct, bytes]] = [
    (
        "frame-produce-request",
        requests.ProduceRequest(-1, 30_000, [requests.ProducePart(TOPIC_ID, 2, len(SEALED))]),
        SEALED,
    ),
    (
        "frame-produce-response",
        requests.ProduceResponse(
            0,
            [
                requests.ProduceResult(TOPIC_ID, 2, None, None, 4_096, 1_700_000_000_123, 0),
                requests.ProduceResult(TOPIC_ID, 9, "partition_not_found", "no partition 9"),
            ],
        ),
        b"",
    ),
    (
        "frame-fetch-request",
        requests.FetchRequest(
            500, 1, 1_048_576, 0, [requests.FetchPart(TOPIC_ID, 2, 4_096, 1_048_576, 7, -1)]
        ),
        b"",
    ),
    (
        "frame-fetch-response",
        requests.FetchResponse(
            0,
            [requests.FetchResult(TOPIC_ID, 2, None, None, 4_097, 4_097, 0, len(STORED), 7)],
        ),
        STORED,
    ),
]


@pytest.mark.parametrize(("name", "meta", "batches"), FRAMES, ids=[name for name, _, _ in FRAMES])
def test_frames_are_written_and_read_byte_for_byte(
    name: str, meta: msgspec.Struct, batches: bytes
) -> None:
    assert framing.head(meta) + batches == golden(name)
    found, rest = framing.split(golden(name), msgspec.msgpack.Decoder(type(meta)))
    assert found == meta
    assert bytes(rest) == batches


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("frame-fetch-request-before-racks", "frame-fetch-request"),
        ("frame-fetch-response-before-racks", "frame-fetch-response"),
    ],
)
def test_frames_of_former_versions_are_read(former: str, name: str) -> None:
    [meta] = [meta for present, meta, _ in FRAMES if present == name]
    found, _rest = framing.split(golden(former), msgspec.msgpack.Decoder(type(meta)))
    assert found == meta


def test_every_golden_file_is_read_by_a_test() -> None:
    tests = Path(__file__).parents[2]
    source = "".join(file.read_text() for file in tests.rglob("*golden*.py"))
    by_codec = {f"batch-v1-{codec.name.lower()}" for codec in Codec}
    for file in GOLDEN.glob("*.txt"):
        assert file.stem in by_codec or f'"{file.stem}"' in source, file.name
