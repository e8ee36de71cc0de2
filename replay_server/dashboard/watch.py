"""All that is watched at once: servers by URL, run directories, and the servers of the jobs found in them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from replay_server.cluster_address import is_cluster_url, parse_address
from replay_server.connection import PASSWORD_VARIABLE, url_with_password
from replay_server.dashboard.cluster_source import ClusterSource
from replay_server.dashboard.run_source import RunSource, runs_below
from replay_server.dashboard.server_source import ServerSource

EVERY_S = 1.0
LOOK_S = 0.3
"""Seconds that reading run directories may take at a time; what is left comes with the next look."""
SEARCH_EVERY_S = 5.0
"""Seconds between two searches for new run directories in the folders given."""
MOST_RUNS = 32
"""Run directories shown of a folder, the newest."""


class Watch:
    """Sources, looked at together; the same for any number of viewers.

    Args:
        urls: servers.
        folders: run directories, or folders of such.
        compare: an earlier run directory, drawn beside the others.
        password: of servers whose URL has none.
    """

    def __init__(
        self, urls: Sequence[str], folders: Sequence[Path], compare: Path | None = None, password: str | None = None
    ) -> None:
        self._password = password
        self.servers: list[ServerSource] = []
        self._former: list[ServerSource] = []
        self._last_servers: dict[Path, tuple[ServerSource, str]] = {}
        """Of each run its server, and the process that this was, as long as the run went on."""
        self.runs: list[RunSource] = []
        self.compare = RunSource(compare) if compare is not None else None
        self._folders = list(folders)
        self._search_at = 0.0
        self._given = {self.server(url).name for url in urls}
        self.search()

    def server(self, url: str) -> ServerSource:
        """The source of a URL, a new one where there is none yet."""
        full = url if "@" in url or self._password is None else url_with_password(url, self._password)
        name = str(parse_address(full))
        for source in self.servers:
            if source.name == name:
                return source
        source = ClusterSource(full) if is_cluster_url(full) else ServerSource(full)
        source.number = len(self.servers) + len(self._former)
        self.servers.append(source)
        return source

    def server_of(self, run: RunSource) -> ServerSource | None:
        """The source of a run's server, None where there is none; of one that has ended, as it was seen last."""
        if run.server is None:
            return None
        if run.state in ("ended", "killed"):
            source, process = self._last_servers.get(run.path, (None, ""))
            # Another server may have its address by now, and what that has is not this job's.
            return source if source is not None and source.process == process else None
        with contextlib.suppress(ValueError):
            source = self.server(run.server)
            self._last_servers[run.path] = (source, source.process)
            return source
        return None

    def server_numbered(self, number: int) -> ServerSource | None:
        """The source of a page's number, of a server that is asked no more, too."""
        return next((each for each in (*self.servers, *self._former) if each.number == number), None)

    def _part_with(self) -> None:
        """Servers that were found by their jobs alone are asked no more when those have ended: they went with them."""
        wanted = {*self._given, *(run.server_name for run in self.runs if run.state in ("running", "unknown"))}
        for source in [each for each in self.servers if each.name not in wanted]:
            source.close()
            self.servers.remove(source)
            self._former.append(source)

    def search(self) -> None:
        """Looks for new run directories; those that were removed stay as they were."""
        known = {run.path for run in self.runs}
        for folder in self._folders:
            for path in runs_below(folder, MOST_RUNS):
                if path.resolve() not in known and (self.compare is None or path.resolve() != self.compare.path):
                    run = RunSource(path)
                    run.look()
                    # Its page's address: the folder's name, with a number where two are called the same.
                    taken = sum(each.name == run.name for each in self.runs)
                    run.key = f"{run.name}.{taken + 1}" if taken else run.name
                    self.runs.append(run)
        self.runs.sort(key=lambda run: run.began_s, reverse=True)

    def look(self) -> None:
        """Looks at everything once, one after the other, whatever there is to read."""
        self.look_at_files()
        for run in self.runs:
            while run.behind:
                run.look()
        for source in list(self.servers):
            source.take(source.look())

    def look_at_files(self) -> None:
        """Reads what is new in run directories."""
        if time.monotonic() >= self._search_at:
            self._search_at = time.monotonic() + SEARCH_EVERY_S
            self.search()
        begin = time.monotonic()
        # Those that are live first.
        runs = sorted(self.runs, key=lambda run: run.state != "running")
        for run in [*runs, *([self.compare] if self.compare is not None else [])]:
            if time.monotonic() - begin > LOOK_S:
                break
            if run.state in ("running", "unknown") or run.looks < 2 or run.changed():
                run.look()
        # What time is left goes to those of whose long files there is more to read.
        for run in [*runs, *([self.compare] if self.compare is not None else [])]:
            while run.behind and time.monotonic() - begin < LOOK_S:
                run.look()
        for run in runs:
            self.server_of(run)
        self._part_with()

    async def run(self) -> None:
        """Looks at everything once a second until cancelled; servers at the same time, each in a thread of its own."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.look_at_files()
            sources = list(self.servers)
            for source, reading in zip(sources, await asyncio.gather(*(asyncio.to_thread(s.look) for s in sources))):
                source.take(reading)
            due = max(due + EVERY_S, loop.time() + 0.1)
            await asyncio.sleep(due - loop.time())

    def close(self) -> None:
        """Closes the connections."""
        for source in self.servers:
            source.close()


def password_from_environment() -> str | None:
    """The password of servers whose URL has none."""
    return os.environ.get(PASSWORD_VARIABLE) or None
