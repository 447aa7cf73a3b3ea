"""What people see."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from headrace.cli import tables
from headrace.protocol import models


def shown(table: Table) -> str:
    console = Console(file=io.StringIO(), width=500)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_500_000, "1.5 MB"), (None, None)],
)
def test_sizes_are_short(size_bytes: int | None, text: str | None) -> None:
    assert tables.size(size_bytes) == text


def test_instants_are_utc() -> None:
    assert tables.instant(0) == "1970-01-01T00:00:00Z"


def test_unknown_cells_show_as_a_dash_and_markup_is_shown_as_it_is() -> None:
    text = shown(tables.table(("a", ">b"), [(None, "[bold]")]))
    assert "-" in text
    assert "[bold]" in text


def test_a_partition_shows_who_leads_it_and_why_it_is_offline() -> None:
    error = models.ErrorBody("partition_offline", "bad CRC at 12", retriable=True)
    partition = models.PartitionInfo(
        partition=0,
        leader=None,
        leader_epoch=4,
        replicas=[0],
        isr=[0],
        log_start_offset=0,
        high_watermark=1_234_567,
        size_bytes=2_000,
        error=error,
    )
    topic = models.TopicInfo(
        "t",
        "00",
        internal=False,
        replicas=1,
        config={"retention.ms": models.ConfigEntry(-1, "topic")},
        partitions=[partition],
    )
    text = shown(tables.topic_partitions(topic))
    assert "1,234,567" in text
    assert "bad CRC at 12" in text
    assert "retention.ms" in shown(tables.topic_settings(topic))


def test_groups_and_brokers_have_a_row_each() -> None:
    offset = models.CommittedOffset(
        "t", "00", 0, 5, 0, "", commit_time_ms=0, high_watermark=7, lag=2
    )
    group = models.GroupInfo("g", "Empty", 0, [offset])
    assert "1970-01-01" in shown(tables.group_offsets(group))
    assert "Empty" in shown(
        tables.groups(models.GroupList([models.GroupSummary("g", "Empty", [])]))
    )
    broker = models.BrokerInfo(0, "http://h:1", "running")
    assert "controller" in shown(tables.brokers([broker], controller_id=0))
