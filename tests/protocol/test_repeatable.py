"""What a client may send again after a lost connection: each of its commands is decided here, one by one.

A command that is repeated although it changes something twice stores items twice, and nobody notices. So this table is
complete by force: a command without an entry fails, and so does an entry that the code does not follow.
"""

from __future__ import annotations

import contextlib
import inspect
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import commands, gradients
from replay_server.batch import new_batch
from replay_server.commands import Command, ServedTable
from replay_server.options import SampleOptions
from replay_server.shared_memory import Arena

PLAIN = ServedTable(rs.Table("t", 10, {"k": rs.Column("int64")}), 1)
STEPS = ServedTable(rs.Table("s", 10, {"k": rs.Column("int64"), "w": rs.Window("k", length=2)}), 1)
IDS, ONE, NUMBERS = np.array([1], np.uint64), np.ones(1), np.array([0], np.uint32)
COLUMN = {"k": np.array([1], np.int64)}


class Returned(Arena):
    """An arena of which a lease was given back."""

    def __init__(self) -> None:
        pass

    def take_returned(self) -> list[int]:
        return [1]


# name of the function → how it is called, whether its command may be sent again, and why.
DECIDED: dict[str, tuple[Callable[[], Command[Any] | None], bool, str]] = {
    "greet": (lambda: commands.greet("here", None, None, "the URL"), True, "changes the connection alone"),
    "is_a_primary": (commands.is_a_primary, True, "only asks"),
    "fence": (lambda: commands.fence(0, ""), True, "what was told stays told"),
    "share_socket": (commands.share_socket, True, "tells a name, and makes a nonce that nobody has to use"),
    "prove": (lambda: commands.prove("n"), False, "a nonce counts once"),
    "share": (lambda: commands.share(0), False, "the memory is of the connection that was lost"),
    "release_returned": (lambda: commands.release_returned(Returned()), True, "a lease that has gone is passed over"),
    "create": (lambda: commands.create(PLAIN.table), True, "the same table again is fine"),
    "spec": (lambda: commands.spec("t"), True, "reads"),
    "tables": (commands.tables, True, "reads"),
    "drop": (lambda: commands.drop("t"), False, "the second would drop a table made meanwhile, or find none"),
    "close_table": (lambda: commands.close_table("t", None), True, "a closed table stays closed"),
    "open_table": (lambda: commands.open_table("t"), True, "an open table stays open"),
    "reset": (lambda: commands.reset("t"), False, "the second would remove what was added meanwhile"),
    "configure": (lambda: commands.configure("t", max_times_sampled=1), True, "sets the same values"),
    "checkpoint": (commands.checkpoint, True, "another file of the same tables does no harm"),
    "restore": (lambda: commands.restore("f"), False, "the second would remove what was added meanwhile"),
    "info": (lambda: commands.info("t"), True, "reads"),
    "await_items": (lambda: commands.await_items("t", since=0, timeout=0), True, "reads"),
    "add": (lambda: commands.add(PLAIN, 1, [COLUMN["k"]], None, 0), False, "the items would be stored twice"),
    "append": (lambda: commands.append(STEPS, NUMBERS, NUMBERS, COLUMN, 1), False, "the steps would be stored twice"),
    "items": (lambda: commands.items(STEPS, NUMBERS, IDS, None, {}, 0), False, "the items would be stored twice"),
    "end_episodes": (lambda: commands.end_episodes("s", NUMBERS), False, "the streams went with the connection"),
    "sample": (
        lambda: commands.sample(PLAIN, 1, new_batch(PLAIN.table, 1), SampleOptions()),
        True,
        "a batch that got lost counts as sampled, as one that its learner loses does",
    ),
    "get": (lambda: commands.get(PLAIN, IDS, new_batch(PLAIN.table, 1)), True, "reads"),
    "update": (lambda: commands.update("t", IDS, ONE), True, "sets the same priorities"),
    "delete": (lambda: commands.delete("t", IDS), False, "the second would count fewer"),
    "publish_weights": (
        lambda: commands.publish_weights("w", COLUMN, None),
        False,
        "the second would be another version, or refused as published already",
    ),
    "fetch_weights": (lambda: commands.fetch_weights("w", None), True, "reads"),
    "push": (lambda: gradients.push("g", 1, "n", np.ones(1, np.float32), None), True, "its name makes it one"),
    "take": (lambda: gradients.take("g", 1), True, "what is taken goes on waiting"),
    "take_headers": (lambda: gradients.take_headers("g"), True, "reads"),
    "await_taken": (lambda: gradients.await_taken("g", ["n"], 0, 0), True, "reads"),
    "publish": (
        lambda: gradients.publish("g", ["n"], 1, {"w": COLUMN}),
        False,
        "the second would be refused as published already, which tells nothing of the first",
    ),
    "gradients.drop": (lambda: gradients.drop("g", ["n"]), True, "what was dropped stays dropped"),
    "states": (lambda: gradients.states("g", ["n"]), True, "reads"),
    "gradients.info": (lambda: gradients.info("g"), True, "reads"),
    "keys": (gradients.keys, True, "reads"),
    "gradients.delete": (lambda: gradients.delete("g"), True, "what has gone is passed over"),
}


