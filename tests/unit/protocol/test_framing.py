"""Frames: what is there, what is cut off, and what was never one."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import framing, limits, requests
from headrace.protocol.errors import InvalidRequest

produce_decoder = msgspec.msgpack.Decoder(requests.ProduceRequest)
fetch_decoder = msgspec.msgpack.Decoder(requests.FetchRequest)
ID = bytes(16)


def _frame(head: object) -> bytes:
    raw = msgspec.msgpack.encode(head)
    return struct.pack("<I", len(raw)) + raw


@given(
    lengths=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    acks=st.sampled_from([-1, 0, 1]),
    rest=st.binary(max_size=50),
)
def test_what_was_framed_comes_back(lengths: list[int], acks: int, rest: bytes) -> None:
    parts = [requests.ProducePart(ID, number, size) for number, size in enumerate(lengths)]
    request = requests.ProduceRequest(acks, 1_000, parts)
    found, data = framing.split(framing.head(request) + rest, produce_decoder)
    assert found == request
    assert bytes(data) == rest


@given(body=st.binary(max_size=200))
def test_garbage_is_a_bad_request(body: bytes) -> None:
    try:
        framing.split(body, fetch_decoder)
    except InvalidRequest:
        return
    raise AssertionError("random bytes were taken for a fetch request")


def test_every_cut_is_a_bad_request() -> None:
    whole = framing.head(requests.ProduceRequest(-1, 5, [requests.ProducePart(ID, 0, 9)]))
    for cut in range(len(whole)):
        with pytest.raises(InvalidRequest):
            framing.split(whole[:cut], produce_decoder)


@pytest.mark.parametrize("announced", [2**32 - 1, 2**31, 100])
def test_a_head_longer_than_the_body_is_a_bad_request(announced: int) -> None:
    with pytest.raises(InvalidRequest, match="only 3 follow"):
        framing.split(struct.pack("<I", announced) + b"abc", produce_decoder)


@pytest.mark.parametrize(
    "head",
    [
        [],
        {},
        None,
        [1, 1],
        [1, 1, None],
        [1, -1, []],
        [1, 2**31, []],
        [1, 1, [[ID, 0, -5]]],
        [1, 1, [[ID, 0, 2**31]]],
        [1, 1, [[ID, 0, 1.0]]],
        [1, 1, [["text", 0, 1]]],
        [1, 1, [[ID, 0]]],
        [1, 1, [[ID, 0, 1]] * (limits.PARTITIONS_PER_REQUEST_MAX + 1)],
        ["all", 1, []],
    ],
)
def test_heads_of_another_form_are_bad_requests(head: object) -> None:
    with pytest.raises(InvalidRequest, match="documented form"):
        framing.split(_frame(head), produce_decoder)


@pytest.mark.parametrize("place", ["max_wait_ms", "min_bytes", "max_bytes", "part"])
def test_negative_sizes_and_times_in_a_fetch_are_bad_requests(place: str) -> None:
    request = requests.FetchRequest(1, 1, 1, 0, [requests.FetchPart(ID, 0, 0, 1)])
    target = request.parts[0] if place == "part" else request
    setattr(target, "max_bytes" if place == "part" else place, -1)
    with pytest.raises(InvalidRequest):
        framing.split(framing.head(request), fetch_decoder)


def test_fields_of_a_newer_version_are_skipped() -> None:
    request, _ = framing.split(_frame([1, 5, [[ID, 0, 9, "new"]], {"new": [1]}]), produce_decoder)
    assert request == requests.ProduceRequest(1, 5, [requests.ProducePart(ID, 0, 9)])


def test_fields_that_an_older_version_leaves_out_take_their_default() -> None:
    request, _ = framing.split(_frame([1, 1, 1, 0, [[ID, 0, 7, 100]]]), fetch_decoder)
    assert (request.parts[0].leader_epoch, request.parts[0].until) == (-1, -1)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x94\x01\x01\x90" + b"\x91" * 100_000 + b"\xc0",
        b"\x93\x01\x01" + b"\x91" * 100_000,
        b"\x93\x01\x01\xdd\xff\xff\xff\xff",
        b"\x93\x01\x01\x91\x93\xc6\xff\xff\xff\xff",
    ],
    ids=["nested beyond the last field", "nested parts", "4 billion parts", "4 GB of topic id"],
)
def test_heads_that_lie_about_depth_and_length_are_bad_requests(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        framing.split(struct.pack("<I", len(raw)) + raw, produce_decoder)
