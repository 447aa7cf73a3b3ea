"""Which session and generation a starting broker takes (replication.md R21); pure.

In: what its own volume says (`LocalState`) and its registration in the store. Out: the `Standing`
to write to the volume's meta first and to register by compare-and-swap then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.broker.core.model import Generation, Registration
from headrace.protocol.errors import InvalidConfig

Ending = Literal["clean", "same_boot", "other_boot"]
"""How the former process on this volume ended: `clean` marker present; none, but the kernel still
is the same one (its page cache is intact); none, and the kernel is another one or unknown."""


@dataclass(frozen=True, slots=True)
class LocalMeta:
    """The volume's meta file: whose it is, and the last session and generation prepared there.
    `beat` rises every ten seconds while a process runs, and its lease tells it: a volume that was
    put back to an earlier time of the same session shows by it (H27)."""

    cluster_id: str
    broker_id: int
    generation: Generation
    session: int
    store_term: int = 0
    beat: int = 0


@dataclass(frozen=True, slots=True)
class LocalState:
    """What the data directory says, read under its lock. `meta` None: there is none (a new or a
    lost disk). `same_volume`: the volume's identity is the one that the marker names."""

    meta: LocalMeta | None = None
    ending: Ending = "clean"
    same_volume: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """What the process starts with. `lost`: nothing, the unsynced tail, or all of the log."""

    session: int
    generation: Generation
    lost: Literal["nothing", "tail", "disk"]


def check_owner(local: LocalState, *, cluster_id: str | None, broker_id: int) -> None:
    """Refuses a data directory that belongs to somebody else. `cluster_id` None: the store is
    empty.

    Raises:
        InvalidConfig: the directory is of another cluster or broker, or the store lost its cluster.
    """
    if local.meta is None:
        return
    if cluster_id is None:
        raise InvalidConfig(
            f"the store is empty, but this data directory belongs to cluster"
            f" {local.meta.cluster_id}: check the store's address (HEADRACE_STORE) before anything"
            " is overwritten, or start with an empty data directory"
        )
    if local.meta.cluster_id != cluster_id:
        raise InvalidConfig(
            f"this data directory belongs to cluster {local.meta.cluster_id}, but the store holds"
            f" cluster {cluster_id}: use the right store or another data directory"
        )
    if local.meta.broker_id != broker_id:
        raise InvalidConfig(
            f"this data directory belongs to broker {local.meta.broker_id}, but this is broker"
            f" {broker_id}: use that id or another data directory"
        )


def next_standing(
    local: LocalState, registered: Registration | None, *, told_beat: int = 0
) -> Standing:
    """The session and generation for this start. `told_beat`: the last one that the registered
    session's lease told.

    The meta is written before the registration, so it may be ahead of it after a crash in between:
    the greater of both is the base. Otherwise a lost disk whose new generation was prepared but
    not registered would start with the old one, and count as having what it lost.
    """
    known = registered.generation if registered else Generation(0, 0)
    session = registered.session if registered else 0
    if local.meta is None:
        if registered is None:
            return Standing(1, known, "nothing")
        return Standing(session + 1, _lost_disk(known), "disk")
    base = Generation(*map(max, known, local.meta.generation))
    following = max(session, local.meta.session) + 1
    if is_older(local, session, told_beat=told_beat):
        return Standing(following, _lost_disk(base), "disk")
    if local.ending == "clean" or (local.ending == "same_boot" and local.same_volume):
        return Standing(following, base, "nothing")
    return Standing(following, Generation(base.disk_gen, base.power_gen + 1), "tail")


def unregistered(
    standing: Standing, local: LocalState, *, lease_session: int, nonce: str
) -> Standing:
    """The standing of a broker that the store has no registration of: it is new, or somebody
    removed the registration. `lease_session`: of its lease, if one is there; `nonce`: hexadecimal
    digits of this process alone.

    On a volume without a meta file nothing tells which generation was the last. So it takes one
    that nobody had: records that name this broker with an earlier disk don't count it then (R12,
    R18). Example: disk and registration were removed together, to begin anew; with generation
    (0, 0) again the empty broker would be elected as a member of every ISR.
    """
    session = max(standing.session, lease_session + 1)
    if local.meta is not None:
        return Standing(session, standing.generation, standing.lost)
    return Standing(session, Generation(int(nonce[:7] or "0", 16), 0), standing.lost)


def is_older(local: LocalState, session: int, *, told_beat: int) -> bool:
    """Whether the volume is one of an earlier time: its last process wasn't the registered one, or
    that one has written on after this state of it."""
    if local.meta is None:
        return False
    is_same = local.meta.session == session
    return local.meta.session < session or (is_same and local.meta.beat < told_beat)


def former_process_is_gone(
    local: LocalState, registered: Registration, *, told_beat: int = 0
) -> bool:
    """Whether the volume itself proves that the registered session's process has ended: it was
    the last to prepare this volume, whose lock is now ours under the same kernel, or it closed it
    cleanly. Then nobody has to wait for its lease."""
    if local.meta is None or is_older(local, registered.session, told_beat=told_beat):
        return False
    return local.ending == "clean" or (local.ending == "same_boot" and local.same_volume)


def _lost_disk(base: Generation) -> Generation:
    return Generation(base.disk_gen + 1, base.power_gen)
