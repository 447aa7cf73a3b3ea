"""What a program hands over, made into what a batch can hold: checked, serialized, measured.

Each refusal says what to do instead. Nothing here knows of topics, partitions or the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.protocol import limits
from headrace.protocol.errors import InvalidRequest, InvalidTimestamp
from headrace.protocol.record import Headers
from headrace.sdk.core.accumulator import RECORD_OVERHEAD_BYTES, headers_size


class Row:
    """One record, checked; `size` is its estimate in a batch."""

    __slots__ = ("headers", "key", "size", "stamp", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        stamp: int | None,
        size: int,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.stamp = stamp
        self.size = size


class Rows:
    """Makes rows with a producer's serializers (None: keys or values are bytes already)."""

    def __init__(
        self, *, dump_key: Callable[[Any], Any] | None, dump_value: Callable[[Any], Any] | None
    ) -> None:
        self._dump_key = dump_key
        self._dump_value = dump_value
        self.is_plain = dump_value is None
        self.has_plain_keys = dump_key is None

    def row(self, value: Any, key: Any, headers: Mapping[str, Any] | None, stamp: Any) -> Row:
        """One record.

        Raises:
            TypeError, InvalidRequest, InvalidTimestamp: it can't be sent as it is.
        """
        value = bytes_of(value, self._dump_value, "value")
        key = bytes_of(key, self._dump_key, "key")
        checked = headers_of(headers) if headers else None
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        if checked:
            size += headers_size(checked)
        if stamp is not None:
            check_stamp(stamp)
        return Row(value, key, checked, stamp, size)

    def all(
        self,
        values: Sequence[Any],
        *,
        keys: Iterable[Any] | None,
        headers: Iterable[Mapping[str, Any] | None] | None,
        stamps: Iterable[int | None] | None,
    ) -> list[Row]:
        """Many records, given as columns of one length."""
        count = len(values)
        columns = [column_of(column, count) for column in (keys, headers, stamps)]
        return [self.row(*cells) for cells in zip(values, *columns, strict=True)]


def column_of(column: Iterable[Any] | None, count: int) -> Sequence[Any]:
    """A column as long as there are values; all None if it isn't given."""
    if column is None:
        return [None] * count
    listed = column if isinstance(column, (list, tuple)) else list(column)
    if len(listed) != count:
        raise InvalidRequest(
            f"there are {count} values but {len(listed)} keys, headers or timestamps"
        )
    return listed


def bytes_of(given: Any, dump: Any, name: str) -> bytes | None:
    """A key or value as bytes, by `dump` if there is one."""
    if given is None or (dump is None and given.__class__ is bytes):
        return given
    if dump is not None:
        given = dump(given)
    if isinstance(given, bytes):
        return given
    if isinstance(given, str) and dump is not None:
        return given.encode()
    if isinstance(given, (bytearray, memoryview)):
        return bytes(given)  # A copy: the caller may change it before it is sent.
    raise TypeError(
        f"a record's {name} is bytes or None, got {type(given).__name__}; encode it, or give the"
        f" producer a {name}_serializer= (headrace.sdk.json, or any function)"
    )


def headers_of(given: Mapping[str, Any]) -> Headers:
    """The headers with values of bytes or None."""
    if len(given) > limits.HEADERS_PER_RECORD_MAX:
        raise InvalidRequest(
            f"a record has at most {limits.HEADERS_PER_RECORD_MAX} headers, got {len(given)}"
        )
    checked: Headers = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, got {type(name).__name__}")
        if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"header {name!r} must be bytes or None, got {type(value).__name__}; encode it"
            )
        checked[name] = None if value is None else bytes(value)
    return checked


def check_stamp(stamp: Any) -> None:
    """Refuses what is no timestamp."""
    if not isinstance(stamp, int) or isinstance(stamp, bool):
        raise TypeError(
            f"timestamp_ms is a whole number of milliseconds, got {type(stamp).__name__}"
        )
    if not limits.TIMESTAMP_MS_MIN <= stamp <= limits.TIMESTAMP_MS_MAX:
        raise InvalidTimestamp(
            f"timestamp {stamp} ms is outside the years 1 to 9999; timestamps are milliseconds"
            " since 1970-01-01T00:00:00Z"
        )
