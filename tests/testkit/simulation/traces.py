"""The deadliest schedules: for each rule, the steps that lose records once the rule is gone.

From replication.md 2.2 (model/mutants.out, model/extra.out), on production's nodes. With all rules
in place each of them ends without a violation; `mutants` takes rules away.
"""

from __future__ import annotations

import errno
from dataclasses import replace

from headrace.broker.core import encoding, transitions
from headrace.broker.core.model import Leader, Member, Shard
from headrace.broker.store import keys
from headrace.protocol.replication import FETCH
from testkit.simulation.stage import Stage
from testkit.simulation.wire import ANSWER, ASK


def expand_lands_late(stage: Stage) -> None:
    """An expand lands after records that the new members don't have; one of them is elected."""
    a, b, c = stage.a, stage.b, stage.c
    writes = stage.hold_writes(a)
    stage.remove(b, c)
    stage.until(lambda: writes.messages)
    stage.cut(a, b)
    stage.cut(a, c)
    stage.produce(a)
    writes.release_first()
    stage.until(lambda: stage.in_isr(b))
    stage.elect(b)
    stage.run(2.0)


def expand_lands_after_rereads(stage: Stage) -> None:
    """The same, after the leader has read the unchanged record again and again."""
    a, b, c = stage.a, stage.b, stage.c
    writes = stage.hold_writes(a)
    stage.remove(b, c)
    stage.until(lambda: writes.messages)
    stage.cut(a, b)
    stage.cut(a, c)
    stage.run(20.0)
    stage.produce(a)
    writes.release_first()
    stage.until(lambda: stage.in_isr(b))
    stage.elect(b)
    stage.run(2.0)


def pending_expand_and_elr(stage: Stage) -> None:
    """Under the minimum, an expand that never lands, and one of the ELR is elected. min 2."""
    a, b, c = stage.a, stage.b, stage.c
    stage.leave_behind(c)
    stage.produce(a)
    stage.until(lambda: stage.end(b) == 1)
    writes = stage.hold_writes(a)
    stage.remove(b, c)
    stage.until(lambda: writes.messages)
    stage.run(2.0)
    stage.elect(c)
    stage.run(2.0)


def outsider_elected(stage: Stage) -> None:
    """Somebody who is in neither ISR nor ELR is to be elected. min 2."""
    a, c = stage.a, stage.c
    stage.cut(a, c)
    stage.remove(c)
    stage.produce(a, acks=-1)
    stage.run(1.0)
    stage.elect(c)
    stage.run(2.0)


def two_controllers(stage: Stage) -> None:
    """A controller decides, another one is faster, then the first one's write arrives."""
    a, b, c = stage.a, stage.b, stage.c
    news = stage.lose_news(a)
    key = keys.shard("t", 0)
    item = stage.world.cluster.objects[key]
    shard = encoding.decode_shard(item.value)
    assert isinstance(shard, Shard)
    record = stage.record
    decided = transitions.elect(
        record, leader=Leader(a.id, stage.status(a).session), isr=record.isr
    )
    assert isinstance(decided, type(record))
    value = encoding.encode_shard(replace(shard, records=(decided,)))
    stage.elect(b, keep=(a, c))
    stage.until(lambda: stage.leads(b))
    writer = c.node.coordination._writer
    c.live.spawn(writer.update_many({key: (item.revision, value)}))
    stage.run(1.0)
    news.end()
    stage.run(15.0)


def old_fetch_after_wipe(stage: Stage) -> None:
    """A follower loses its disk; a fetch it sent before arrives after its restart."""
    a, b, c = stage.a, stage.b, stage.c
    stage.leave_behind(c)
    fetches = stage.replicate_to_b()
    stage.remove(c)
    stage.hold_writes(a)
    b.wipe()
    b.start()
    stage.until(lambda: b.is_up and b.node.lifecycle.serving)
    fetches.release_first()
    stage.run(1.0)
    stage.elect(b)
    stage.run(2.0)


def leader_resumes(stage: Stage) -> None:
    """A leader loses power and what it hadn't synced, comes back, and is sent another record."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, b)
    stage.cut(a, c)
    stage.produce(a)
    a.power_cut("all")
    stage.run(1.0)
    a.start()
    stage.until(lambda: a.is_up and a.node.lifecycle.serving)
    stage.produce(a)
    stage.run(2.0)


def shrink_never_lands(stage: Stage) -> None:
    """A leader whose followers are silent wants to shrink, the store doesn't answer, and one of
    those followers is elected."""
    a, b, c = stage.a, stage.b, stage.c
    writes = stage.hold_writes(a)
    stage.cut(a, b)
    stage.cut(a, c)
    stage.until(lambda: writes.messages)
    stage.produce(a)
    stage.run(1.0)
    stage.elect(b)
    stage.run(2.0)


def minimum_lost_after_append(stage: Stage) -> None:
    """acks=all is appended, then the ISR falls below the minimum. min 2."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, b)
    stage.cut(a, c)
    stage.produce(a, acks=-1)
    stage.remove(b, c)
    stage.run(3.0)


def elr_outlives_minimum(stage: Stage) -> None:
    """The ISR has its minimum again, records are committed, one of the former ELR is elected.
    min 2."""
    a, b, c = stage.a, stage.b, stage.c
    stage.leave_behind(c)
    stage.produce(a)
    stage.until(lambda: stage.end(b) == 1)
    stage.remove(b, c)
    stage.until(lambda: stage.in_isr(b))
    stage.run(1.0)
    stage.elect(c)
    stage.run(2.0)


