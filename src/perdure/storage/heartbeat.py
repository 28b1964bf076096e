"""A thread that touches files for as long as the process lives, whatever its event loops do."""

from __future__ import annotations

import contextlib
import os
import threading

_BEATS_PER_LEASE = 3


class Heartbeat:
    """Keeps leases on files, each touched so often that the shortest of them lasts. It never holds up exit."""

    def __init__(self) -> None:
        self._leases: dict[int, float] = {}
        self._shortened = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, descriptor: int, *, lease_seconds: float) -> None:
        """Touch that open file from now on."""
        is_shorter = lease_seconds < min(self._leases.values(), default=0.0)
        # Replaced and never changed: the thread reads it at any time.
        self._leases = {**self._leases, descriptor: lease_seconds}
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="perdure heartbeat", daemon=True)
            self._thread.start()
        elif is_shorter:
            self._shortened.set()

    def _beat(self) -> None:
        while True:
            self._shortened.wait(min(self._leases.values()) / _BEATS_PER_LEASE)
            self._shortened.clear()
            for descriptor in self._leases:
                # What is the matter with the file may be over by the next time.
                with contextlib.suppress(OSError):
                    touch(descriptor)


def touch(descriptor: int) -> float:
    """Give a file the present time, by the clock of its file system; that time."""
    os.utime(descriptor)
    return os.fstat(descriptor).st_mtime