def made_here(module: Any) -> set[str]:
    """The functions of a module that make a command of their own."""
    found = set()
    for name, function in inspect.getmembers(module, inspect.isfunction):
        told = str(inspect.signature(function).return_annotation)
        if function.__module__ == module.__name__ and told.startswith("Command[") and not name.startswith("_"):
            found.add(name)
    return found


def test_every_command_is_decided():
    mine, theirs = made_here(commands) - {"plain", "any_command"}, made_here(gradients)
    assert len(mine) >= 27
    assert len(theirs) >= 10
    known = mine | {f"gradients.{name}" if f"gradients.{name}" in DECIDED else name for name in theirs}
    assert known == set(DECIDED), "decide whether it may be sent again after a loss, and say why"


@pytest.mark.parametrize("name", DECIDED)
def test_a_command_is_sent_again_where_that_is_decided(name):
    make, repeatable, _ = DECIDED[name]
    command = make()
    assert command is not None
    assert command.repeatable is repeatable


@pytest.mark.parametrize("repeatable", [False, True])
def test_any_command_is_sent_again_where_its_caller_says_so(repeatable):
    assert commands.any_command("PING", repeatable=repeatable).repeatable is repeatable


# ---- the same, seen by a server that hangs up ------------------------------------------------------------------------

SPEC = rs.Table("t", 10, {"k": rs.Column("int64")})
STEPS_SPEC = rs.Table("s", 10, {"k": rs.Column("int64"), "w": rs.Window("k", length=2)})


class HangsUp:
    """Hands every byte on to a real server and back, but ends the connection at the first request of one name."""

    def __init__(self, server: rs.Server, name: str) -> None:
        self._port = int(server.url.rpartition(":")[2])
        self._name = name.encode()
        self.seen = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._forward, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(far, near, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with source, target:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    if asks and self._name in data:
                        self.seen += 1
                        if self.seen == 1:
                            break
                    target.sendall(data)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def written(client: rs.Client) -> None:
    with client.writer("s", flush_steps=1) as writer:
        writer.append({"k": 1})
        writer.create_item()
        writer.flush()


CALLS: dict[str, tuple[Callable[[rs.Client], Any], bool]] = {
    "REPLAY.ADD": (lambda client: client.add("t", {"k": [1]}), False),
    "REPLAY.APPEND": (written, False),
    "REPLAY.ITEM": (written, False),
    "REPLAY.DEL": (lambda client: client.delete("t", IDS), False),
    "REPLAY.RESET": (lambda client: client.reset("t"), False),
    "REPLAY.DROP": (lambda client: client.drop_table("t"), False),
    "WEIGHTS.PUBLISH": (lambda client: client.publish_weights("w", COLUMN), False),
    "REPLAY.SAMPLE": (lambda client: client.sample("t", 1), True),
    "REPLAY.UPDATE": (lambda client: client.update_priorities("t", IDS, ONE), True),
    "WEIGHTS.GET": (lambda client: client.fetch_weights("w"), True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_request_that_a_server_hung_up_on_comes_again_only_where_it_may(name):
    call, repeatable = CALLS[name]
    with rs.Server([SPEC, STEPS_SPEC]) as server, rs.Client(server.url) as direct:
        direct.add("t", {"k": [5]})
        proxy = HangsUp(server, name)
        with rs.Client(proxy.url) as client:
            if repeatable:
                call(client)
                assert proxy.seen == 2
            else:
                with pytest.raises(rs.ConnectionLost):
                    call(client)
                assert proxy.seen == 1
        proxy.close()
