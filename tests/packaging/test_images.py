"""The images as far as they can be had without a builder of images: what the Dockerfile says, what
each image's environment weighs, and that what it starts runs, as nobody, with nothing to write to
but its data."""

from __future__ import annotations

import asyncio
import fnmatch
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import pytest
import yaml

from apiserver.server import ApiServer
from headrace.operator.builders import pods
from headrace.sdk.sync import Admin, Consumer, Producer
from testkit.brokers import free_ports
from testkit.images import USER, Environment, can_confine, confined

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "headrace": {"broker", "kubernetes", "operator"},
    "broker": {"broker", "kubernetes"},
    "operator": {"operator"},
    "cli": set(),
    "spark": {"spark"},
}
"""Target → extras that it installs."""
LARGEST_BYTES = 100_000_000


@dataclass
class Stage:
    """A stage of the Dockerfile: what it begins with, and its instructions."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all_of(self, instruction: str) -> list[str]:
        """The arguments of all such instructions."""
        return [argument for name, argument in self.steps if name == instruction]


@pytest.fixture(scope="module")
def dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    """Build arguments before the first stage, and the stages."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, argument = line.partition(" ")
        if name == "FROM":
            base, stage_name = re.fullmatch(r"(\S+) AS (\S+)", argument).groups()  # type: ignore[union-attr]
            stage = stages[stage_name] = Stage(base)
        elif stage is None:
            assert name == "ARG", line
            key, _, value = argument.partition("=")
            arguments[key] = value
        else:
            assert name in {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "RUN", "USER",
                            "VOLUME", "WORKDIR"}, line  # fmt: skip
            stage.steps.append((name, argument))
    return arguments, stages


Stages = tuple[dict[str, str], dict[str, Stage]]


