"""All errors that the SDK raises: those of `headrace.protocol.errors`, where the tree is drawn.

Every one has `.code` (stable), `.retriable`, `.message` and `.details`. The SDK retries retriable
errors itself until a time limit; one that reaches the program has outlived that limit.
"""

from __future__ import annotations

import copy

from headrace.protocol import errors as _errors
from headrace.protocol.errors import (
    BrokerNotFound,
    BrokerUnavailable,
    BufferFull,
    CallerError,
    ClientError,
    Closed,
    Conflict,
    ConnectionFailed,
    CorruptBatch,
    DeliveryTimeout,
    Fenced,
    FencedEpoch,
    Forbidden,
    GroupNotEmpty,
    GroupNotFound,
    HeadraceError,
    InstanceInUse,
    InternalError,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    InvalidTimestamp,
    LimitExceeded,
    MethodNotAllowed,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionNotFound,
    PartitionOffline,
    PathNotFound,
    PayloadTooLarge,
    PlanRefused,
    RecordTooLarge,
    RequestTimedOut,
    RetriableError,
    SlowRequest,
    StorageFull,
    StoreUnavailable,
    Throttled,
    TopicExists,
    TopicFull,
    TopicNotFound,
    Unauthenticated,
    UnknownEpoch,
    UnknownMember,
    UnsupportedFormat,
    UnsupportedMediaType,
)

BY_CODE = _errors.BY_CODE
"""Code → class."""

__all__ = [
    "BY_CODE",
    "BrokerNotFound",
    "BrokerUnavailable",
    "BufferFull",
    "CallerError",
    "ClientError",
    "Closed",
    "Conflict",
    "ConnectionFailed",
    "CorruptBatch",
    "DeliveryTimeout",
    "Fenced",
    "FencedEpoch",
    "Forbidden",
    "GroupNotEmpty",
    "GroupNotFound",
    "HeadraceError",
    "InstanceInUse",
    "InternalError",
    "InvalidConfig",
    "InvalidName",
    "InvalidRequest",
    "InvalidTimestamp",
    "LimitExceeded",
    "MethodNotAllowed",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeader",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionNotFound",
    "PartitionOffline",
    "PathNotFound",
    "PayloadTooLarge",
    "PlanRefused",
    "RecordTooLarge",
    "RequestTimedOut",
    "RetriableError",
    "SlowRequest",
    "StorageFull",
    "TopicFull",
    "StoreUnavailable",
    "Throttled",
    "TopicExists",
    "TopicNotFound",
    "Unauthenticated",
    "UnknownEpoch",
    "UnknownMember",
    "UnsupportedFormat",
    "UnsupportedMediaType",
]


def fresh(error: BaseException) -> BaseException:
    """A copy to raise. One failure can be many callers' answer, and an instance raised in several
    places collects all their tracebacks."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    return again
