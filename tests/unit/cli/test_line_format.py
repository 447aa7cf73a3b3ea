"""What a line of `produce` means and how `consume` shows a record."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.line_format import (
    FormatFault,
    LineFault,
    compile_format,
    parse_line,
    split_lines,
    unescape,
)
from headrace.protocol.record import Record


def a_record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "key": b"k",
        "value": b"v",
        "timestamp_ms": 1_700_000_000_000,
        "headers": {},
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_letter_shows_its_field() -> None:
    render = compile_format("%k|%v|%o|%p|%t|%T|%h|%%")
    shown = render([a_record(headers={"a": b"1", "b": None})])
    assert shown == b"k|v|17|3|orders|1700000000000|a=1,b=|%\n"


def test_a_newline_ends_each_record_and_nothing_is_printed_for_none() -> None:
    render = compile_format("%v")
    assert render([a_record(), a_record(value=b"w")]) == b"v\nw\n"
    assert render([]) == b""


def test_escapes_in_a_format_are_bytes() -> None:
    assert compile_format(r"%k\t%v\x00\\")([a_record()]) == b"k\tv\x00\\\n"


def test_bytes_that_are_no_text_pass_through() -> None:
    raw = bytes(range(256))
    assert compile_format("%v")([a_record(value=raw)]) == raw + b"\n"


def test_null_shows_as_the_text_given_for_it() -> None:
    record = a_record(key=None, value=None)
    assert compile_format("%k %v")([record]) == b" \n"
    assert compile_format("%k %v", null=b"NULL")([record]) == b"NULL NULL\n"


@pytest.mark.parametrize("text", ["%x", "%", r"\q", "%v\\"])
def test_an_unknown_letter_or_escape_is_named(text: str) -> None:
    with pytest.raises(FormatFault, match="not a"):
        compile_format(text)


def test_json_has_one_object_a_line_with_base64_where_it_is_no_text() -> None:
    shown = compile_format("json")([a_record(value=b"\xff", headers={"h": b"x"}), a_record()])
    first, second, rest = shown.split(b"\n")
    assert rest == b""
    assert msgspec.json.decode(first) == {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "timestamp_ms": 1_700_000_000_000,
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": {"h": "x"},
    }
    assert msgspec.json.decode(second)["value"] == "v"


@given(st.binary(), st.integers(1, 10))
def test_lines_are_the_same_however_the_input_is_cut(raw: bytes, step: int) -> None:
    lines: list[bytes] = []
    kept = b""
    for start in range(0, len(raw), step):
        found, kept = split_lines(kept, raw[start : start + step])
        lines += found
    assert [*lines, kept] == raw.split(b"\n")


def test_a_line_is_the_value_when_there_is_no_separator() -> None:
    assert parse_line(b"a:b", separator=None, null=None) == (None, b"a:b")
    assert parse_line(b"", separator=None, null=None) == (None, b"")


def test_the_first_separator_divides_key_and_value() -> None:
    assert parse_line(b"a:b:c", separator=b":", null=None) == (b"a", b"b:c")
    assert parse_line(b":", separator=b":", null=None) == (b"", b"")


def test_the_null_text_becomes_null_as_key_and_value() -> None:
    assert parse_line(b"k:NULL", separator=b":", null=b"NULL") == (b"k", None)
    assert parse_line(b"NULL:v", separator=b":", null=b"NULL") == (None, b"v")
    assert parse_line(b"NULL", separator=None, null=b"NULL") == (None, None)


def test_a_line_without_its_separator_is_a_fault() -> None:
    with pytest.raises(LineFault, match="no key separator"):
        parse_line(b"abc", separator=b":", null=None)


def test_a_separator_may_be_several_bytes_with_escapes() -> None:
    assert unescape(r"\t::\xff") == b"\t::\xff"
    assert unescape("é") == "é".encode()
