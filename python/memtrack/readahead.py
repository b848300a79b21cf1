"""Reads a recording in two threads: one decompresses while the other reduces, and neither holds the GIL meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import closing

from memtrack.reader import Reader

# One frame that is worked on, and one that is made.
_KEPT = 2


def views(reader: Reader) -> Generator[memoryview, None, None]:
    """reader.views(), made by another thread; each is good until the next is asked for."""
    if reader.waits:  # a thread that waits could not be stopped
        yield from reader.views()
        return
    wanted = threading.Semaphore(_KEPT)
    made: queue.SimpleQueue[memoryview | BaseException | None] = queue.SimpleQueue()
    stopping = False

    def make() -> None:
        try:
            with closing(reader.views(_KEPT)) as source:
                while wanted.acquire() and not stopping and (view := next(source, None)) is not None:
                    made.put(view)
            made.put(None)
        except BaseException as error:
            made.put(error)

    thread = threading.Thread(target=make, name="memtrack-read", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system gives no threads
        yield from reader.views()
        return
    try:
        while (view := made.get()) is not None:
            if isinstance(view, BaseException):
                raise view
            yield view
            wanted.release()
    finally:
        stopping = True
        wanted.release()
        thread.join()
