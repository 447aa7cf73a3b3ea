"""Every error of Headrace: its code, HTTP status and whether trying again can help, in one table.

The tree is split by who must act:

    HeadraceError
    ├── CallerError            you sent something that can't work; change it
    │   ├── InvalidRequest  InvalidName  InvalidConfig  InvalidTimestamp  UnsupportedMediaType
    │   ├── UnsupportedFormat  PayloadTooLarge  RecordTooLarge  CorruptBatch
    │   ├── TopicNotFound  PartitionNotFound  GroupNotFound  BrokerNotFound  PathNotFound
    │   ├── MethodNotAllowed  TopicExists  PlanRefused  LimitExceeded  OffsetOutOfRange
    │   ├── UnknownMember  GroupNotEmpty
    │   └── Fenced  OutOfOrderSequence  Unauthenticated  Forbidden
    ├── RetriableError         the same call may work in a moment; the SDK does that for you
    │   ├── InstanceInUse
    │   ├── NotLeader  NotCoordinator  FencedEpoch  UnknownEpoch  StoreUnavailable  Conflict
    │   ├── NotEnoughReplicas  NotEnoughReplicasAfterAppend  RequestTimedOut
    │   └── Throttled  TopicFull  StorageFull  PartitionOffline  BrokerUnavailable  SlowRequest
    ├── ClientError            raised by the SDK itself, never sent by a broker
    │   └── ConnectionFailed  DeliveryTimeout  BufferFull  Closed
    └── InternalError          a fault of ours; the broker's log has the trace

Codes are stable: programs may compare them. Messages are for people and may change.
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Root of all errors. `code` is stable, `status` the HTTP status, `retriable` whether the same
    call may succeed later. `details` holds values a program can use (offsets, limits)."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_ms: int | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details = details or {}


class CallerError(HeadraceError):
    """The caller must change something."""

    status = 400


class RetriableError(HeadraceError):
    """The same call may succeed later."""

    status = 503
    retriable = True


class ClientError(HeadraceError):
    """Raised by the SDK; a broker never answers it."""


class InternalError(HeadraceError):
    """A fault inside the broker; its log has the trace."""

    code = "internal"


class InvalidRequest(CallerError):
    """The body or a parameter is not of the documented form."""

    code = "invalid_request"


class InvalidName(CallerError):
    """A topic or group may not be called so."""

    code = "invalid_name"


class InvalidConfig(CallerError):
    """A setting is unknown, of the wrong type, out of range, or in conflict with another."""

    code = "invalid_config"


class InvalidTimestamp(CallerError):
    """A record's timestamp lies before the year 1 or after the year 9999."""

    code = "invalid_timestamp"


class UnsupportedMediaType(CallerError):
    """The Content-Type is not one that the path takes."""

    code = "unsupported_media_type"
    status = 415


class UnsupportedFormat(CallerError):
    """A batch version, codec or body kind that this version doesn't know."""

    code = "unsupported_format"


class PayloadTooLarge(CallerError):
    """The whole request body is larger than the broker takes."""

    code = "payload_too_large"
    status = 413


class RecordTooLarge(CallerError):
    """One batch or record is larger than the topic's `max.message.bytes`."""

    code = "record_too_large"
    status = 413


class CorruptBatch(CallerError):
    """A batch whose checksum or shape is wrong. `details` may name the offsets it covers."""

    code = "corrupt_batch"


class TopicNotFound(CallerError):
    """There is no such topic, or no longer one with that id."""

    code = "topic_not_found"
    status = 404


class PartitionNotFound(CallerError):
    """The topic has no such partition."""

    code = "partition_not_found"
    status = 404


class GroupNotFound(CallerError):
    """The group has no committed offsets."""

    code = "group_not_found"
    status = 404


class UnknownMember(CallerError):
    """The group has no such member (any more), or it has members and the caller is none: a group
    with live members takes offsets from them only."""

    code = "unknown_member"
    status = 409


class GroupNotEmpty(CallerError):
    """The group has live members: stop them first, or force it."""

    code = "group_not_empty"
    status = 409


class BrokerNotFound(CallerError):
    """No broker of that id is registered."""

    code = "broker_not_found"
    status = 404


class PathNotFound(CallerError):
    """There is no such path; `/openapi.json` lists them."""

    code = "path_not_found"
    status = 404


class MethodNotAllowed(CallerError):
    """The path exists but not with this method."""

    code = "method_not_allowed"
    status = 405


class TopicExists(CallerError):
    """A topic of that name is there already."""

    code = "topic_exists"
    status = 409


class PlanRefused(CallerError):
    """Replicas can't be moved so: a topic couldn't keep its replication. `details` has a reason for
    each topic under `topics`; nothing was begun."""

    code = "plan_refused"
    status = 409


class LimitExceeded(CallerError):
    """The request would go over a limit of the broker; the message names it."""

    code = "limit_exceeded"
    status = 409


