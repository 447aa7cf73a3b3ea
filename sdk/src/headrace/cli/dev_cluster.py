"""Runs a local cluster: one process a broker, started again a second after it dies.

Starts `python -m headrace.broker` through `lifeline`, so that no broker outlives this process,
keeps dev.json current and stops everything in order. Used by `headrace dev`, `headrace demo`, the
bench scripts and tests; decides nothing about data.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec

from headrace.cli.dev_plan import (
    PORTS_PER_BROKER,
    BrokerPlan,
    ClusterPlan,
    DevBroker,
    DevState,
)
from headrace.cli.output import notice

RESTART_DELAY_S = 1.0
"""Between a broker's death and its next start, as a kubelet would wait a little."""

START_TIMEOUT_S = 60.0
"""How long the first start may take until /readyz answers 200."""

STOP_TIMEOUT_S = 40.0
"""How long a broker may take to stop (it drains for up to 30 s) before it is killed."""

_READY_POLL_S = 0.05


class DevFault(Exception):
    """The local cluster can't run; the message says what to do."""


class DevCluster:
    """A running local cluster. `start`, then `wait` or whatever else, then `stop`; or `async with`.

    The brokers' output goes to this process's stderr, or to `log_path` when one is given.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        quiet: bool = False,
    ) -> None:
        self.plan = plan
        self.restarts = 0
        self._environment = dict(environment or {})
        self._log_path = log_path
        self._quiet = quiet
        self._processes: dict[int, Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._lock_fd: int | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses to give to clients."""
        return self.plan.addresses

    async def __aenter__(self) -> DevCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start every broker and wait until all are ready.

        Raises:
            DevFault: a port or the folder is in use, an extra is missing, a broker doesn't start.
        """
        missing = missing_broker_extra()
        if missing:
            raise DevFault(missing)
        self._prepare_folder()
        try:
            _check_ports(self.plan)
            for broker in self.plan.brokers:
                await self._spawn(broker)
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.gather(*map(self._first_ready, self.plan.brokers))
        except TimeoutError:
            await self.stop()
            raise DevFault(
                f"no broker was ready within {START_TIMEOUT_S:.0f} s{self.log_tail()}"
            ) from None
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(plan)) for plan in self.plan.brokers]

    async def wait(self) -> None:
        """Wait until `stop` is called."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """Stop every broker with SIGTERM, which drains it, and wait; SIGKILL after 40 s."""
        self._stopping.set()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        await asyncio.gather(*map(self._end, self._processes.values()))
        self._processes.clear()
        if self._lock_fd is not None:
            self._write_state()
            os.close(self._lock_fd)
            self._lock_fd = None

    def pid(self, broker_id: int) -> int | None:
        """The broker's process id, None while it is dead."""
        process = self._processes.get(broker_id)
        return None if process is None or process.returncode is not None else process.pid

    def kill(self, broker_id: int) -> int:
        """SIGKILL the broker and return its process id; it starts again after a second.

        Raises:
            DevFault: it isn't running.
        """
        pid = self.pid(broker_id)
        if pid is None:
            raise DevFault(f"broker {broker_id} is not running")
        os.kill(pid, signal.SIGKILL)
        return pid

    async def ready(self, broker_id: int) -> None:
        """Wait until the broker's /readyz answers 200."""
        await _until_ready(self.plan.brokers[broker_id])

    async def back(self, broker_id: int, killed_pid: int) -> int:
        """Wait until a new process serves in the place of `killed_pid`; returns its process id."""
        while (pid := self.pid(broker_id)) in {None, killed_pid}:
            await asyncio.sleep(_READY_POLL_S)
        await self.ready(broker_id)
        assert pid is not None
        return pid

    def _prepare_folder(self) -> None:
        try:
            self.plan.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self.plan.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _make_secret(self.plan.secret_path)
        except BlockingIOError:
            self._unlock()
            raise DevFault(
                f"another `headrace dev` uses {self.plan.data_dir}: stop it, or choose another"
                " folder with --data-dir"
            ) from None
        except OSError as error:
            self._unlock()
            raise DevFault(f"can't use the data folder {self.plan.data_dir}: {error}") from error

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def _spawn(self, plan: BrokerPlan) -> Process:
        log = self._log_path.open("ab") if self._log_path else None
        try:
            process = await asyncio.create_subprocess_exec(
                *lifeline_command("-m", "headrace.broker"),
                env={**os.environ, **self._environment, **plan.environment},
                stdin=DEVNULL,
                stdout=log or sys.stderr.fileno(),
                stderr=log or sys.stderr.fileno(),
                start_new_session=True,  # Ctrl-C reaches this process alone: it stops them in order
            )
        finally:
            if log:
                log.close()
        self._processes[plan.broker_id] = process
        self._write_state()
        return process

    async def _first_ready(self, plan: BrokerPlan) -> None:
        """Wait for the first /readyz; ending before is a fault that no restart will cure."""
        ready = asyncio.create_task(_until_ready(plan))
        ended = asyncio.create_task(self._processes[plan.broker_id].wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        if ended.done() and not ended.cancelled():
            raise DevFault(
                f"broker {plan.broker_id} {describe_exit(ended.result())} before it was ready"
                f"{self.log_tail()}"
            )
        await ready

    async def _keep(self, plan: BrokerPlan) -> None:
        """Start the broker again, a second after each death, until stopped."""
        while True:
            process = self._processes[plan.broker_id]
            code = await process.wait()
            self._write_state()
            if not self._quiet:
                notice(
                    f"broker {plan.broker_id} (pid {process.pid}) {describe_exit(code)};"
                    f" starting it again in {RESTART_DELAY_S:g} s"
                )
            await asyncio.sleep(RESTART_DELAY_S)
            self.restarts += 1
            await self._spawn(plan)

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            notice(f"pid {process.pid} did not stop within {STOP_TIMEOUT_S:.0f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def kill_all(self) -> None:
        """SIGKILL every broker: for whoever presses Ctrl-C twice."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _write_state(self) -> None:
        """Replace dev.json in one step: a reader sees the old or the new, never half."""
        state = DevState(
            [DevBroker(b.broker_id, b.url, self.pid(b.broker_id)) for b in self.plan.brokers]
        )
        draft = self.plan.state_path.with_suffix(".json.new")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        draft.replace(self.plan.state_path)

    def log_tail(self) -> str:
        """The last lines of the log file, if the output went to one."""
        if self._log_path is None or not self._log_path.exists():
            return ""
        lines = self._log_path.read_text(errors="replace").splitlines()[-10:]
        return ":\n" + "\n".join(lines)


def lifeline_command(*args: str) -> list[str]:
    """The command that runs `python ARGS` as a child that dies with this process."""
    return [sys.executable, "-P", "-m", "headrace.cli.lifeline", str(os.getpid()), *args]


def missing_broker_extra() -> str | None:
    """What to install if the broker's packages are not there, else None."""
    needed = ("headrace.broker", "prometheus_client")
    if all(importlib.util.find_spec(name) for name in needed):
        return None
    return "the broker's packages are not installed: pip install 'headrace[broker]'"


def describe_exit(code: int) -> str:
    """`was killed by SIGKILL` or `ended with exit code 1`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def brokers_in(data_dir: Path) -> int:
    """How many brokers have data in the folder."""
    found = 0
    while (data_dir / f"broker-{found}").is_dir():
        found += 1
    return found


def free_port_pair(host: str = "127.0.0.1", *, brokers: int = 1) -> int:
    """The first of as many free ports in a row as the brokers need, for clusters that nobody has to
    find."""
    for _ in range(100):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            first = held.enter_context(socket.socket())
            first.bind((host, 0))
            port: int = first.getsockname()[1]
            for offset in range(1, PORTS_PER_BROKER * brokers):
                held.enter_context(socket.socket()).bind((host, port + offset))
            return port
    raise DevFault(f"no {PORTS_PER_BROKER * brokers} free ports in a row found")


def _check_ports(plan: ClusterPlan) -> None:
    """Fail before anything is started when a port is taken."""
    for broker in plan.brokers:
        for port in range(broker.port, broker.port + PORTS_PER_BROKER):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((broker.host, port))
                except OSError as error:
                    raise DevFault(
                        f"port {port} can't be used ({error.strerror}): stop what listens there,"
                        " or choose other ports with --port"
                    ) from error


def _make_secret(path: Path) -> None:
    """Create the cluster secret unless it is there; only its owner may read it."""
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_hex(32) + "\n")


async def _until_ready(plan: BrokerPlan) -> None:
    """Poll /readyz until it answers 200."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.get(plan.ready_url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(_READY_POLL_S)
