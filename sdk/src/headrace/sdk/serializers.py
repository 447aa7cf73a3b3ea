"""What `key_serializer=`, `value_serializer=` and their counterparts may be, made into a callable.

Given are a callable, or an object with `dumps`/`loads` (`headrace.sdk.json`, the standard library's
`json`, `pickle`). None stays None on both ways: it is a tombstone or an absent key, never text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from headrace.protocol.errors import InvalidConfig


@runtime_checkable
class Dumps(Protocol):
    """Something like the `json` module, for writing."""

    @property
    def dumps(self) -> Callable[[Any], bytes | str]:
        """Value to bytes (or text, which becomes UTF-8)."""


@runtime_checkable
class Loads(Protocol):
    """Something like the `json` module, for reading."""

    @property
    def loads(self) -> Callable[[bytes], Any]:
        """Bytes to value."""


Serializer = Callable[[Any], "bytes | str"] | Dumps
Deserializer = Callable[[bytes], Any] | Loads


def serialize_with(given: Serializer | None, *, name: str) -> Callable[[Any], Any] | None:
    """The function behind `given`, or None for bytes as they are.

    Raises:
        InvalidConfig: neither a callable nor something with `dumps`.
    """
    return _function(given, "dumps", name)


def deserialize_with(given: Deserializer | None, *, name: str) -> Callable[[bytes], Any] | None:
    """The function behind `given`, or None for bytes as they are.

    Raises:
        InvalidConfig: neither a callable nor something with `loads`.
    """
    return _function(given, "loads", name)


def _function(given: object, attribute: str, name: str) -> Callable[[Any], Any] | None:
    if given is None:
        return None
    found = getattr(given, attribute, given)
    if not callable(found):
        raise InvalidConfig(
            f"{name}= must be a function or have a `{attribute}` (as headrace.sdk.json has),"
            f" got {given!r}"
        )
    return found
