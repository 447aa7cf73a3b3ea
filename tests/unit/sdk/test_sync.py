"""The sync facade: same methods, one loop thread a process, also across fork."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection

import pytest

import headrace.sdk
from headrace.sdk import Closed, TopicNotFound, sync
from headrace.sdk.testing import InMemoryCluster


@pytest.fixture
def cluster(headrace_cluster: InMemoryCluster) -> InMemoryCluster:
    headrace_cluster.create_topic("t", partitions=1)
    return headrace_cluster


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_every_async_method_has_its_sync_twin_with_the_same_signature(name: str) -> None:
    ours, theirs = getattr(sync, name), getattr(headrace.sdk, name)
    for method, function in vars(theirs).items():
        if method.startswith("_"):
            continue
        twin = vars(ours)[method]
        if isinstance(function, property):
            assert isinstance(twin, property)
            continue
        expected = inspect.signature(function).parameters.values()
        assert list(inspect.signature(twin).parameters.values()) == list(expected), method


def test_records_go_and_come_without_async(cluster: InMemoryCluster) -> None:
    with sync.Admin(cluster.url) as admin:
        assert [topic.name for topic in admin.list_topics().topics] == ["t"]
    with sync.Producer(cluster.url) as producer:
        assert producer.send("t", b"0").offset == 0
        assert [meta.offset for meta in producer.send_many("t", [b"1", b"2"])] == [1, 2]
        handle = producer.enqueue("t", b"3")
        assert handle.result(timeout=5).offset == 3
        assert handle.done()
        assert handle.result().offset == 3
        with pytest.raises(TopicNotFound):
            producer.send("nope", b"")
    with sync.Consumer(cluster.url, "t", group="g") as consumer:
        seen = []
        for record in consumer:
            seen.append(record.value)
            if record.offset == 2:
                break
        assert seen == [b"0", b"1", b"2"]
        assert consumer.position(("t", 0)) == 3
        assert [record.value for record in consumer.fetch(timeout=5)] == [b"3"]
        assert consumer.fetch(timeout=0.01) == []
        assert consumer.assignment == {("t", 0)}
        consumer.seek(("t", 0), 1)
        assert next(iter(consumer)).offset == 1
    assert cluster.committed("g") == {("t", 0): 1}


def test_run_calls_plain_handlers_in_threads(cluster: InMemoryCluster) -> None:
    with sync.Producer(cluster.url) as producer:
        producer.send_many("t", [b"v"] * 20)
    names = set()

    def handle(record: headrace.sdk.Record) -> None:
        names.add(threading.current_thread().name)
        if record.offset == 19:
            raise ZeroDivisionError

    with sync.Consumer(cluster.url, "t") as consumer, pytest.raises(ZeroDivisionError):
        consumer.run(handle, concurrency=1)
    assert "headrace-sdk" not in names


def test_many_threads_share_a_producer(cluster: InMemoryCluster) -> None:
    with sync.Producer(cluster.url) as producer:

        def work() -> None:
            for _ in range(50):
                producer.send("t", b"v")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(cluster.records("t")) == 200
    assert sum(thread.name == "headrace-sdk" for thread in threading.enumerate()) == 1


def test_a_call_from_within_the_loop_is_refused_instead_of_hanging(
    cluster: InMemoryCluster,
) -> None:
    with sync.Producer(cluster.url) as inner:

        def serialize(value: bytes) -> bytes:
            inner.send("t", value)
            return value

        with (
            sync.Producer(cluster.url, value_serializer=serialize) as outer,
            pytest.raises(RuntimeError, match="own loop"),
        ):
            outer.send("t", b"v")


def _in_child(pipe: Connection, inherited: sync.Producer) -> None:
    try:
        with pytest.raises(Closed, match="forked"):
            inherited.send("t", b"v")
        cluster = InMemoryCluster()
        cluster.create_topic("t", partitions=1)
        with sync.Producer(cluster.url) as producer:
            pipe.send(producer.send("t", b"child").offset)
        with sync.Consumer(cluster.url, "t") as consumer:
            pipe.send(consumer.fetch(timeout=5)[0].value)
    except BaseException as error:
        pipe.send(repr(error))
        raise


def test_a_child_process_gets_its_own_loop(cluster: InMemoryCluster) -> None:
    context = multiprocessing.get_context("fork")
    with sync.Producer(cluster.url) as producer:
        producer.send("t", b"before")
        ours, theirs = context.Pipe()
        child = context.Process(target=_in_child, args=(theirs, producer))
        child.start()
        theirs.close()
        assert ours.poll(20)
        assert ours.recv() == 0
        assert ours.recv() == b"child"
        child.join(20)
        assert child.exitcode == 0
        ours.close()
        child.close()
        assert producer.send("t", b"after").offset == 1


def test_a_bare_fork_leaves_the_parents_loop_alone(cluster: InMemoryCluster) -> None:
    with sync.Producer(cluster.url) as producer:
        producer.send("t", b"before")
        pid = os.fork()
        if not pid:
            code = 1
            try:
                own = InMemoryCluster()
                own.create_topic("t", partitions=1)
                with sync.Producer(own.url) as child:
                    code = 0 if child.send("t", b"v").offset == 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for number in range(20):
            assert producer.send("t", b"after").offset == number + 1
