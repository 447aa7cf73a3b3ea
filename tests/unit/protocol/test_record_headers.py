"""Records without headers share one empty dict that nobody can change for the others."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest

from headrace.protocol import batch
from headrace.protocol.record import NO_HEADERS


def test_records_without_headers_share_an_empty_dict() -> None:
    data = bytes(batch.encode_records([(None, b"a", 0, None), (None, b"b", 0, {})]))
    first, second = batch.records("t", 0, data, batch.read_header(data))
    assert first.headers is second.headers is NO_HEADERS
    assert first.headers == {}
    assert isinstance(first.headers, dict)
    assert msgspec.json.encode(first.headers) == b"{}"


def test_the_shared_headers_can_not_be_changed_and_copies_can() -> None:
    for change in (
        lambda: NO_HEADERS.update(a=b""),
        lambda: NO_HEADERS.setdefault("a", b""),
        lambda: NO_HEADERS.__setitem__("a", b""),
        lambda: NO_HEADERS.__ior__({"a": b""}),
    ):
        with pytest.raises(TypeError, match="dict of your own"):
            change()
    for clone in (pickle.loads(pickle.dumps(NO_HEADERS)), copy.deepcopy(NO_HEADERS)):
        clone["a"] = b""
        assert clone == {"a": b""}
    assert NO_HEADERS == {}
