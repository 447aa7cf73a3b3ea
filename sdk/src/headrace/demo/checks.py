"""Compares what came back with what was sent. Pure.

The source is the list of keys and values in the order of sending; what was acknowledged is a
(partition, offset) for each; what was consumed is, for each partition, offset → (key, value).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Place = tuple[int, int]
"""Partition and offset."""

Pair = tuple[bytes | None, bytes | None]
"""Key and value."""

Consumed = dict[int, dict[int, Pair]]
"""Partition → offset → key and value, in the order of reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class CarrierTotals:
    """Flights of a carrier and the sum of the arrival delays that are known."""

    flights: int = 0
    arrived: int = 0
    delay_minutes: int = 0

    def add(self, delay: int | None) -> None:
        """Count one flight."""
        self.flights += 1
        if delay is not None:
            self.arrived += 1
            self.delay_minutes += delay

    @property
    def mean_delay(self) -> float | None:
        """Minutes; None if no flight arrived."""
        return self.delay_minutes / self.arrived if self.arrived else None


@dataclass(slots=True)
class KeyedDigest:
    """A checksum for each key over its values in order: the same values in another order, one
    more, one less or one changed all give another digest."""

    _hashes: dict[bytes | None, hashlib._Hash] = field(default_factory=dict)

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """The next value of a key."""
        digest = self._hashes.setdefault(key, hashlib.sha256())
        digest.update(b"-" if value is None else b"%d:%b" % (len(value), value))

    def by_key(self) -> dict[bytes | None, str]:
        """Key → checksum."""
        return {key: digest.hexdigest() for key, digest in self._hashes.items()}


def digest_of(pairs: Iterable[Pair]) -> KeyedDigest:
    """The checksums of records in the order given."""
    digest = KeyedDigest()
    for key, value in pairs:
        digest.add(key, value)
    return digest


def content_checksum(pairs: Iterable[Pair]) -> str:
    """One checksum of all records whatever their order: the sum of their hashes, so that a record
    that is there twice counts twice."""
    total = 0
    for key, value in pairs:
        raw = b"%d:%b%b" % (len(key or b""), key or b"", value or b"")
        total += int.from_bytes(hashlib.blake2b(raw, digest_size=16).digest(), "big")
    return f"{total % (1 << 128):032x}"


def totals_by_carrier(
    rows: Iterable[tuple[bytes, int | None]],
) -> dict[bytes, CarrierTotals]:
    """Carrier → its totals."""
    totals: dict[bytes, CarrierTotals] = {}
    for carrier, delay in rows:
        totals.setdefault(carrier, CarrierTotals()).add(delay)
    return totals


def check_acknowledged(sent: Sequence[Pair], places: Sequence[Place], consumed: Consumed) -> Check:
    """Every acknowledged record is where its acknowledgement said, unchanged."""
    lost = [
        place
        for pair, place in zip(sent, places, strict=True)
        if consumed.get(place[0], {}).get(place[1]) != pair
    ]
    where = (
        f"; first missing or changed: partition {lost[0][0]} offset {lost[0][1]}" if lost else ""
    )
    return Check(
        name="acknowledged records present",
        passed=not lost,
        detail=f"{len(places) - len(lost):,} of {len(places):,} at their offset{where}",
    )


def check_count(sent: int, consumed: Consumed) -> Check:
    """As many came back as were sent: none lost, none twice."""
    came = sum(map(len, consumed.values()))
    return Check(name="count", passed=came == sent, detail=f"{came:,} read, {sent:,} sent")


def check_dense(consumed: Consumed) -> Check:
    """Offsets of each partition run from 0 without a hole."""
    torn = [p for p, records in consumed.items() if list(records) != list(range(len(records)))]
    return Check(
        name="offsets dense and in order",
        passed=not torn,
        detail=f"{len(consumed)} partitions" if not torn else f"holes in partitions {torn}",
    )


def check_order(sent: Iterable[Pair], consumed: Consumed) -> Check:
    """Each key's values came back in the order in which they were sent."""
    expected = digest_of(sent).by_key()
    found = digest_of(pair for part in consumed.values() for pair in part.values()).by_key()
    wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    return Check(
        name="order within each key",
        passed=not wrong,
        detail=f"{len(expected) - len(wrong)} of {len(expected)} keys in order",
    )


def check_content(sent: Iterable[Pair], consumed: Consumed) -> Check:
    """The bytes that came back are the bytes that were sent."""
    expected = content_checksum(sent)
    found = content_checksum(pair for part in consumed.values() for pair in part.values())
    same = expected == found
    return Check(
        name="content checksum",
        passed=same,
        detail=expected if same else f"sent {expected}, read {found}",
    )


def check_totals(expected: dict[bytes, CarrierTotals], found: dict[bytes, CarrierTotals]) -> Check:
    """The figures made from what was consumed are those made straight from the source."""
    same = expected == found
    detail = f"{len(found)} carriers, the same from the source and from what was read"
    return Check(
        name="figures by carrier", passed=same, detail=detail if same else "the figures differ"
    )
