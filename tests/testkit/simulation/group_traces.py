"""Schedules for the rules of groups (G1-G8): coordinators that are cut off, members that come late.

As `traces`, on a world whose members read another topic; `a` coordinates.
"""

from __future__ import annotations

from headrace.protocol.replication import FETCH
from testkit.simulation.broker import SimBroker
from testkit.simulation.groups import REBALANCE_S, SESSION_S, GroupMember
from testkit.simulation.stage import Stage
from testkit.simulation.wire import ASK


def _cut_off(stage: Stage, a: SimBroker, *members: GroupMember) -> None:
    """The coordinator reaches nobody but these members any more, and they nobody else."""
    others = [each.name for each in stage.world.brokers if each is not a]
    away = [m.name for m in stage.world.members if m not in members]
    stage.part(a.name, *others, *away, "store")
    for member in members:
        stage.part(member.name, *others)


def zombie_tells(stage: Stage) -> None:
    """A coordinator is cut off with one of its members; its successor gives that member's
    partitions to another one."""
    polling = stage.join(polls=True, commits=False)
    stage.join(polls=True, commits=False)
    stage.until(lambda: all(len(m.owns()) == 2 for m in stage.world.members))
    _cut_off(stage, stage.a, polling)
    stage.elect(stage.b, keep=(stage.c,))
    stage.run(4 * SESSION_S)


def zombie_wakes(stage: Stage) -> None:
    """A coordinator is paused while its followers' requests are on their way, then replaced. They
    are the first that it reads when it goes on."""
    a, b, c = stage.a, stage.b, stage.c
    polling = stage.join(polls=True, commits=False)
    stage.join(polls=True, commits=False)
    stage.until(lambda: all(len(m.owns()) == 2 for m in stage.world.members))
    fetches = [stage.hold(ASK, each, a, FETCH) for each in (b, c)]
    stage.until(lambda: all(each.messages for each in fetches))
    a.pause()
    for each in fetches:
        each.release_first()
    stage.run(0.1)
    _cut_off(stage, a, polling)
    stage.elect(b, keep=(c,))
    stage.run(SESSION_S - 1.5)
    a.resume()
    stage.run(3 * SESSION_S)


def commit_of_a_zombie(stage: Stage) -> None:
    """A coordinator that is cut off is sent commits."""
    member = stage.join()
    _cut_off(stage, stage.a, member)
    stage.run(2 * SESSION_S)


def loaded_too_early(stage: Stage) -> None:
    """A commit reaches one follower, which is elected, and asked before another one has it."""
    a, b, c = stage.a, stage.b, stage.c
    member = stage.join()
    stage.part(a.name, c.name)
    end = stage.end(b)
    stage.hold(ASK, b, a, FETCH, once=lambda: stage.end(b) > end)
    stage.until(lambda: stage.end(b) > end)
    member.kill()
    stage.part(b.name, a.name, c.name)
    stage.elect(b, keep=(c,))
    stage.until(lambda: stage.leads(b))
    stage.run(0.5)
    stage.read_offsets(b)


def commit_of_a_former_member(stage: Stage) -> None:
    """A member's commit is on its way for so long that another one has its partitions."""
    former = stage.join()
    commits = stage.hold(ASK, None, stage.a, "commit")
    stage.until(lambda: commits.messages)
    former.process.pause()
    commits.end()
    stage.world.join()
    stage.run(3 * SESSION_S)
    commits.release_first()
    stage.run(1.0)


def stuck_and_cut_off(stage: Stage) -> None:
    """A member is to give partitions up and doesn't; when its time for that is over, it can't be
    told."""
    stuck = stage.join(polls=True, commits=False)
    stuck.is_stuck = True
    stage.world.join(polls=True, commits=False)
    stage.until(lambda: stuck.membership.epoch < stuck.membership.heard_epoch)
    stage.run(REBALANCE_S - 0.2)
    stage.part(stuck.name, *(broker.name for broker in stage.world.brokers))
    stage.run(2 * SESSION_S)
