"""Volume: one owner, the right cluster and format, and what each kind of end leaves."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.files import Disk
from headrace.broker.log.recovery import StartKind
from headrace.broker.log.volume import WHOLE, DataDirectoryError, Volume
from headrace.protocol.ids import TopicId, TopicIdPartition
from testkit.logs import PARTITION

OTHER = TopicIdPartition(TopicId(bytes(16)), 3)


class RebootedDisk(Disk):
    """The same directory after a power cut."""

    def boot_id(self) -> str | None:
        return "another boot"


def opened(path: Path, disk: Disk | None = None) -> Volume:
    return Volume.open(str(path), cluster_id="c", broker_id=1, disk=disk)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    found = opened(tmp_path / "data")
    yield found
    found.release()


def killed(volume: Volume) -> None:
    volume.release()


def test_a_second_broker_on_the_directory_is_refused(volume: Volume) -> None:
    with pytest.raises(DataDirectoryError, match="another broker is running"):
        opened(Path(volume.path))
    code = (
        "from headrace.broker.log.volume import Volume\n"
        f"Volume.open({volume.path!r}, cluster_id='c', broker_id=1)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "another broker is running" in found.stderr
    volume.release()
    opened(Path(volume.path)).release()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "newer version"),
        ({"cluster_id": "x"}, "belongs to cluster x"),
        ({"broker_id": 7}, "belongs to broker 7"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(
    volume: Volume, change: dict[str, object], words: str
) -> None:
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    killed(volume)
    path = Path(volume.path) / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataDirectoryError, match=words):
        opened(Path(volume.path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_meta_is_refused(volume: Volume, text: str) -> None:
    volume.create_partitions([PARTITION])
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    killed(volume)
    (Path(volume.path) / "meta.json").write_text(text)
    with pytest.raises(DataDirectoryError, match="damaged"):
        opened(Path(volume.path))
    (Path(volume.path) / "meta.json").unlink()
    with pytest.raises(DataDirectoryError, match=r"no meta\.json"):
        opened(Path(volume.path))


def test_a_path_that_is_no_directory_or_not_writable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/headrace")):
        with pytest.raises(DataDirectoryError, match="can't be used"):
            opened(path)


def test_a_full_disk_is_refused_at_the_start(tmp_path: Path) -> None:
    opened(tmp_path).release()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(DataDirectoryError, match="free space"):
            opened(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_how_the_last_process_ended_is_told_apart(volume: Volume) -> None:
    path = Path(volume.path)
    assert volume.start is StartKind.NEW
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    volume.create_partitions([PARTITION])
    killed(volume)

    volume = opened(path)
    assert volume.start is StartKind.SAME_BOOT
    assert volume.marker is not None
    assert volume.marker.session == 1
    killed(volume)
    rebooted = opened(path, RebootedDisk())
    assert rebooted.start is StartKind.OTHER_BOOT
    killed(rebooted)

    volume = opened(path)
    volume.begin_session(session=2, disk_gen=0, power_gen=1)
    numbers = Checkpoint(end_offset=5, high_watermark=4, recovery_point=5)
    volume.close_clean({PARTITION: numbers})
    killed(volume)
    volume = opened(path, RebootedDisk())
    assert volume.start is StartKind.CLEAN
    assert volume.checkpoints == {PARTITION: numbers}
    assert (volume.meta.session, volume.meta.power_gen) == (2, 1)
    volume.begin_session(session=3, disk_gen=0, power_gen=1)
    killed(volume)
    volume = opened(path, RebootedDisk())
    assert volume.start is StartKind.SAME_BOOT
    assert volume.checkpoints == {PARTITION: numbers}
    killed(volume)


def test_a_copied_directory_or_a_damaged_marker_counts_as_another_boot(
    volume: Volume, tmp_path: Path
) -> None:
    volume.create_partitions([PARTITION])
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    killed(volume)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", volume.path, str(copy)], check=True)
    found = opened(copy)
    assert found.start is StartKind.OTHER_BOOT
    found.release()
    for text in ("", "{"):
        (Path(volume.path) / "open").write_text(text)
        found = opened(Path(volume.path))
        assert found.start is StartKind.OTHER_BOOT
        found.release()


def test_a_crash_at_any_step_of_starting_or_stopping_is_clean_or_not_but_never_wrong(
    tmp_path: Path,
) -> None:
    """Counts the disk's calls down and dies at each of them in turn."""

    class Dying(Disk):
        left = 10**9

        def _step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:  # type: ignore[override]
            self._step()
            super().replace_file(path, data, sync=sync)

        def unlink(self, path: str) -> None:
            self._step()
            super().unlink(path)

    numbers = Checkpoint(end_offset=9)
    for steps in range(12):
        path = tmp_path / str(steps)
        disk = Dying()
        first = opened(path, disk)
        first.begin_session(session=1, disk_gen=0, power_gen=0)
        first.create_partitions([PARTITION])
        disk.left = steps
        has_ended = has_begun = False
        second = first
        try:
            first.close_clean({PARTITION: numbers})
            has_ended = True
            first.release()
            second = opened(path, disk)
            second.begin_session(session=2, disk_gen=0, power_gen=0)
            has_begun = True
        except KeyboardInterrupt:
            pass
        first.release()
        second.release()
        disk.left = 10**9
        found = opened(path)
        if has_begun:
            assert found.start is StartKind.SAME_BOOT
        elif has_ended:
            assert found.start is StartKind.CLEAN
        if found.start is StartKind.CLEAN or has_begun:
            assert found.checkpoints == {PARTITION: numbers}
        found.release()


