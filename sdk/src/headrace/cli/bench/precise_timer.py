"""Wakes the event loop at an instant, exact to some ten microseconds.

The loop's own timers are rounded up to a millisecond by epoll, more than a record takes from end to
end. A file descriptor of timerfd_create(2) is exact, and costs no thread. Linux only.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
"""The clock of `time.perf_counter_ns` on Linux."""

_TFD_TIMER_ABSTIME = 1
_ITIMERSPEC = struct.Struct("@llll")
_SECOND_NS = 1_000_000_000


class PreciseTimer:
    """Calls `on_due` on the running loop once for each `set`; `close` it at the end.

    Raises:
        OSError: this system has no timerfd.
    """

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "timerfd_create"):
            raise OSError("this system has no timerfd_create")
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._fd, self._wake)

    def set(self, at_ns: int) -> None:
        """Wake at `at_ns` of `time.perf_counter_ns`; at once if that is over. Replaces the last."""
        spec = _ITIMERSPEC.pack(0, 0, *divmod(max(at_ns, 1), _SECOND_NS))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, spec, None)

    def close(self) -> None:
        """Give the descriptor back."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew in the same turn of the loop
            return
        self._on_due()
