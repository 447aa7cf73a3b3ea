"""An event loop without sockets, threads or clocks: virtual time, and chance from one seed.

Each callback belongs to a `Process` (by its context). A process runs its callbacks in order, as
asyncio promises; which process goes next is free, so the seed decides. A process can be paused
(SIGSTOP: its callbacks and timers wait) or killed (they never run, nor does any `finally`).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

SPIN_MAX = 20_000
"""Callbacks without time going on that are taken for a loop that never ends."""


DISCARD_TRIES = 20
"""How often an unfinished coroutine is told to end."""


class Stuck(AssertionError):
    """Nothing is left to do, or something spins."""


class Process:
    """What is paused and killed as one: a broker, a client, the world outside (`name` "")."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.ready: deque[SimHandle] = deque()
        self.is_alive = True
        self.is_paused = False
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Starts a task of this process."""
        return self.context.copy().run(self.loop.create_task, coroutine, name=name)

    def call(self, job: Callable[..., T], *args: Any) -> T:
        """Runs a function as if the process had called it."""
        return self.context.copy().run(job, *args)

    def call_soon(self, job: Callable[..., object], *args: Any) -> None:
        """Lets the process run a function when it is its turn."""
        self.loop.call_soon(job, *args, context=self.context.copy())

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False
        self.ready.clear()
        self.loop.not_runnable(self)

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.loop.not_runnable(self)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        if self.ready and self.is_alive:
            self.loop.runnable.append(self)

    def __repr__(self) -> str:
        return f"<Process {self.name}>"


_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class SimHandle:
    """A callback that waits; what asyncio calls a Handle or TimerHandle."""

    __slots__ = ("_when", "args", "callback", "cancelled_", "context", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: Process,
        when: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process = process
        self.cancelled_ = False
        self._when = when

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one simulated world. `time()` is seconds since its beginning."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 1000.0
        self.steps = 0
        self.runnable: list[Process] = []
        self.errors: list[str] = []
        self.after_step: Callable[[Process], None] = lambda process: None
        """Called after each callback with the process that it was of."""
        self._random = rng.random
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._order = 0
        self._spun = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.world = Process(self, "")

    # --- what asyncio asks of a loop --------------------------------------------------------------

    @classmethod
    def make(cls, rng: random.Random) -> SimLoop:
        """A loop; what it has no use for (sockets, signals, threads) raises NotImplementedError."""
        return cls(rng)

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_process, self.world) or self.world
        handle = SimHandle(callback, args, context, process)
        if process.is_alive:
            ready = process.ready
            if not ready and not process.is_paused:
                self.runnable.append(process)
            ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_process, self.world) or self.world
        handle = SimHandle(callback, args, context, process, when)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        if len(self._tasks) > 2_000:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    # --- running ----------------------------------------------------------------------------------

    def not_runnable(self, process: Process) -> None:
        """Takes a process off the list of those that may run."""
        if process in self.runnable:
            self.runnable.remove(process)

    def at(self, delay_s: float, job: Callable[..., object], *args: Any) -> SimHandle:
        """Lets the world outside do something later, whatever becomes of the processes."""
        return self.call_at(self.now + delay_s, job, *args, context=self.world.context)

    def run(self, *, until_s: float, stop: Callable[[], object] | None = None) -> bool:
        """Runs until that time, or until `stop()` is true (looked at after each callback); whether
        it was."""
        token = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return self._run(until_s, stop)
        finally:
            events._set_running_loop(token)

    def _run(self, until_s: float, stop: Callable[[], object] | None) -> bool:
        while True:
            if self._timers and self._timers[0][0] <= self.now:
                self._due()
            if not self.runnable:
                if not self._timers or self._timers[0][0] > until_s:
                    self.now = max(self.now, until_s)
                    return False
                self.now = max(self.now, self._timers[0][0])
                self._spun = 0
                continue
            self._step()
            if stop is not None and stop():
                return True

    def _due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            process = handle.process
            if handle.cancelled_ or not process.is_alive:
                continue
            if not process.ready and not process.is_paused:
                self.runnable.append(process)
            process.ready.append(handle)

    def _step(self) -> None:
        runnable = self.runnable
        place = int(self._random() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[place]
        ready = process.ready
        handle = ready.popleft()
        if not ready:
            runnable[place] = runnable[-1]
            runnable.pop()
        if handle.cancelled_:
            return
        self.steps += 1
        self._spun += 1
        if self._spun > SPIN_MAX:
            raise Stuck(f"{process.name or 'the world'} spins in {handle.callback!r}")
        try:
            handle.context.run(handle.callback, *handle.args)
        except (KeyboardInterrupt, SystemExit, AssertionError):
            raise
        except BaseException as error:
            self.errors.append(f"{process.name}: {handle.callback!r} raised {error!r}")
        self.after_step(process)

    def wait_for(self, task: asyncio.Future[T], *, within_s: float) -> T:
        """Runs until a task is done.

        Raises:
            Stuck: it isn't within that (virtual) time.
        """
        if not self.run(until_s=self.now + within_s, stop=task.done) and not task.done():
            raise Stuck(f"{task!r} isn't done after {within_s} s")
        return task.result()

    def close(self) -> None:
        """Forgets all that is unfinished; what its `finally` blocks do has no effect any more."""
        self.world.is_alive = False
        self._timers.clear()
        self.after_step = lambda process: None
        token = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that never began
                self._discard_all()
        finally:
            events._set_running_loop(token)
        self._tasks.clear()
        self.runnable.clear()

    def _discard_all(self) -> None:
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                _discard(task.get_coro())


def _discard(coroutine: object) -> None:
    """Ends a coroutine that awaits something in its `finally`, too."""
    assert isinstance(coroutine, Coroutine)
    for _ in range(DISCARD_TRIES):
        try:
            coroutine.close()
        except BaseException:
            continue
        return