class OffsetOutOfRange(CallerError):
    """The offset lies before the log's start or after its end; `details` has both."""

    code = "offset_out_of_range"
    status = 416


class Fenced(CallerError):
    """Somebody newer has taken over (producer epoch, member epoch)."""

    code = "fenced"
    status = 409


class OutOfOrderSequence(CallerError):
    """An idempotent producer's batch arrived with a gap before it."""

    code = "out_of_order_sequence"
    status = 409


class Unauthenticated(CallerError):
    """The broker doesn't know who is asking."""

    code = "unauthenticated"
    status = 401


class Forbidden(CallerError):
    """Who is asking may not do that."""

    code = "forbidden"
    status = 403


class NotLeader(RetriableError):
    """Another broker leads the partition; refresh the metadata and ask it."""

    code = "not_leader"
    status = 421


class NotCoordinator(RetriableError):
    """Another broker coordinates the group, or this one is still loading it."""

    code = "not_coordinator"
    status = 421


class InstanceInUse(RetriableError):
    """Another live member of the group has this instance id; it must leave, or its session end."""

    code = "instance_in_use"
    status = 409


class FencedEpoch(RetriableError):
    """The request names an older leader epoch than the broker's."""

    code = "fenced_epoch"
    status = 409


class UnknownEpoch(RetriableError):
    """The request names a newer leader epoch than the broker has heard of."""

    code = "unknown_epoch"
    status = 409


class StoreUnavailable(RetriableError):
    """The cluster's store doesn't answer; data goes on flowing, changes wait."""

    code = "store_unavailable"


class Conflict(RetriableError):
    """Somebody else changed the same thing first; read it again."""

    code = "conflict"
    status = 409


class NotEnoughReplicas(RetriableError):
    """Fewer in-sync replicas than `min.insync.replicas`; nothing was written."""

    code = "not_enough_replicas"


class NotEnoughReplicasAfterAppend(RetriableError):
    """Written, but the in-sync replicas fell below the minimum: the records may still be
    committed. An idempotent producer's retry is deduplicated."""

    code = "not_enough_replicas_after_append"


class RequestTimedOut(RetriableError):
    """The time limit passed while waiting; a produce may still be committed."""

    code = "request_timed_out"
    status = 504


class Throttled(RetriableError):
    """Too much in flight or over a quota; `retry_after_ms` says when to come back."""

    code = "throttled"
    status = 429


class TopicFull(RetriableError):
    """The partition holds `retention.bytes` and the topic says `overflow=reject`: nothing was
    written. Records leave by `retention.ms` or when they are deleted."""

    code = "topic_full"
    status = 429


class StorageFull(RetriableError):
    """The disk is down to its reserve: writes are refused, reads and deletes go on."""

    code = "storage_full"
    status = 507


class PartitionOffline(RetriableError):
    """The partition's log can't be used here (damaged, I/O error) or nobody leads it."""

    code = "partition_offline"


class BrokerUnavailable(RetriableError):
    """The broker is starting, recovering or draining."""

    code = "broker_unavailable"


class SlowRequest(RetriableError):
    """The request's body did not arrive in time."""

    code = "slow_request"
    status = 408


class ConnectionFailed(ClientError):
    """No broker could be reached."""

    code = "connection_failed"
    retriable = True


class DeliveryTimeout(ClientError):
    """A record could not be delivered within `delivery_timeout`; it may or may not be there."""

    code = "delivery_timeout"


class BufferFull(ClientError):
    """The producer's buffer is full and the call may not wait."""

    code = "buffer_full"
    retriable = True


class Closed(ClientError):
    """The producer, consumer or admin client is closed."""

    code = "closed"


def _leaves(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    """Every class below `root` that has a code of its own, in the order of definition."""
    found: list[type[HeadraceError]] = []
    for child in root.__subclasses__():
        if "code" in child.__dict__:
            found.append(child)
        found.extend(_leaves(child))
    return found


BY_CODE: dict[str, type[HeadraceError]] = {cls.code: cls for cls in _leaves(HeadraceError)}
"""Code → class, for turning an answer back into an exception."""


def from_code(
    code: str,
    message: str,
    *,
    retriable: bool = False,
    retry_after_ms: int | None = None,
    details: dict[str, object] | None = None,
) -> HeadraceError:
    """The exception for a code that a broker answered. A code of a newer broker that this version
    doesn't know becomes a plain `HeadraceError` that keeps the code and `retriable`; for known
    codes the class says whether trying again can help."""
    cls = BY_CODE.get(code, HeadraceError)
    error = cls(message, retry_after_ms=retry_after_ms, details=details)
    if cls is HeadraceError:
        # The one place where an instance carries what is otherwise the class's.
        error.code, error.retriable = code, retriable  # type: ignore[misc]
    return error
