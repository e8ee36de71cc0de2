"""What a part of a job on many machines shows while it works: what `apex` shows, as the server tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from redis.exceptions import RedisError

import replay_server as rs
from replay_server.jobs.progress import Snapshot, View, make_view
from replay_server.rl.connection import LOST
from replay_server.rl.run_directory import NOT_WRITTEN
from replay_server.rl.settings import ApexSettings

LOOK_EVERY_S = 0.5

Look = Callable[[rs.Client, Callable[[str], None]], None]
"""Brings the snapshot up to date; says what is worth a line of its own."""


class PartReport:
    """Looks at the job in a thread beside the part's own work, and shows it; a context manager.

    It also shows how things were when the work ended, however soon that was. An outage of the server is said once, and
    is the part's to end for.

    Args:
        server_url: of the job's server.
        settings: of the job.
        part: what works here.
        snapshot: what is shown.
        look: called every `LOOK_EVERY_S` seconds.
    """

    def __init__(self, server_url: str, settings: ApexSettings, part: str, snapshot: Snapshot, look: Look) -> None:
        self._server_url, self._table, self._snapshot, self._look = server_url, settings.table, snapshot, look
        self._view: View = make_view(f"{settings.env} seed {settings.seed} {part}")
        self._left = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def __enter__(self) -> PartReport:
        self._view.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        self._thread.join()  # its client's timeouts bound it
        self._view.__exit__(*exception)

    def say(self, text: str) -> None:
        """Shows a line of its own."""
        self._view.message(text)

    def _run(self) -> None:
        with rs.Client(self._server_url, connect_timeout=2.0, socket_timeout=10.0, reconnect_timeout=0.5) as client:
            while not self._left.wait(LOOK_EVERY_S):
                self._tell_trouble(self._look_once(client))
            if not self._trouble:
                self._look_once(client)

    def _look_once(self, client: rs.Client) -> str:
        """What is in the way of a look, "" if nothing is."""
        try:
            self._look(client, self.say)
        except rs.TableNotFound:
            return f"waiting for table {self._table}"
        except (rs.ReplayError, RedisError, *LOST) as error:
            return f"waiting for the server: {error}"
        except OSError as error:
            return f"{NOT_WRITTEN}: {error}"
        self._view.show(self._snapshot)
        return ""

    def _tell_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble and not self._left.is_set():
            self.say(trouble)
        self._trouble = trouble