def test_the_manifest_tells_lost_and_unknown_partitions(volume: Volume) -> None:
    volume.create_partitions([PARTITION, OTHER])
    volume.create_partitions([PARTITION])
    assert volume.contents().present == sorted([PARTITION, OTHER])
    os.rmdir(volume.directory_of(OTHER))
    unknown = TopicIdPartition(TopicId(b"u" * 16), 0)
    os.makedirs(volume.directory_of(unknown))
    killed(volume)
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    found = opened(Path(volume.path))
    assert found.contents().missing == [OTHER]
    assert found.contents().unlisted == [unknown]
    found.set_aside([unknown])
    assert found.contents().unlisted == []
    assert len(os.listdir(os.path.join(found.path, "stray"))) == 1
    found.release()


def test_deleted_partitions_are_gone_at_once_and_their_space_later(volume: Volume) -> None:
    volume.create_partitions([PARTITION])
    (Path(volume.directory_of(PARTITION)) / "00.log").write_text("x")
    volume.record_states({PARTITION: b"state"})
    volume.delete_partitions([PARTITION])
    assert volume.contents().present == []
    assert volume.contents().missing == []
    assert len(os.listdir(os.path.join(volume.path, "trash"))) == 1
    volume.empty_trash()
    assert os.listdir(os.path.join(volume.path, "trash")) == []
    volume.create_partitions([PARTITION])
    assert os.listdir(volume.directory_of(PARTITION)) == []


def test_the_states_of_a_topic_go_with_its_last_partition(volume: Volume) -> None:
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    topic = TopicIdPartition(PARTITION.topic_id, -1)
    volume.create_partitions([PARTITION])
    volume.record_states({PARTITION: b"p", topic: b"topic", WHOLE: b"cluster"})
    volume.delete_partitions([PARTITION])
    assert volume.states == {WHOLE: b"cluster"}


def test_states_are_remembered_and_do_not_grow_without_bound(volume: Volume) -> None:
    volume.begin_session(session=1, disk_gen=0, power_gen=0)
    volume.create_partitions([PARTITION, OTHER])
    for number in range(100):
        volume.record_states({PARTITION: b"%d" % number * 50_000, OTHER: b"same"})
    assert (Path(volume.path) / "states").stat().st_size < 9 << 20
    with (Path(volume.path) / "states").open("ab") as file:
        file.write(b"torn")
    killed(volume)
    found = opened(Path(volume.path))
    assert found.states == {PARTITION: b"99" * 50_000, OTHER: b"same"}
    found.note_store_term(9)
    found.note_store_term(4)
    found.release()
    found = opened(Path(volume.path))
    assert found.meta.store_term == 9
    found.release()
