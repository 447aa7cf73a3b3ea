"""JSON bodies: bytes as text, and what is refused on the way in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import limits, models
from headrace.protocol.errors import InvalidRequest


@given(raw=st.none() | st.binary(max_size=50) | st.text(max_size=20).map(str.encode))
def test_any_bytes_travel_through_json(raw: bytes | None) -> None:
    record = models.JsonRecord(value=models.bytes_to_text(raw))
    found = msgspec.json.decode(msgspec.json.encode(record), type=models.JsonRecord)
    assert models.text_to_bytes(found.value) == raw


def test_text_stays_text_and_other_bytes_are_base64() -> None:
    assert models.bytes_to_text("ü".encode()) == "ü"
    assert models.bytes_to_text(b"\xff") == models.Base64(base64="/w==")
    assert models.bytes_to_text(b"") == ""
    assert models.bytes_to_text(None) is None


@pytest.mark.parametrize("text", ["*", "abc", "é", "YQ==\n", "YQ", " YQ=="])
def test_base64_that_is_none_is_a_bad_request(text: str) -> None:
    with pytest.raises(InvalidRequest):
        models.text_to_bytes(models.Base64(base64=text))


def test_half_a_surrogate_pair_is_a_bad_request() -> None:
    with pytest.raises(InvalidRequest):
        models.text_to_bytes("\ud800")


REFUSED: list[tuple[type[msgspec.Struct], object]] = [
    (models.JsonProduce, {"records": []}),
    (models.JsonProduce, {"records": [{"valeu": "x"}]}),
    (models.JsonProduce, {"records": [{"value": 5}]}),
    (models.JsonProduce, {"records": [{"partition": -1}]}),
    (models.JsonProduce, {"records": [{"timestamp_ms": limits.TIMESTAMP_MS_MAX + 1}]}),
    (models.JsonProduce, {"records": [{"value": {"base64": "YQ==", "x": 1}}]}),
    (models.JsonProduce, {"records": [{}] * 100_001}),
    (models.JsonProduce, []),
    (models.TopicCreate, {"name": "t", "partitions": 0}),
    (models.TopicCreate, {"name": "t", "partitions": limits.PARTITIONS_PER_TOPIC_MAX + 1}),
    (models.TopicCreate, {"name": "t", "replicas": 0}),
    (models.TopicCreate, {"name": "t", "retention": 5}),
    (models.TopicCreate, {"name": 5}),
    (models.CommitRequest, {"offsets": []}),
    (models.CommitRequest, {"offsets": [{"topic": "t", "partition": 0, "offset": -1}]}),
    (models.CommitRequest, {"offsets": [{"topic": "t", "partition": 0, "offset": 2**63}]}),
    (models.OffsetQuery, {"topic": "t", "partition": 0, "at": "yesterday"}),
    (
        models.DeleteRecordsRequest,
        {"partitions": [{"topic": "t", "partition": 0, "before_offset": -2}]},
    ),
]


@pytest.mark.parametrize(("model", "body"), REFUSED)
def test_bodies_that_are_not_as_documented_are_refused(
    model: type[msgspec.Struct], body: object
) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(body), type=model)


def test_a_field_that_a_newer_broker_answers_is_ignored() -> None:
    raw = b'{"topic_id": "00", "added_later": {"x": [1]}}'
    assert msgspec.json.decode(raw, type=models.TopicDeleted) == models.TopicDeleted("00")
