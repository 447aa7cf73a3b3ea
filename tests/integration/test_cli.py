"""The command line against a real broker: what it prints, and with which code it ends."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from headrace.protocol import routes
from testkit.brokers import BrokerProcess
from testkit.command_line import COMMAND, Done, environment, headrace, start

_numbers = itertools.count()


class Shell:
    """Runs commands against one broker."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, stdin: bytes = b"") -> Done:
        return headrace(*args, stdin=stdin, bootstrap=self.url)

    def create(self, topic: str, *, partitions: int = 1) -> None:
        """Make a topic, without the half second that a command takes to start."""
        body = json.dumps({"name": topic, "partitions": partitions}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + routes.TOPICS, body, headers)
        ) as answer:
            assert answer.status == 201

    def fill(self, topic: str, lines: bytes, *args: str) -> None:
        """Produce lines into a topic made for them."""
        self.create(topic)
        done = self("produce", topic, *args, stdin=lines)
        assert done.code == 0, done.err


@pytest.fixture
def shell(broker: BrokerProcess) -> Shell:
    return Shell(broker.url)


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_a_topic_lives_from_create_to_delete(shell: Shell, topic: str) -> None:
    made = shell("topic", "create", topic, "--partitions", "2", "--config", "retention.ms=60000")
    assert made.code == 0, made.err
    assert f"topic {topic}: 2 partition(s)" in made.text

    assert topic in shell("topic", "list").text
    described = shell("--output", "json", "topic", "describe", topic).json
    assert described["name"] == topic
    assert len(described["partitions"]) == 2
    assert described["config"]["retention.ms"] == {"value": 60000, "source": "topic"}

    altered = shell(
        "topic", "alter", topic, "--partitions", "3", "--unset", "retention.ms", "--output", "json"
    ).json
    assert len(altered["partitions"]) == 3
    assert altered["config"]["retention.ms"]["source"] == "default"
    assert "retention.ms" in shell("topic", "describe", topic).text

    assert shell("topic", "delete", topic).code == 0
    assert shell("topic", "describe", topic).code == 1
    assert shell("topic", "delete", topic, "--if-exists").code == 0


def test_what_the_cluster_refuses_is_told_plainly_with_its_code(shell: Shell, topic: str) -> None:
    shell.create(topic)
    again = shell("topic", "create", topic)
    assert again.code == 1
    assert again.err.startswith("error: ")
    assert "(topic_exists)" in again.err
    assert "Traceback" not in again.err
    assert shell("topic", "create", topic, "--if-not-exists").code == 0
    wrong = shell("topic", "create", f"{topic}-x", "--config", "retention.sm=1")
    assert wrong.code == 1
    assert "(invalid_config)" in wrong.err


def test_the_address_may_stand_before_or_after_the_command(shell: Shell) -> None:
    before = headrace("--bootstrap", shell.url, "topic", "list", bootstrap="http://nobody:1")
    after = headrace("topic", "list", "--bootstrap", shell.url, bootstrap="http://nobody:1")
    assert (before.code, after.code) == (0, 0)


def test_lines_come_back_as_they_went_in(shell: Shell, topic: str) -> None:
    shell.fill(topic, b"one\n\n\xff\xfe\r\nlast without newline")
    done = shell("consume", topic, "--from-beginning", "--exit-at-end")
    assert done.code == 0, done.err
    assert done.out == b"one\n\n\xff\xfe\r\nlast without newline\n"
    assert done.err == ""


def test_keys_headers_nulls_and_formats(shell: Shell, topic: str) -> None:
    shell.fill(
        topic, b"a\t1\nb\tNULL\n", "--key-separator", r"\t", "--header", "h=x",
        "--null-value", "NULL",
    )  # fmt: skip
    shown = shell(
        "consume", topic, "--from-beginning", "--exit-at-end", "--format", r"%o:%k=%v\x7c%h",
        "--null-value", "-",
    )  # fmt: skip
    assert shown.text == "0:a=1|h=x\n1:b=-|h=x\n"
    lines = shell(
        "consume", topic, "--offset", "1", "--exit-at-end", "--format", "json"
    ).text.splitlines()
    assert len(lines) == 1
    assert '"value":null' in lines[0]


def test_a_partition_can_be_chosen_on_both_sides(shell: Shell, topic: str) -> None:
    shell.create(topic, partitions=3)
    assert shell("produce", topic, "--partition", "2", stdin=b"here\n").code == 0
    one = ("--from-beginning", "--exit-at-end", "--format", "%p %v")
    assert shell("consume", topic, "--partition", "2", *one).text == "2 here\n"
    assert shell("consume", topic, "--partition", "0", *one).text == ""
    assert shell("consume", topic, "--partition", "9", *one).code == 1


def test_a_summary_goes_to_stderr_and_no_bar_into_a_pipe(shell: Shell, topic: str) -> None:
    shell.create(topic)
    done = shell("produce", topic, stdin=b"x\n" * 1_000)
    assert done.out == b""
    assert "1,000 record(s)" in done.err
    assert "\x1b" not in done.err


def test_many_lines_pass_in_order(shell: Shell, topic: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(200_000))
    shell.fill(topic, lines)
    assert shell("consume", topic, "--from-beginning", "--exit-at-end").out == lines


def test_max_and_offset_cut_out_a_piece(shell: Shell, topic: str) -> None:
    shell.fill(topic, b"0\n1\n2\n3\n4\n")
    assert shell("consume", topic, "--offset", "1", "--max", "3").out == b"1\n2\n3\n"
    beyond = shell("consume", topic, "--offset", "6", "--exit-at-end")
    assert beyond.code == 1
    assert "(offset_out_of_range)" in beyond.err


