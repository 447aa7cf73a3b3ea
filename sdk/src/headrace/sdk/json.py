"""JSON values: pass this module itself as `value_serializer=` or `value_deserializer=`.

from headrace.sdk import json
Producer("http://127.0.0.1:9420", value_serializer=json)
"""

from __future__ import annotations

from typing import Any

import msgspec


def dumps(value: Any) -> bytes:
    """`value` as UTF-8 JSON. Takes what msgspec takes: dataclasses, structs, dates and more.

    Raises:
        TypeError: a type that JSON has no form for.
    """
    return msgspec.json.encode(value)


def loads(data: bytes) -> Any:
    """The value that the JSON text stands for.

    Raises:
        ValueError: not JSON (msgspec.DecodeError is one).
    """
    return msgspec.json.decode(data)
