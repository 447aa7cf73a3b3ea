"""What people see: the API's models as tables. Builds, doesn't print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich import box
from rich.table import Table
from rich.text import Text

from headrace.protocol import cluster_models, models
from headrace.sdk.group_reset import PlannedReset

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A plain table; a column whose name starts with `>` is set flush right. None shows as `-`."""
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        made.add_column(name, justify="right" if column != name else "left", no_wrap=True)
    for row in rows:
        made.add_row(*[Text("-" if cell is None else str(cell)) for cell in row])
    return made


def count(number: int | None) -> str | None:
    """`1234567` as `1,234,567`."""
    return None if number is None else f"{number:,}"


def size(size_bytes: int | None) -> str | None:
    """Bytes in the decimal unit that keeps the number short."""
    if size_bytes is None:
        return None
    amount = float(size_bytes)
    unit = 0
    while amount >= 1000 and unit < len(_BYTE_UNITS) - 1:
        amount /= 1000
        unit += 1
    return f"{size_bytes} B" if unit == 0 else f"{amount:.1f} {_BYTE_UNITS[unit]}"


def ids(brokers: Iterable[int]) -> str:
    """Brokers as `1,2,0`."""
    return ",".join(map(str, brokers))


def instant(time_ms: int) -> str:
    """Milliseconds since 1970 as UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def topics(found: models.TopicList) -> Table:
    """Topics, a row each."""
    return table(
        ("topic", ">partitions", ">replicas", "id"),
        [(t.name, t.partitions, t.replicas, t.topic_id) for t in found.topics],
    )


def topic_settings(topic: models.TopicInfo) -> Table:
    """The settings in force and where each comes from."""
    return settings(topic.config)


def settings(found: Mapping[str, models.ConfigEntry]) -> Table:
    """Settings with where each comes from."""
    rows = [(key, _setting(entry.value), entry.source) for key, entry in sorted(found.items())]
    return table(("setting", "value", "from"), rows)


def _setting(value: models.ConfigValue | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def topic_partitions(topic: models.TopicInfo) -> Table:
    """The partitions, a row each."""
    return table(
        (
            ">partition",
            ">leader",
            ">epoch",
            "replicas",
            "isr",
            "elr",
            ">start",
            ">end",
            ">size",
            "note",
        ),
        [_partition_row(partition) for partition in topic.partitions],
    )


def _partition_row(partition: models.PartitionInfo) -> tuple[object, ...]:
    note = partition.error.message if partition.error else (partition.recovery or "")
    return (
        partition.partition,
        partition.leader,
        partition.leader_epoch,
        ids(partition.replicas),
        ids(partition.isr),
        ids(partition.elr) or None,
        count(partition.log_start_offset),
        count(partition.high_watermark),
        size(partition.size_bytes),
        note,
    )


def groups(found: models.GroupList) -> Table:
    """Groups, a row each."""
    return table(
        ("group", "state", ">members", "topics"),
        [(g.group, g.state, g.members, ", ".join(g.topics)) for g in found.groups],
    )


def group_members(group: models.GroupInfo) -> Table:
    """The members of a group with what they own."""
    return table(
        ("member", "instance", "client", ">epoch", ">partitions", "owns", "gives up"),
        [
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.epoch,
                count(sum(len(each.partitions) for each in member.assignment)),
                owned(member.assignment),
                owned(member.revoking) or None,
            )
            for member in group.members
        ],
    )


def owned(topics: list[models.OwnedTopic]) -> str:
    """Partitions as text: `orders 0-2 5`."""
    return ", ".join(f"{each.topic} {ranges(each.partitions)}" for each in topics)


def ranges(numbers: list[int]) -> str:
    """Numbers in order, runs shortened: `0-2 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def planned_resets(plan: Sequence[PlannedReset]) -> Table:
    """Where a group's offsets would go."""
    return table(
        ("topic", ">partition", ">committed", ">new", "note"),
        [
            (
                each.topic,
                each.partition,
                count(each.old),
                count(each.new),
                None if each.new == each.asked else f"{each.asked:,} lies outside",
            )
            for each in plan
        ],
    )


def group_offsets(group: models.GroupInfo) -> Table:
    """The committed offsets of a group and how far behind it is."""
    return table(
        ("topic", ">partition", ">committed", ">end", ">lag", "committed at"),
        [
            (
                offset.topic,
                offset.partition,
                count(offset.offset),
                count(offset.high_watermark),
                count(offset.lag),
                instant(offset.commit_time_ms),
            )
            for offset in group.offsets
        ],
    )


def troubled(found: cluster_models.ClusterHealth) -> Table:
    """Partitions with problems, a row each."""
    return table(
        ("topic", ">partition", ">leader", "replicas", "isr", "elr", ">min isr", "problems"),
        [
            (
                each.topic,
                each.partition,
                each.leader,
                ids(each.replicas),
                ids(each.isr),
                ids(each.elr) or None,
                each.min_isr,
                ", ".join(problem.replace("_", " ") for problem in each.problems),
            )
            for each in found.troubled
        ],
    )


def health_line(found: cluster_models.ClusterHealth) -> str:
    """The counts in one line."""
    line = (
        f"partitions: {found.partitions:,} in all, {found.offline:,} offline,"
        f" {found.under_min_isr:,} under min ISR, {found.under_replicated:,} under-replicated"
    )
    frozen = f", {found.unreadable:,} frozen: their records in the store can't be read"
    return line + (frozen if found.unreadable else "")


def brokers(
    found: Sequence[models.BrokerInfo],
    *,
    controller_id: int | None,
    loads: Sequence[cluster_models.BrokerLoad] = (),
) -> Table:
    """Brokers, a row each; the controller is marked. Details where the broker gave them."""
    by_id = {load.id: load for load in loads}
    return table(
        (
            ">id",
            "url",
            "state",
            "rack",
            "version",
            ">leads",
            ">replicas",
            ">out of sync",
            ">disk free",
            "",
        ),
        [
            _broker_row(broker, by_id.get(broker.id), controls=broker.id == controller_id)
            for broker in found
        ],
    )


def _state(broker: models.BrokerInfo, load: cluster_models.BrokerLoad | None) -> str:
    state = "dead" if load and load.state == "dead" else broker.state
    return f"{state}, cordoned" if load and load.cordoned else state


def _broker_row(
    broker: models.BrokerInfo, load: cluster_models.BrokerLoad | None, *, controls: bool
) -> tuple[object, ...]:
    detail = broker if isinstance(broker, models.BrokerDetail) else None
    return (
        broker.id,
        broker.url,
        _state(broker, load),
        broker.rack,
        broker.version,
        load.leaders if load else detail and detail.led_partitions,
        load and load.replicas,
        load and load.out_of_sync,
        detail and size(detail.disk_free_bytes),
        "controller" if controls else "",
    )
