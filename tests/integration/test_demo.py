"""The demo's short form, as a process: everything but the size is as `make demo` has it."""

from __future__ import annotations

import pytest

from testkit.command_line import headrace


@pytest.mark.timeout(200)
def test_the_demo_passes_and_shows_what_it_checked() -> None:
    done = headrace("demo", "--records", "20000")
    assert done.code == 0, done.text + done.err
    assert done.err == ""
    assert "\x1b" not in done.text
    for line in (
        "20,000 flights",
        "killed with SIGKILL",
        "longest pause of the producer",
        "killed, came back, all replicas in sync",
        "acknowledged records present: 20,000 of 20,000",
        "count: 20,000 read, 20,000 sent",
        "UA United Air Lines Inc.",
        "group: every record handled: 20,000 of 20,000 at least once",
        "group: what was handled twice: ",
        "group: order within each key: 15 of 15 keys in order",
        "Spark batch: 15 carriers, the same as in plain Python",
        "Spark stream, read back: 15 carriers, the same as in plain Python",
        "PASS in",
    ):
        assert line in done.text


@pytest.mark.parametrize("records", ["0", "x"])
def test_a_number_of_records_that_makes_no_sense_is_wrong_usage(records: str) -> None:
    assert headrace("demo", "--records", records).code == 2
