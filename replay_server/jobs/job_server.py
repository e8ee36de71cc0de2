"""The server of a job: begun with the replay that was saved, started again where it died, and saved now and then.

The run directory keeps one snapshot of the server's tables, `replay/replay.snapshot`, beside the checkpoints. A server
that was killed comes back with it, at the same port and socket, and so does that of a job that is resumed.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import replay_server as rs
from replay_server.jobs.supervisor import RESTART_DELAY_S, Deaths
from replay_server.rl.settings import ApexSettings

SNAPSHOT = "replay.snapshot"
SHARDS = "shards"
"""The folder of the shards' snapshots, where the replay is on several servers."""
ASIDE = "refused.snapshot"
"""Where a snapshot is moved that the server refused: one that is damaged, or of a table with other settings."""
REFUSED = "(exit status 4)"
"""In the error of a server that did not start, for that reason."""
ADDRESS_IN_USE = "(exit status 3)"
"""And of one whose address another has."""
START_WITHIN_S = 600.0
"""What a server may take to read a snapshot."""
SILENT_S = 600.0
"""A server that runs and has not answered for so long is killed, and started again."""
FIRST_SAVE_S = 60.0
"""When the replay is saved first, where `checkpoint_replay_every_s` is longer."""
MOST_OF_THE_TIME = 10.0
"""Saving takes at most one part in so many of the time."""
DISK_LEFT_BYTES = 1 << 30
"""What snapshots leave of the disk."""

Say = Callable[[str], None]


def snapshot_bytes(table: rs.Table) -> int:
    """About how large a snapshot of a full table is, from above: compression counts for nothing.

    A table with windows has about as many steps as items.
    """
    sizes = {True: 0, False: 0}  # of a step, of an item
    for columns, of_step in ((table.step_columns, True), (table.item_columns, False)):
        for column in columns.values():
            shape = [size or 1 for size in column.shape]
            sizes[of_step] += int(np.dtype(column.dtype).itemsize * np.prod(shape, dtype=np.int64))
    windows = sum(4 * (window.steps) for window in table.windows.values())
    index = 33  # as docs/snapshot.md lays it out
    return int(1.05 * table.capacity * (sizes[True] + 4 + sizes[False] + 4 + windows + index))


def saves_replay(settings: ApexSettings, table: rs.Table, folder: Path) -> tuple[bool, str]:
    """Whether a run saves its replay, and a sentence for people that says why. The folder above `folder` is there."""
    if settings.checkpoint_replay == "off":
        return False, "the replay is not saved (--checkpoint-replay off)"
    size, shards = snapshot_bytes(table), settings.replay_shards
    kept = [*folder.glob(SNAPSHOT), *folder.glob(f"{SHARDS}/*/*.snapshot")]
    free = shutil.disk_usage(folder.parent).free + sum(file.stat().st_size for file in kept)
    each = "" if shards == 1 else " for each shard"
    words = (
        f"two files{each} of up to {told_bytes(size / shards)} while a new one is written; {told_bytes(free)} are free"
    )
    if settings.checkpoint_replay == "auto" and 2 * size > free - DISK_LEFT_BYTES:
        return False, f"the replay is not saved: the disk has no room for {words} (--checkpoint-replay on saves it)"
    return True, f"the replay is saved every {settings.checkpoint_replay_every_s:g} s in {folder} ({words})"