def test_a_group_goes_on_where_it_stopped(shell: Shell, topic: str) -> None:
    shell.fill(topic, b"0\n1\n2\n")
    group = f"group-{topic}"
    read = ("consume", topic, "--group", group, "--from-beginning")
    assert shell(*read, "--max", "2").out == b"0\n1\n"
    assert shell(*read, "--exit-at-end").out == b"2\n"
    assert shell(*read, "--exit-at-end").out == b""

    assert group in shell("group", "list").text
    assert "lag 0 record(s)" in shell("group", "describe", group).text
    offsets = shell("group", "describe", group, "--output", "json").json["offsets"]
    assert [(entry["offset"], entry["lag"]) for entry in offsets] == [(3, 0)]
    assert shell("group", "delete", group).code == 0
    assert "(group_not_found)" in shell("group", "describe", group).err


def test_a_line_without_its_separator_stops_and_says_how_far_it_came(
    shell: Shell, topic: str
) -> None:
    shell.create(topic)
    done = shell("produce", topic, "--key-separator", ":", stdin=b"a:1\nb:2\noops\nc:3\n")
    assert done.code == 2
    assert "line 3" in done.err
    assert "2 record(s)" in done.err


def test_producing_to_an_unknown_topic_fails_soon(shell: Shell) -> None:
    done = shell("produce", "not-there", stdin=b"x\n")
    assert done.code == 1
    assert "(topic_not_found)" in done.err
    assert "not acknowledged" in done.err


def test_the_cluster_shows_its_brokers(shell: Shell) -> None:
    assert "running" in shell("cluster", "describe").text
    described = shell("cluster", "describe", "--output", "json").json
    assert described["cluster_id"]
    assert described["brokers"][0]["led_partitions"] >= 0


def test_a_reader_that_leaves_is_no_failure(shell: Shell, topic: str) -> None:
    shell.fill(topic, b"x" * 99 + b"\n" + b"y" * 99_000 + b"\n" * 50_000)
    consume = " ".join([*COMMAND, "consume", topic, "--from-beginning"])
    done = subprocess.run(
        ["bash", "-c", f"{consume} | head -c 50; exit ${{PIPESTATUS[0]}}"],
        env=environment(HEADRACE_BOOTSTRAP=shell.url),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"x" * 50
    assert done.stderr == b""
    assert done.returncode == 0


def test_ctrl_c_ends_consume_quietly_and_commits_what_was_printed(
    shell: Shell, topic: str, running: list[subprocess.Popen[bytes]]
) -> None:
    shell.fill(topic, b"first\n")
    consume = start(
        "consume", topic, "--group", f"g-{topic}", "--from-beginning", bootstrap=shell.url
    )
    running.append(consume)
    assert consume.stdout is not None
    assert consume.stdout.readline() == b"first\n"
    consume.send_signal(signal.SIGINT)
    out, err = consume.communicate(timeout=20)
    assert (consume.returncode, out, err) == (130, b"", b"")
    group = shell("group", "describe", f"g-{topic}", "--output", "json").json
    assert group["offsets"][0]["offset"] == 1


def test_a_line_typed_is_sent_at_once(
    shell: Shell, topic: str, running: list[subprocess.Popen[bytes]]
) -> None:
    shell.create(topic)
    consume = start("consume", topic, "--from-beginning", "--max", "1", bootstrap=shell.url)
    produce = start("produce", topic, bootstrap=shell.url)
    running += [consume, produce]
    assert produce.stdin is not None
    produce.stdin.write(b"typed\n")
    produce.stdin.flush()
    out, _ = consume.communicate(timeout=20)
    assert out == b"typed\n"
    produce.send_signal(signal.SIGINT)
    _, err = produce.communicate(timeout=20)
    assert produce.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.parametrize("mode", ["send_many", "enqueue", "send"])
def test_bench_produce_reports_rounds_and_level(shell: Shell, mode: str) -> None:
    report = shell(
        "bench", "produce", "--records", "500", "--rounds", "2", "--mode", mode, "--json"
    ).json
    assert len(report["rounds"]) == 2
    assert report["summary"]["records_per_s"]["median"] > 0
    assert report["settings"]["flush"] == "auto (batch)"
    assert report["environment"]["cpus"] >= 1


@pytest.mark.parametrize("mode", ["fetch", "iterate"])
def test_bench_consume_counts_what_it_reads(shell: Shell, mode: str) -> None:
    done = shell("bench", "consume", "--records", "5000", "--rounds", "1", "--mode", mode)
    assert done.code == 0, done.err
    assert "records_per_s" in done.text


def test_bench_latency_keeps_its_rate_and_leaves_no_topic(shell: Shell) -> None:
    args = ("--rate", "200", "--records", "100", "--rounds", "1", "--json")
    report = shell("bench", "latency", *args).json
    figures = report["rounds"][0]
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    assert figures["records_per_s"] == pytest.approx(200, rel=0.5)
    assert "bench-" not in shell("topic", "list").text


def test_a_missing_extra_is_named_in_one_line() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "sys.argv = ['headrace', 'broker']\n"
        "from headrace.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'headrace[broker]'" in done.stderr


def test_wrong_usage_is_code_2_without_a_trace() -> None:
    done = headrace("topic", "creat", "x")
    assert done.code == 2
    assert "No such command" in done.err
    assert "Traceback" not in done.err
