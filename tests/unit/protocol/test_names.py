"""What topics and groups may be called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import names, routes
from headrace.protocol.errors import InvalidName

GOOD = ["a", "orders", "Orders.v2_final-1", "...", "_x", "-", "0", "x" * 249]
BAD = [
    "", ".", "..", "a/b", "../etc", "a b", "ü", "a\n", "\n", "a\0", "日本", "x" * 250, "x" * 300,
    "a:b", "a\\b", "a%2f", "١", "a\u200b",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_kafkas_names_are_names(name: str) -> None:
    assert names.check_name(name, kind="topic") == name
    assert names.check_user_topic(name) == name


@pytest.mark.parametrize("name", BAD)
def test_other_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(InvalidName, match=r"use 1 to 249 of the characters A-Z a-z 0-9") as caught:
        names.check_name(name, kind="group")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["__offsets", "__x", "__"])
def test_names_of_the_system_are_not_for_users(name: str) -> None:
    assert names.is_internal(names.check_name(name, kind="topic"))
    with pytest.raises(InvalidName, match="system's own"):
        names.check_user_topic(name)


@given(name=st.text(max_size=260))
def test_an_accepted_name_is_safe_in_a_path_and_a_folder(name: str) -> None:
    try:
        names.check_name(name, kind="topic")
    except InvalidName:
        return
    assert routes.fill(routes.TOPIC, topic=name) == f"/v1/topics/{name}"
    assert name.isascii()
    assert "/" not in name
    assert name not in {".", ".."}


def test_path_parameters_are_quoted() -> None:
    assert routes.fill(routes.GROUP, group="a/b ?") == "/v1/groups/a%2Fb%20%3F"
    path = routes.fill(routes.PARTITION_RECORDS, topic="t", partition=3)
    assert path == "/v1/topics/t/partitions/3/records"