def told_bytes(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


class JobReplay(ABC):
    """What holds a job's replay: one server (`JobServer`), one with replicas (`replay_server.jobs.job_replicas`), or
    shards (`replay_server.jobs.job_cluster`).

    Attributes:
        url: with the password.
        local_url: for parts of this host.
        snapshot_name: under which the tables are saved; None = each server names its own.
    """

    url: str
    local_url: str
    snapshot_name: str | None

    def __init__(self, say: Say) -> None:
        self._say = say
        self._silent_since: float | None = None

    @property
    def address(self) -> str:
        """The URL as others may read it."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    @property
    @abstractmethod
    def address_elsewhere(self) -> str:
        """The URL as parts on other hosts use it, without the password."""

    @property
    @abstractmethod
    def processes(self) -> str:
        """Its processes, for people."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether all of its processes are alive."""

    @property
    def primary_url(self) -> str:
        """For what does not look for the primary of several hosts by itself."""
        return self.url

    @abstractmethod
    def stop(self, timeout_s: float) -> None:
        """Ends it for good."""

    def keep_snapshot(self, saved: Path) -> None:  # noqa: B027 - most have nothing to do
        """Puts a snapshot that was just saved where `snapshots` says."""

    @abstractmethod
    def watch(self) -> bool:
        """Sees to it that what has ended is started again; whether something was. Raises ConnectionLost where it ends
        too often."""

    @abstractmethod
    def snapshots(self) -> list[Path]:
        """The files that a resumed job would begin with."""

    @abstractmethod
    def _kill_silent(self) -> None:
        """Kills what does not answer."""

    @contextlib.contextmanager
    def look(self, lost: tuple[type[Exception], ...]) -> Iterator[None]:
        """Around questions to the server: one that does not answer is waited for, and killed after `SILENT_S`.

        `lost`: the errors that say so.
        """
        try:
            yield
        except lost as error:
            self._not_heard(error)
            return
        if self._silent_since is not None:
            self._say(f"server answers again after {time.monotonic() - self._silent_since:.0f} s")
            self._silent_since = None

    def _not_heard(self, error: Exception) -> None:
        if not self.running:
            return  # `watch` sees to it
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self._say(f"server does not answer ({error}): waiting for it, up to {SILENT_S:g} s")
        elif now - self._silent_since > SILENT_S:
            self._say(f"server has not answered for {now - self._silent_since:.0f} s: killing it")
            self._kill_silent()


class JobServer(JobReplay):
    """Starts the server; `watch` and `look` keep it there.

    Args:
        table: the job's.
        folder: where snapshots are; made.
        port: 0 = any free one, and the same one after each restart.
        restore: whether to begin with a snapshot, where there is one.
        resumed: whether one that is there now is of this run; else it is moved aside.
        options: of `rs.Server`: host, unix, password.
        say: told what people should know.

    Raises:
        ServerError: it does not start.
    """

    def __init__(
        self,
        table: rs.Table,
        folder: Path,
        port: int,
        restore: bool,
        resumed: bool,
        options: dict[str, Any],
        say: Say,
    ) -> None:
        super().__init__(say)
        folder.mkdir(parents=True, exist_ok=True)
        self.snapshot, self.snapshot_name = folder / SNAPSHOT, SNAPSHOT
        self._table, self._restores = table, restore
        self._options = {**options, "directory": folder, "start_timeout": START_WITHIN_S}
        if self.snapshot.exists() and not resumed:
            self.snapshot.replace(folder / ASIDE)
        if resumed and restore and (folder / SHARDS).exists() and not self.snapshot.exists():
            say(f"the replay that was saved is of shards, and stays in {folder / SHARDS}: the server begins empty")
        self._deaths = Deaths()
        self._server = self._start(port)
        self.url, self.local_url = self._server.url, self._server.unix_url or self._server.url

    @property
    def address_elsewhere(self) -> str:
        if self._options.get("host") in ("0.0.0.0", "::"):
            return f"redis://{socket.gethostname()}:{urlsplit(self.url).port}"
        return self.address

    @property
    def processes(self) -> str:
        return f"process {self._server.pid}"

    @property
    def running(self) -> bool:
        return self._server.running

    def snapshots(self) -> list[Path]:
        return [self.snapshot]

    def stop(self, timeout_s: float) -> None:
        with contextlib.suppress(rs.ReplayError):
            self._server.stop(timeout=timeout_s)

    def watch(self) -> bool:
        """Starts the server again where it has ended. Takes as long as the snapshot takes to read."""
        if self._server.running:
            return False
        self._server = self._start_again()
        self._silent_since = None
        return True

    def _kill_silent(self) -> None:
        self._server.stop(timeout=0)

    def _start_again(self) -> rs.Server:
        """As `_start`, after the server has ended. Raises ConnectionLost where it ends too often."""
        status, words = self._server.returncode, self._last_words()
        self._server.stop(timeout=0)
        while True:
            if (deaths := self._deaths.count()) is not None:
                raise rs.ConnectionLost(f"it ended {deaths} times within a minute, with status {status}: {words}")
            self._say(f"server ended ({status}: {words}): starting it again")
            time.sleep(RESTART_DELAY_S)
            try:
                return self._start(urlsplit(self._server.url).port or 0)
            except rs.ServerError as error:
                status, words = "it does not start", str(error)

    def _start(self, port: int) -> rs.Server:
        if not (self._restores and self.snapshot.exists()):
            return rs.Server([self._table], port=port, **self._options)
        try:
            return rs.Server([self._table], port=port, restore=self.snapshot, **self._options)
        except rs.ServerError as error:
            if REFUSED not in str(error):
                raise
            aside = self.snapshot.with_name(ASIDE)
            self.snapshot.replace(aside)
            self._say(f"the replay that was saved does not come back: {error}; the file is {aside} now")
        return rs.Server([self._table], port=port, **self._options)

    def _last_words(self) -> str:
        lines = self._server.log().strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class ReplaySaver:
    """Has the job's replay saved every so often, from a thread: each whole new file replaces the one before.

    The server writes while it serves. Saving takes at most a tenth of the time, however often it is wanted. One slow
    save alone, during which the server was stopped, does not put off the next.
    """

    def __init__(self, replay: JobReplay, every_s: float) -> None:
        self._replay = replay
        self.news: deque[str] = deque()
        """What people should know."""
        self._every_s = every_s
        self._client = rs.Client(replay.local_url, connect_timeout=1.0, reconnect_timeout=0.5)
        self._wanted, self._saved = threading.Event(), threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="replay-saver", daemon=True)
        self._thread.start()

    def save_last(self) -> None:
        """Begins a last snapshot; see `wait`."""
        self._wanted.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether the last snapshot was saved, or has failed, in time."""
        return self._saved.wait(timeout_s)

    def close(self) -> None:
        """Ends the thread, and what it waits for."""
        self._closed = True
        self._wanted.set()
        self._client.close()
        self._thread.join(timeout=5)

    def told(self) -> str:
        """Where the replay is and how large, for people; "" where there is none."""
        files = self._replay.snapshots()
        try:
            found = [file.stat() for file in files]
        except OSError:
            return ""
        if not found:
            return ""
        age_s = max(0.0, time.time() - min(each.st_mtime for each in found))
        where = files[0] if len(files) == 1 else files[0].parent.parent
        return f"replay saved {age_s:.0f} s ago in {where} ({told_bytes(sum(each.st_size for each in found))})"

    def _run(self) -> None:
        pause_s, trouble = min(self._every_s, FIRST_SAVE_S), ""
        took_s = deque([0.0], maxlen=2)
        while True:
            last = self._wanted.wait(pause_s)
            if self._closed:
                break
            began = time.monotonic()
            before, trouble = trouble, self._save()
            if trouble and trouble != before:
                self.news.append(f"the replay could not be saved: {trouble}")
            if last:
                break
            took_s.append(time.monotonic() - began)
            pause_s = max(self._every_s, MOST_OF_THE_TIME * min(took_s))
        self._saved.set()

    def _save(self) -> str:
        """What went wrong, "" if nothing did. Of a server that is away the job tells by itself."""
        try:
            self._replay.keep_snapshot(Path(self._client.checkpoint(self._replay.snapshot_name)))
        except rs.ConnectionLost:
            return ""
        except rs.ReplayError as error:
            return str(error)
        return ""