def minimum_lowered(stage: Stage) -> None:
    """The minimum falls to 1: what one replica has is committed; one of the ELR is elected.
    min 2."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, b)
    stage.cut(a, c)
    stage.produce(a)
    stage.remove(b, c)
    stage.world.min_isr = 1
    stage.change(lambda record: transitions.set_min(record, 1))
    stage.run(1.0)
    stage.elect(c)
    stage.run(2.0)


def diverging_follower(stage: Stage) -> None:
    """A former leader follows with a record of its own, and is elected again."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, b)
    stage.cut(a, c)
    stage.produce(a)
    stage.cut(b, c)
    stage.lose_answers(b, a)
    stage.world.wire.cut.discard((a.name, b.name))
    stage.elect(b, keep=(a,))
    stage.until(lambda: stage.leads(b))
    stage.produce(b)
    stage.run(2.0)
    stage.elect(a)
    stage.run(2.0)


def old_answer(stage: Stage) -> None:
    """A former leader's answer arrives when its follower follows another leader."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, c)
    answers = stage.hold(ANSWER, a, b, FETCH, once=lambda: stage.end(a) == 1)
    stage.produce(a)
    stage.until(lambda: answers.messages)
    stage.elect(c)
    stage.until(lambda: stage.leads(c))
    stage.until(lambda: stage.is_waiting(b, c) and stage.hears(c, b))
    lost = stage.lose_answers(c, b)
    stage.produce(c)
    answers.release_first()
    stage.run(1.0)
    lost.end()
    stage.run(10.0)


def committed_but_follower_not_told(stage: Stage) -> None:
    """A record is committed, the follower hasn't heard so; two elections follow."""
    a, b = stage.a, stage.b
    _committed_in_silence(stage)
    stage.elect(a, keep=(b,))
    stage.until(lambda: stage.partition(b).leader_epoch == 1)
    stage.run(0.5)
    stage.elect(b)
    stage.run(2.0)


def expand_before_epoch_start(stage: Stage) -> None:
    """A new leader's high watermark is still low when a follower without what was committed is
    caught up with it."""
    a, b, c = stage.a, stage.b, stage.c
    _committed_in_silence(stage)
    stage.cut(a, b)
    stage.lose_answers(b, c)
    stage.elect(b, keep=(a,))
    stage.until(lambda: stage.leads(b))
    stage.run(8.0)
    if stage.in_isr(c):
        stage.elect(c)
    stage.run(2.0)


def _committed_in_silence(stage: Stage) -> None:
    """A record is committed on a and b; b doesn't hear that it is; c hasn't got it."""
    a, b, c = stage.a, stage.b, stage.c
    stage.leave_behind(c)
    stage.remove(c)
    stage.run(0.5)
    stage.produce(a)
    stage.until(lambda: stage.end(b) == 1)
    stage.lose_answers(a, b)
    stage.until(lambda: stage.partition(a).high_watermark == 1)
    assert stage.partition(b).high_watermark == 0


def moved_away_and_back(stage: Stage) -> None:
    """A follower's replica is moved away and back; a fetch that it sent before arrives then."""
    a, b, c = stage.a, stage.b, stage.c
    stage.leave_behind(c)
    fetches = stage.replicate_to_b()
    stage.remove(c)
    stage.remove(b)
    stage.change(lambda record: transitions.begin_reassignment(record, [a.id]))
    statuses = {each.id: stage.status(each) for each in stage.world.brokers}
    stage.change(lambda record: transitions.finish_reassignment(record, statuses))
    stage.run(1.0)
    stage.change(lambda record: transitions.begin_reassignment(record, [a.id, b.id]))
    stage.run(1.0)
    fetches.release_first()
    stage.run(4.0)
    if stage.in_isr(b):
        stage.elect(b)
    stage.run(2.0)


def added_by_hand(stage: Stage) -> None:
    """Somebody edits the record: a broker that lacks a committed record is in the ISR."""
    a, c = stage.a, stage.c
    stage.leave_behind(c)
    stage.remove(c)
    stage.produce(a, acks=-1)
    stage.run(1.0)
    member = Member(c.id, stage.status(c).generation)
    stage.change(
        lambda record: replace(
            record, isr=(*record.isr, member), partition_epoch=record.partition_epoch + 1
        )
    )
    stage.run(1.0)
    if stage.in_isr(c):
        stage.elect(c)
    stage.run(2.0)


def retry_before_commit(stage: Stage) -> None:
    """A producer sends a record again before the first one is committed."""
    a, b, c = stage.a, stage.b, stage.c
    stage.cut(a, b)
    stage.cut(a, c)
    producer = stage.produce(a, acks=-1)
    stage.again(producer, a)
    stage.run(1.0)


def late_fetch(stage: Stage) -> None:
    """A fetch arrives long after its sender has given up."""
    a, b = stage.a, stage.b
    fetches = stage.hold(ASK, b, a, FETCH)
    stage.until(lambda: len(fetches.messages) > 1)
    stage.produce(a)
    fetches.release_first()
    stage.run(2.0)
    stage.elect(b)
    stage.run(2.0)


def broken_leader_without_store(stage: Stage) -> None:
    """A leader's disk breaks while it can't reach the store, for so long that its followers seem to
    lag. They have everything, and must be in the ISR when it can say so again."""
    a, b = stage.a, stage.b
    stage.produce(a, acks=-1)
    a.store.is_out = True
    a.machine.error = errno.EIO
    stage.produce(a)
    stage.run(25.0)
    a.machine.error = None
    a.store.is_out = False
    a.store.drop_watches()
    stage.run(10.0)
    assert stage.in_isr(b), stage.record
    assert stage.elect(b, keep=(stage.c,))
    stage.until(lambda: stage.leads(b) and stage.in_isr(a))
