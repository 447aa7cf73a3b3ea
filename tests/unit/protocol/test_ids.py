"""Topic ids as text."""

from __future__ import annotations

import pytest

from headrace.protocol.ids import new_topic_id, parse_topic_id


def test_an_id_is_sixteen_bytes_and_new_each_time() -> None:
    ids = {new_topic_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(topic_id) for topic_id in ids} == {16}


def test_an_id_comes_back_from_its_text() -> None:
    topic_id = new_topic_id()
    assert parse_topic_id(topic_id.hex()) == topic_id
    assert parse_topic_id(topic_id.hex().upper()) == topic_id


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 34, "z" * 32, " " + "0" * 32, "00 " * 16, "é" * 32]
)
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_topic_id(text)
