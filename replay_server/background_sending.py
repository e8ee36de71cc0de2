"""Sends what a writer has gathered, in a thread of its own: a bounded number of sends are due, and failures are kept.

The thread refers to a `BackgroundSending`, never to the writer. So one that was dropped without `close` is noticed by
its finalizer, which ends the thread and its connection. An interrupt may end the caller's part between any two
operations of C, so no lock is held there. The caller alone appends to what is due, and the thread alone takes from it,
once it was sent. Each looks at what the other has left before it waits for a word of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from .driver import run
from .errors import ConnectionLost, Timeout
from .process_bound import check_process
from .step_sender import Items, StepSender, Streams

_ENDS_S = 5.0
"""How long `close` waits for the thread, whose send is aborted: one that connects may notice it later."""
_HELD_S = 0.5
"""How long a send waits for the rate limiter before it says so, and tries again."""


class BackgroundSending:
    """What is due to be sent, in order.

    After a failure the thread rests until somebody was told of it. Then it goes on with what is due; and until a send
    has succeeded again, whoever hands something over waits for it, so that what is not sent does not grow.

    Args:
        sender: what sends; the thread's alone from now on.
        in_flight: how many sends may be due, the one that is under way among them.
        what: the writer, for errors.
    """

    def __init__(self, sender: StepSender, in_flight: int, what: str) -> None:
        self._sender, self._in_flight, self._what = sender, in_flight, what
        self._process = os.getpid()
        self._due: deque[tuple[Streams, list[Items]]] = deque()
        """What is to be sent; the first of it is being sent."""
        self._closed = False
        self._failure: BaseException | None = None
        """Of the last send, until somebody was told."""
        self._failed = False
        """Whether the last send failed."""
        self._held: Timeout | None = None
        """What the rate limiter said to the first that is due, the last time."""
        self._given, self._sent = threading.Lock(), threading.Lock()  # free: look again, for the thread, for the caller
        for word in (self._given, self._sent):
            word.acquire()
        self._thread = threading.Thread(target=self._work, name="replay-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Items that were handed over and not sent yet."""
        newest = self._sender.newest
        due = [items for _, made in list(self._due) for items in made if items.number > newest]
        return self._sender.waiting + sum(map(len, due))

    def hand_over(self, now: Streams, made: list[Items], timeout: float | None) -> None:
        """Has all steps until `now` sent, and the items `made`, which it takes out of the list.

        Raises:
            Timeout: too many sends are due, and the rate limiter held the first back; nothing was taken.
            ReplayError: what an earlier send raised; nothing was taken.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._wait(lambda: len(self._due) < self._in_flight, deadline)
        self._due.append((now, list(made)))
        made.clear()  # after an interrupt before that the sender knows them by their numbers
        _tell(self._given)
        if self._failed:
            self._wait(lambda: not self._due, deadline)

    def settle(self, timeout: float | None) -> None:
        """Waits until all was sent.

        Raises:
            Timeout: the rate limiter held some back; they go on.
            ReplayError: what the first send that failed raised.
        """
        self._wait(lambda: not self._due, None if timeout is None else time.monotonic() + timeout)

    def close(self) -> None:
        """Ends the thread, and what it is sending, and waits for that. From any thread; repeatable."""
        self.end()
        if self._process == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join(_ENDS_S)

    def end(self) -> None:
        """As `close`, without waiting. Also from a finalizer."""
        if self._process != os.getpid():
            return
        self._closed = True
        _tell(self._given)
        _tell(self._sent)
        self._sender.abort()

    def _wait(self, ready: Callable[[], bool], deadline: float | None) -> None:
        """Until it is ready, unless an earlier send has failed, or all is over."""
        check_process(self._process, self._what, "writer")
        _tell(self._given)  # an interrupted call may have given something without a word
        while not self._closed and self._failure is None and not ready():
            left = _HELD_S if deadline is None else deadline - time.monotonic()
            if left <= 0 and (held := self._held) is not None:
                raise Timeout(f"{self._what} has {len(self._due)} sends due, which go on: {held}")
            self._sent.acquire(timeout=left if 0 < left < _HELD_S else _HELD_S)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            _tell(self._given)
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame, and so the writer
        if self._closed:
            raise ConnectionLost(f"{self._what} is closed: make another one")

    def _work(self) -> None:
        while not self._closed:
            if not self._due or self._failure is not None:
                self._given.acquire()
                continue
            # What waits for the rate limiter of one table holds back no later items of others.
            merges = self._held is not None and self._sender.has_several_tables
            self._send(list(self._due) if merges else [self._due[0]])
            _tell(self._sent)
        self._sender.close()

    def _send(self, due: list[tuple[Streams, list[Items]]]) -> None:
        """Sends the first that are due: all of them, or after a failure, which is that of the first, none."""
        done = 1
        try:
            for _, made in due:
                self._sender.take(made)
            run(self._sender.send(due[-1][0], _HELD_S))
            done = len(due)
        except Timeout as held:  # the same once more, unless all is over
            self._held = held
            return
        except BaseException as error:
            self._failure, self._failed = error, True
        else:
            self._failed = False
        self._held = None
        for _ in range(done):  # after the failure is known
            self._due.popleft()


def _tell(word: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # free already
        word.release()