def ancestry(stages: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and those that it is built on, the nearest first."""
    found = [stages[name]]
    while found[-1].base in stages:
        found.append(stages[found[-1].base])
    return found


def test_every_target_is_there_and_the_default_runs_everything(dockerfile: Stages) -> None:
    arguments, stages = dockerfile
    assert arguments["BASE"] == "python:3.13-slim"
    assert EXTRAS.keys() <= stages.keys()
    assert list(stages)[-1] == "headrace"
    for name in EXTRAS:
        assert ancestry(stages, name)[-1].base == "${BASE}"
    assert stages["wheels"].base == "${BASE}"  # Wheels for the Python that will run them.


def test_the_extras_are_those_of_the_distribution(dockerfile: Stages) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _, stages = dockerfile
    built = re.search(r"\.\[([\w,]+)\]", " ".join(stages["wheels"].all_of("RUN")))
    assert built is not None
    for target, wanted in EXTRAS.items():
        (run,) = stages[f"{target}-environment"].all_of("RUN")
        named = re.search(r'install\.sh "headrace(?:\[([\w,]+)\])?"', run)
        assert named is not None
        extras = set((named[1] or "").split(",")) - {""}
        assert extras == wanted
        assert extras <= project["optional-dependencies"].keys()
        assert extras <= set(built[1].split(","))
        copied = stages[target].all_of("COPY")
        assert f"--from={target}-environment /opt/headrace /opt/headrace" in copied


def test_a_target_starts_a_command_that_exists(dockerfile: Stages) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    _, stages = dockerfile
    for target in EXTRAS.keys() - {"spark"}:
        steps = [step for stage in ancestry(stages, target) for step in reversed(stage.steps)]
        entry = next(argument for name, argument in steps if name == "ENTRYPOINT")
        command = next(argument for name, argument in steps if name == "CMD")
        assert entry == '["headrace"]'
        assert "headrace" in scripts
        said = {"operator": '["operator"]', "cli": '["--help"]'}.get(target, '["broker"]')
        assert command == said
    assert stages["spark"].all_of("ENTRYPOINT") == ['["/opt/entrypoint.sh"]']


def test_sparks_image_is_what_its_manifests_run(dockerfile: Stages) -> None:
    arguments, stages = dockerfile
    folder = ROOT / "examples/spark/kubernetes"
    kubeflow = yaml.safe_load((folder / "kubeflow.yaml").read_text())["spec"]
    apache = yaml.safe_load((folder / "apache.yaml").read_text())["spec"]
    program = kubeflow["mainApplicationFile"].removeprefix("local://")
    assert apache["pyFiles"] == f"local://{program}"
    assert f"examples/spark/flights.py {program}" in stages["spark"].all_of("COPY")
    version = apache["runtimeVersions"]["sparkVersion"]
    assert arguments["SPARK"].startswith(f"spark:{version}-")
    assert kubeflow["sparkVersion"] == version
    user = stages["spark"].all_of("USER")[-1]
    for who in ("driver", "executor"):
        pod = yaml.safe_load((folder / f"{who}-template.yaml").read_text())
        assert pod["spec"]["securityContext"]["fsGroup"] == int(user)  # Who may read the token.


def test_nobody_is_root_and_nothing_builds_in_the_last_stage(dockerfile: Stages) -> None:
    _, stages = dockerfile
    for target in EXTRAS:
        last = ancestry(stages, target)
        users = [user for stage in last for user in reversed(stage.all_of("USER"))]
        assert users[0] == ("185" if target == "spark" else f"{USER}:{USER}")
        said = " ".join(argument for stage in last for _, argument in stage.steps)
        for word in ("pip", "gcc", "build-essential", "git", "wheel"):
            assert not re.search(rf"\b{word}\b", said), f"{target}: {word}"
    assert pods.USER == USER  # Whom the operator runs brokers as owns what the image made.
    owned = " ".join(stages["runtime"].all_of("RUN"))
    assert f"-o {USER} -g {USER} {pods.DATA_DIR}" in owned


def test_what_is_copied_is_there_and_sent_to_the_builder(dockerfile: Stages) -> None:
    _, stages = dockerfile
    rules = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in "# "
    ]
    assert rules[0] == "*"
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    used = set()
    for stage in stages.values():
        for copied in stage.all_of("COPY"):
            if copied.startswith("--from"):
                continue
            for source in copied.split()[:-1]:
                assert (ROOT / source).exists(), source
                matching = [rule for rule in kept if fnmatch.fnmatch(source, rule)]
                assert matching, f"{source} is left out by .dockerignore"
                used.update(matching)
    assert used == set(kept)


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that others can look into, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-images-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(open_folder: Path, wheel: Path) -> Callable[[str], Environment]:
    """A target's environment, made once."""
    made: dict[str, Environment] = {}

    def of(target: str) -> Environment:
        if target not in made:
            made[target] = Environment(open_folder / target, wheel, EXTRAS[target])
        return made[target]

    return of


@pytest.mark.parametrize("target", ["broker", "operator", "cli"])
def test_no_environment_weighs_much(environment: Callable[[str], Environment], target: str) -> None:
    found = environment(target)
    assert 20_000_000 < found.size_bytes < LARGEST_BYTES


@contextmanager
def running(
    found: Environment, command: list[str], data: Path, log: Path, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as the image runs it; confined where that can be had. Ended by SIGTERM."""
    data.mkdir(exist_ok=True)
    wanted = [str(found.folder / "bin/headrace"), *command]
    if can_confine():
        os.chown(data, USER, USER)
        wanted = confined(data, wanted)
    environment = {
        "PATH": f"{found.folder}/bin:/usr/bin:/bin",
        "HOME": "/",
        "PYTHONDONTWRITEBYTECODE": "1",
        **settings,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            wanted, env=environment, cwd="/tmp", stdin=subprocess.DEVNULL, stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for a 200."""
    deadline = monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert monotonic() < deadline, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (OSError, urllib.error.URLError):
            sleep(0.05)


def test_a_broker_runs_as_nobody_on_a_root_that_cant_be_written(
    environment: Callable[[str], Environment], open_folder: Path, tmp_path: Path
) -> None:
    found, log, data = environment("broker"), tmp_path / "log", open_folder / "data"
    port, health_port = free_ports(2)
    settings = {
        "HEADRACE_DATA_DIR": str(data / "data"),  # As the operator has it: made by the broker.
        "HEADRACE_HOST": "127.0.0.1",
        "HEADRACE_PORT": str(port),
        "HEADRACE_HEALTH_PORT": str(health_port),
        "HEADRACE_DISK_RESERVE_BYTES": "1048576",
    }
    url = f"http://127.0.0.1:{port}"
    with running(found, ["broker"], data, log, **settings) as process:
        until_ready(f"http://127.0.0.1:{health_port}/readyz", process, log)
        with Admin(url) as admin, Producer(url, compression="zstd") as producer:
            admin.create_topic("t", partitions=1)
            producer.send_many("t", [b"v" * 100] * 500)
        with Consumer(url, "t", group="g", offset_reset="earliest") as consumer:
            assert len(consumer.fetch(max_records=500, timeout=10)) == 500
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()[-3000:]
    if can_confine():
        written = {file.stat().st_uid for file in data.rglob("*")}
        assert written == {USER}


@pytest.mark.parametrize("target", ["broker", "operator"])
async def test_what_is_left_of_the_kubernetes_client_is_enough(
    environment: Callable[[str], Environment], open_folder: Path, tmp_path: Path, target: str
) -> None:
    found, log = environment(target), tmp_path / "log"
    port, health_port = free_ports(2)
    async with ApiServer() as api:
        for file in (ROOT / "crds").glob("*.yaml"):
            for document in yaml.safe_load_all(file.read_text()):
                api.make(document)
        kubeconfig = api.write_kubeconfig(open_folder / f"{target}.yaml", token="admin")
        kubeconfig.chmod(0o644)
        settings = {
            "KUBECONFIG": str(kubeconfig),
            "HEADRACE_STORE": "kubernetes",
            "HEADRACE_DATA_DIR": str(open_folder / target / "data"),
            "HEADRACE_PORT": str(port),
            "HEADRACE_HEALTH_PORT": str(health_port),
            "HEADRACE_DISK_RESERVE_BYTES": "1048576",
        }
        if target == "operator":
            settings = {
                "KUBECONFIG": str(kubeconfig),
                "POD_NAMESPACE": "default",
                "HEADRACE_OPERATOR_HEALTH_PORT": str(health_port),
                "HEADRACE_OPERATOR_HEALTH_HOST": "127.0.0.1",
            }
        data = open_folder / target / "data"
        with running(found, [target], data, log, **settings) as process:
            url = f"http://127.0.0.1:{health_port}/readyz"
            await asyncio.to_thread(until_ready, url, process, log)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0, log.read_text()[-3000:]


@pytest.mark.parametrize(
    ("target", "command", "code", "words"),
    [
        ("cli", ["--help"], 0, "produce"),
        ("cli", ["broker"], 1, "pip install 'headrace[broker]'"),
        ("cli", ["topic", "list", "--bootstrap", "http://127.0.0.1:9"], 1, "127.0.0.1:9"),
        ("operator", ["operator"], 1, "no way to the Kubernetes API"),
        ("operator", ["topic", "--help"], 0, "describe"),
    ],
)
def test_a_command_ends_as_it_should(
    environment: Callable[[str], Environment], open_folder: Path, tmp_path: Path,
    target: str, command: list[str], code: int, words: str,
) -> None:  # fmt: skip
    log = tmp_path / "log"
    with running(environment(target), command, open_folder / "none", log) as process:
        assert process.wait(60) == code, log.read_text()
    assert words in log.read_text()


def test_spark_finds_the_format_beside_its_own_python(
    environment: Callable[[str], Environment], tmp_path: Path
) -> None:
    """As in the image: PySpark is Spark's own, by PYTHONPATH."""
    for name in ("pyspark", "py4j"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (tmp_path / name).symlink_to(Path(spec.origin).parent)
    code = "import pyspark_headrace, headrace.spark.sink, headrace.spark.stream; print('found')"
    done = subprocess.run(
        [environment("spark").folder / "bin/python", "-c", code], capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    assert done.stdout == "found\n", done.stderr


BUILDER = """#!/bin/sh
echo "${0##*/} $*" >> "$SEEN"
case $1 in info) exit {code} ;; esac
"""


def build(folder: Path, builders: dict[str, int], **settings: str) -> tuple[int, str, list[str]]:
    """`images/build.sh` where these builders are (name → what `info` ends with)."""
    folder.mkdir()
    for tool in ("sh", "dirname", "printenv"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    for name, code in builders.items():
        (folder / name).write_text(BUILDER.replace("{code}", str(code)))
        (folder / name).chmod(0o755)
    seen = folder / "seen"
    seen.touch()
    done = subprocess.run(
        ["/bin/sh", ROOT / "images/build.sh"], capture_output=True, text=True, timeout=30,
        env={"PATH": str(folder), "SEEN": str(seen), **settings},
    )  # fmt: skip
    lines = [line for line in seen.read_text().splitlines() if " build " in line]
    return done.returncode, done.stderr, lines


def test_any_builder_that_answers_will_do(tmp_path: Path) -> None:
    code, words, lines = build(tmp_path / "none", {"docker": 1})
    assert (code, lines) == (1, [])
    assert "its daemon isn't running" in words
    assert "apt install buildah" in words
    code, words, lines = build(tmp_path / "two", {"docker": 1, "podman": 0}, TAG="7")
    assert code == 0, words
    assert lines[0] == "podman build --target headrace --tag headrace:7 ."
    assert [line.split()[3] for line in lines] == ["headrace", *list(EXTRAS)[1:]]
    wanted = {"TARGETS": "broker", "BASE": "python:3.11-slim", "IMAGE": "r/h"}
    code, words, lines = build(tmp_path / "all", dict.fromkeys(["docker", "buildah"], 0), **wanted)
    assert lines == [
        "docker build --target broker --tag r/h-broker:dev --build-arg BASE=python:3.11-slim ."
    ]
