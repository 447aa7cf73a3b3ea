"""The client of Headrace: `Producer`, `Consumer` and `Admin`, their values and their errors.

    async with Producer("http://127.0.0.1:9420") as producer:
        await producer.send("orders", b"value", key=b"key")
    async with Consumer("http://127.0.0.1:9420", "orders", group="billing") as consumer:
        async for record in consumer:
            print(record.offset, record.value)

The same classes without async are in `headrace.sdk.sync`, an in-memory cluster for tests in
`headrace.sdk.testing`, all errors in `headrace.sdk.errors`. Modules not named here and all of
`core` may change without notice. Names are loaded when they are first used, so that importing the
package (which every pytest run of a user does, for the fixture) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.protocol.ids import TopicPartition
    from headrace.protocol.record import Record, RecordMetadata
    from headrace.sdk.admin import Admin
    from headrace.sdk.consumer import Consumer
    from headrace.sdk.errors import (
        BufferFull,
        Closed,
        ConnectionFailed,
        CorruptBatch,
        DeliveryTimeout,
        Fenced,
        HeadraceError,
        NotEnoughReplicas,
        OffsetOutOfRange,
        OutOfOrderSequence,
        PartitionNotFound,
        RecordTooLarge,
        RequestTimedOut,
        Throttled,
        TopicExists,
        TopicNotFound,
    )
    from headrace.sdk.producer import Producer

_HOMES = {
    "Admin": "headrace.sdk.admin",
    "Consumer": "headrace.sdk.consumer",
    "Producer": "headrace.sdk.producer",
    "Record": "headrace.protocol.record",
    "RecordMetadata": "headrace.protocol.record",
    "TopicPartition": "headrace.protocol.ids",
}
"""Where a name that isn't an error lives; everything else in `__all__` is in `sdk.errors`."""

__all__ = [
    "Admin",
    "BufferFull",
    "Closed",
    "ConnectionFailed",
    "Consumer",
    "CorruptBatch",
    "DeliveryTimeout",
    "Fenced",
    "HeadraceError",
    "NotEnoughReplicas",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionNotFound",
    "Producer",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestTimedOut",
    "Throttled",
    "TopicExists",
    "TopicNotFound",
    "TopicPartition",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES.get(name, "headrace.sdk.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
