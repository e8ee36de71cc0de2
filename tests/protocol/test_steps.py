"""REPLAY.APPEND, REPLAY.ITEM and REPLAY.CLOSE, byte by byte: what windows show, what is refused, when steps leave."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server._native import ffi, lib
from replay_server.codec import encode_command, pack

FIRST, LAST = 1, 2
_names = itertools.count()


def spec(shape: tuple[int, ...] = (3,), length: int = 4, offset: int = 2, **parts: Any) -> bytes:
    """Frames of steps; actions of steps and items; rewards of items; windows over frames and actions."""
    signature = {
        "frame": {"dtype": "uint8", "shape": list(shape), "step_only": True},
        "action": {"dtype": "int64", "shape": []},
        "reward": {"dtype": "float32", "shape": []},
        "obs": {"window": "frame", "length": length, "offset": 0},
        "next_obs": {"window": "frame", "length": length, "offset": offset},
        "last_action": {"window": "action", "length": 0, "offset": -1},
    }
    return pack({"capacity": 1000, "signature": signature, "sampler": "uniform", **parts})


class Steps:
    """A connection that appends to a table and remembers what a window must show."""

    def __init__(self, raw: Any, name: str, shape: tuple[int, ...] = (3,), length: int = 4, offset: int = 2) -> None:
        self.raw, self.name, self.shape, self.length, self.offset = raw, name, shape, length, offset
        self.random = np.random.default_rng(1)
        self.frames: dict[int, list[np.ndarray]] = {}
        self.actions: dict[int, list[int]] = {}
        self.first: dict[int, list[int]] = {}
        """Of each step: the number of the first of its episode."""
        self.open: dict[int, bool] = {}

    def append(self, streams: list[int], flags: list[int] | None = None, options: tuple[Any, ...] = ()) -> Any:
        n = len(streams)
        frames = self.random.integers(0, 256, (n, *self.shape), np.uint8)
        actions = self.random.integers(0, 1000, n)
        reply = self.raw.command(
            "REPLAY.APPEND", self.name, n, np.array(streams, np.uint32).tobytes(), bytes(flags or []), *options,
            "COLUMNS", 2, "frame", frames.tobytes(), "action", actions.tobytes(),
        )  # fmt: skip
        if reply == n:
            for i, stream in enumerate(streams):
                self._remember(stream, frames[i], int(actions[i]), flags[i] if flags else 0)
        return reply

    def _remember(self, stream: int, frame: np.ndarray, action: int, flag: int) -> None:
        frames, first = self.frames.setdefault(stream, []), self.first.setdefault(stream, [])
        begins = flag & FIRST or not self.open.get(stream)
        first.append(len(frames) if begins else first[-1])
        frames.append(frame)
        self.actions.setdefault(stream, []).append(action)
        self.open[stream] = not flag & LAST

    def send_items(self, streams: list[int], steps: list[int], options: tuple[Any, ...] = ()) -> None:
        self.raw.send(encoded(
            "REPLAY.ITEM", self.name, len(streams), np.array(streams, np.uint32).tobytes(),
            np.array(steps, np.uint64).tobytes(), b"", *options, "COLUMNS", 2,
            "reward", np.array(steps, np.float32).tobytes(), "action", np.array(streams, np.int64).tobytes(),
        ))  # fmt: skip

    def item(self, streams: list[int], steps: list[int], options: tuple[Any, ...] = ()) -> Any:
        self.send_items(streams, steps, options)
        reply = self.raw.reply()
        return np.frombuffer(reply, np.uint64) if isinstance(reply, bytes) else reply

    def window(self, stream: int, step: int, length: int, offset: int) -> np.ndarray:
        first = self.first[stream]
        last = max(number for number in range(len(first)) if first[number] == first[step])
        end = max(min(step + offset, last), first[step])
        return np.stack([self.frames[stream][max(end - k, first[step])] for k in reversed(range(length))])

    def expected(self, streams: list[int], steps: list[int]) -> dict[str, bytes]:
        pairs = list(zip(streams, steps, strict=True))
        back = [max(step - 1, self.first[stream][step]) for stream, step in pairs]
        return {
            "action": np.array(streams, np.int64).tobytes(),
            "reward": np.array(steps, np.float32).tobytes(),
            "obs": np.stack([self.window(*pair, self.length, 0) for pair in pairs]).tobytes(),
            "next_obs": np.stack([self.window(*pair, self.length, self.offset) for pair in pairs]).tobytes(),
            "last_action": np.array([self.actions[s][b] for s, b in zip(streams, back, strict=True)]).tobytes(),
        }

    def get(self, ids: np.ndarray) -> dict[str, bytes]:
        reply = self.raw.command("REPLAY.GET", self.name, np.asarray(ids).tobytes())
        assert isinstance(reply, list), reply
        return {name.decode(): blob for name, blob in zip(reply[3::2], reply[4::2], strict=True)}


@pytest.fixture
def make_steps(client, raw, open_raw, server):
    names = []

    def make(shape: tuple[int, ...] = (3,), length: int = 4, offset: int = 2, **parts: Any) -> Steps:
        name = f"steps-{next(_names)}"
        assert raw.command("REPLAY.CREATE", name, spec(shape, length, offset, **parts)) == "OK"
        names.append(name)
        return Steps(open_raw(server.url), name, shape, length, offset)

    yield make
    for name in names:
        client.drop_table(name)


@pytest.fixture
def steps(make_steps):
    return make_steps()


@pytest.mark.parametrize("shape", [(3,), (84, 84), (2048,)], ids=["small", "frames", "vectors"])
def test_what_windows_show_is_what_explicit_stacking_makes(make_steps, shape):
    steps = make_steps(shape)
    random = np.random.default_rng(3)
    for _ in range(40):
        streams = random.choice(6, size=random.integers(1, 9)).tolist()
        flags = random.choice([0, 0, 0, 0, FIRST, LAST, FIRST | LAST], size=len(streams)).tolist()
        assert steps.append(streams, flags) == len(streams)
    for stream in steps.frames:
        steps.append([stream], [LAST])
    pairs = [(stream, step) for stream, frames in steps.frames.items() for step in range(len(frames))]
    streams, numbers = [p[0] for p in pairs], [p[1] for p in pairs]
    ids = steps.item(streams, numbers)
    assert len(ids) == len(pairs) > 100
    assert steps.get(ids) == steps.expected(streams, numbers)
    shuffled = random.permutation(len(pairs))
    assert steps.get(ids[shuffled]) == steps.expected(*np.array(pairs)[shuffled].T.tolist())


def test_a_sample_has_items_and_windows_but_no_steps(client, steps):
    steps.append([0] * 8)
    steps.item([0] * 5, list(range(5)))
    reply = steps.raw.command("REPLAY.SAMPLE", steps.name, 7)
    assert [name.decode() for name in reply[3::2]] == ["action", "reward", "obs", "next_obs", "last_action"]
    numbers = np.frombuffer(reply[6], np.float32).astype(int).tolist()
    assert dict(zip([n.decode() for n in reply[3::2]], reply[4::2], strict=True)) == steps.expected([0] * 7, numbers)
    reply = steps.raw.command("REPLAY.SAMPLE", steps.name, 2, "COLUMNS", 1, "next_obs")
    assert len(reply) == 5
    refused = steps.raw.command("REPLAY.SAMPLE", steps.name, 2, "COLUMNS", 1, "frame")
    assert isinstance(refused, rs.SchemaError)
    assert "only through windows" in str(refused)


def test_large_replies_of_small_windows_are_whole(make_steps):
    """4 MB and more of pieces too small for a vector each."""
    steps = make_steps((300,), length=2)
    steps.append([1] * 200)
    ids = steps.item([1] * 100, list(range(100)))
    chosen = np.random.default_rng(0).integers(0, 100, 8000)
    assert steps.get(ids[chosen]) == steps.expected([1] * 8000, chosen.tolist())


def test_an_item_waits_for_nothing_it_cannot_see(steps):
    steps.append([0, 0])
    refused = steps.item([0], [0])
    assert isinstance(refused, rs.ServerError)
    assert "reaches to step 2" in str(refused)
    steps.append([0], [LAST])
    assert len(steps.item([0, 0, 0], [0, 1, 2])) == 3


def test_steps_that_a_stream_will_not_keep_need_no_room_in_max_bytes(make_steps):
    steps = make_steps(max_bytes=50_000)
    for history, fits in ((100, True), (20_000, False)):
        reply = steps.append([history] * 20_000, options=("HISTORY", history))
        assert (reply == 20_000) == fits
    assert "max_bytes" in str(reply)
    assert steps.append([3] * 50, options=("HISTORY", 100)) == 50  # nothing is left of what was refused


def test_an_append_is_answered_when_items_have_left_for_it_however_many(client, make_steps):
    """A remover that chooses at random lets thousands of items leave before the first step goes."""
    many, shown, most = 4000, 3992, 8000 * (48 + 12)
    steps = make_steps((40,), capacity=2 * many, remover="uniform", max_bytes=most)
    for first in (0, many):
        assert steps.append([0] * many, options=("HISTORY", many)) == many
        assert len(steps.item([0] * shown, list(range(first + 4, first + 4 + shown)))) == shown
    assert client.info(steps.name)["size"] == 2 * shown
    columns = ("COLUMNS", 2, "frame", bytes(1000 * 40), "action", bytes(1000 * 8))
    append = encoded("REPLAY.APPEND", steps.name, 1000, bytes(1000 * 4), b"", *columns)
    steps.raw.send(append + encoded("REPLAY.INFO", steps.name))
    assert steps.raw.reply() == 1000
    words = steps.raw.reply()
    info = dict(zip(words[::2], words[1::2], strict=True))
    assert info[b"size"] < 2 * shown - 2000
    assert info[b"bytes"] <= most
    assert len(steps.item([0], [2 * many])) == 1  # at once: it does not wait
    assert len(client.sample(steps.name, 8, timeout=0).ids) == 8


def test_items_are_made_all_or_none(client, steps):
    steps.append([0] * 4)
    assert isinstance(steps.item([0, 0, 1], [0, 1, 0]), rs.ServerError)
    assert isinstance(steps.item([0, 0], [0, 3]), rs.ServerError)
    info = client.info(steps.name)
    assert (info["size"], info["reserved_slots"]) == (0, 0)


def test_streams_belong_to_their_connection(steps, open_raw, server):
    other = Steps(open_raw(server.url), steps.name)
    steps.append([7] * 4)
    refused = other.item([7], [0])
    assert "stream 7 is not open on this connection" in str(refused)
    other.append([7] * 4)
    ids, others = steps.item([7], [1]), other.item([7], [1])
    assert steps.get(ids) == steps.expected([7], [1])
    assert other.get(others) == other.expected([7], [1])


def test_items_outlive_the_connection_that_appended_their_steps(steps, raw):
    steps.append([0] * 6)
    ids = steps.item([0, 0], [0, 3])
    expected = steps.expected([0, 0], [0, 3])
    steps.raw.close()
    steps.raw = raw
    assert steps.get(ids) == expected


def test_steps_leave_with_their_stream_and_their_items(client, steps, eventually):
    steps.append([0] * 20)
    ids = steps.item([0], [10])
    assert steps.raw.command("REPLAY.CLOSE", steps.name, np.array([0, 5], np.uint32).tobytes()) == 1
    eventually(lambda: client.info(steps.name)["steps"] == 6, "only the steps that the item sees are left")
    assert "not open" in str(steps.item([0], [10]))
    client.delete(steps.name, ids)
    assert client.info(steps.name)["steps"] == 0


def test_a_closed_number_begins_anew(steps):
    steps.append([0] * 5)
    steps.raw.command("REPLAY.CLOSE", steps.name, np.array([0], np.uint32).tobytes())
    for kept in (steps.frames, steps.actions, steps.first, steps.open):
        kept.clear()
    steps.append([0] * 3, [0, 0, LAST])
    ids = steps.item([0], [1])
    assert steps.get(ids) == steps.expected([0], [1])


def test_history_is_what_later_items_may_see(client, steps):
    steps.append([0] * 30, options=("HISTORY", 8))
    assert client.info(steps.name)["steps"] == 8
    assert "no longer among the last 8" in str(steps.item([0], [10]))
    assert len(steps.item([0], [27])) == 1
    steps.append([0] * 30, options=("HISTORY", 100))
    assert client.info(steps.name)["steps"] < 20, "the first append of a stream fixes its history"


def test_a_dropped_table_takes_its_streams_along(client, steps, raw):
    steps.append([0] * 5)
    client.drop_table(steps.name)
    assert isinstance(steps.append([0]), rs.TableNotFound)
    assert raw.command("REPLAY.CREATE", steps.name, spec()) == "OK"
    assert "not open" in str(steps.item([0], [0]))
    assert steps.append([0]) == 1


def test_an_item_that_waits_keeps_the_steps_it_sees(client, make_steps, open_raw, server, eventually):
    steps = make_steps(rate_limiter={"kind": "queue", "size": 2}, sampler="fifo")
    steps.append([0] * 10, options=("HISTORY", 8))
    steps.item([0, 0], [5, 6])
    other = Steps(open_raw(server.url), steps.name)
    other.append([3] * 10, options=("HISTORY", 8))
    other.send_items([3], [7], ("BLOCK", 0))
    eventually(lambda: client.info(steps.name)["waiting_add"] == 1, "the item waits")
    other.raw.send(encoded("REPLAY.CLOSE", steps.name, np.array([3], np.uint32).tobytes()))
    steps.raw.command("REPLAY.SAMPLE", steps.name, 1)
    ids = np.frombuffer(other.raw.reply(), np.uint64)
    assert other.raw.reply() == 1
    assert other.get(ids) == other.expected([3], [7])


def test_an_item_whose_wait_is_over_leaves_nothing_behind(client, make_steps):
    steps = make_steps(rate_limiter={"kind": "queue", "size": 1}, sampler="fifo")
    steps.append([0] * 10)
    steps.item([0], [5])
    assert isinstance(steps.item([0], [6], options=("BLOCK", 20)), rs.Timeout)
    assert isinstance(steps.item([0], [6]), rs.Timeout)
    assert client.info(steps.name)["reserved_slots"] == 0


def test_items_whose_client_hung_up_while_they_were_bound_wait_for_nothing(
    client, make_steps, open_raw, server, eventually
):
    count = 200_000
    steps = make_steps(capacity=2 * count, rate_limiter={"kind": "queue", "size": count}, sampler="fifo")
    steps.append([0] * 10)
    steps.item([0], [5])
    other = Steps(open_raw(server.url), steps.name)
    other.append([3] * 10, options=("HISTORY", 8))
    clients = client.redis.info("clients")["connected_clients"]
    other.send_items([3] * count, [7] * count, ("BLOCK", 0))
    other.raw.close()
    eventually(lambda: client.redis.info("clients")["connected_clients"] < clients, "the connection is closed")
    info = client.info(steps.name)
    assert (info["waiting_add"], info["size"]) == (0, 1)


def test_many_items_that_wait_keep_their_place(client, make_steps, open_raw, server, eventually):
    """More than are bound at once. Once the first who waits has entered, either the second or the third fits."""
    steps = make_steps(rate_limiter={"kind": "queue", "size": 1000}, sampler="fifo")
    steps.append([0] * 10)
    ids = steps.item([0] * 1000, [5] * 1000)
    others = []
    for count in (1, 999, 1):
        other = Steps(open_raw(server.url), steps.name)
        other.append([3] * 10)
        other.send_items([3] * count, [7] * count, ("BLOCK", 0))
        others.append(other)
        eventually(lambda: client.info(steps.name)["waiting_add"] == len(others), "the items wait")
    assert steps.raw.command("REPLAY.DEL", steps.name, ids.tobytes()) == 1000
    eventually(lambda: client.info(steps.name)["size"] == 1000, "the items of those who waited longest are there")
    assert [len(other.raw.reply()) for other in others[:2]] == [8, 999 * 8]
    assert client.info(steps.name)["waiting_add"] == 1


def encoded(*arguments: Any) -> bytes:
    from replay_server.codec import encode_command

    return b"".join(bytes(buffer) for buffer in encode_command(arguments))


U32 = np.array([0], np.uint32).tobytes()
U64 = np.array([0], np.uint64).tobytes()
FRAME, ACTION, REWARD = bytes(3), bytes(8), bytes(4)
GOOD_APPEND = ["REPLAY.APPEND", "NAME", 1, U32, b"", "COLUMNS", 2, "frame", FRAME, "action", ACTION]
GOOD_ITEM = ["REPLAY.ITEM", "NAME", 1, U32, U64, b"", "COLUMNS", 2, "reward", REWARD, "action", ACTION]


def changed(command: list[Any], at: int, *values: Any, drop: int = 1) -> list[Any]:
    return [*command[:at], *values, *command[at + drop :]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (changed(GOOD_APPEND, 2, 0), "an integer of at least 1"),
        (changed(GOOD_APPEND, 2, 2), "numbers of 2 streams as uint32, 8 bytes, got 4"),
        (changed(GOOD_APPEND, 3, np.array([65536], np.uint32).tobytes()), "0 to 65535, got 65536"),
        (changed(GOOD_APPEND, 4, b"\x00\x00"), "expected 1 flags as uint8, or none, got 2"),
        (changed(GOOD_APPEND, 4, b"\x04"), "expected flags of 1 .* got 4"),
        (changed(GOOD_APPEND, 5, "HISTORY", 0, "COLUMNS"), "HISTORY with a number of steps from 1"),
        (changed(GOOD_APPEND, 5, "HISTORY", 2, "COLUMNS"), "a history of 6 steps"),
        (changed(GOOD_APPEND, 5, "BLOCK", 0, "COLUMNS"), "expected REPLAY.APPEND table n streams flags"),
        (changed(GOOD_APPEND, 5, "INCARNATION", 3, "COLUMNS"), "created again"),
        (changed(GOOD_APPEND, 6, 1), r"must give 2 columns \(frame, action\), got 1"),
        (changed(GOOD_APPEND, 8, bytes(4)), r"expected 1 steps of uint8 \[3\], 3 bytes in all, got 4"),
        (changed(GOOD_APPEND, 7, "reward"), "column 'reward' belongs to items: send it with REPLAY.ITEM"),
        (changed(GOOD_APPEND, 7, "obs"), "column 'obs' is a window"),
        (changed(GOOD_APPEND, 7, "nope"), "has no column 'nope'"),
        (changed(GOOD_APPEND, 7, "action", ACTION, "action", ACTION, drop=4), "'action' is given twice"),
        (changed(GOOD_ITEM, 4, bytes(4)), "1 numbers of steps as uint64, 8 bytes, got 4"),
        (changed(GOOD_ITEM, 5, np.float64(-1).tobytes()), "priorities"),
        (changed(GOOD_ITEM, 5, bytes(4)), "1 priorities as float64, 8 bytes, or none, got 4"),
        (changed(GOOD_ITEM, 6, "HISTORY", 8, "COLUMNS"), "expected REPLAY.ITEM table n streams steps priorities"),
        (changed(GOOD_ITEM, 8, "frame"), "column 'frame' belongs to steps: send it with REPLAY.APPEND"),
        (GOOD_ITEM, "stream 0 is not open"),
        (["REPLAY.ADD", "NAME", 1, b"", "COLUMNS", 2, "reward", REWARD, "action", ACTION], "with REPLAY.APPEND"),
        (["REPLAY.CLOSE", "NAME", b"123"], "as uint32"),
    ],
)
def test_refusals_say_what_was_expected_and_change_nothing(client, steps, command, words):
    before = client.info(steps.name)
    reply = steps.raw.command(*[steps.name if part == "NAME" else part for part in command])
    with pytest.raises(rs.ReplayError, match=words):
        raise reply
    assert client.info(steps.name) == before
    assert steps.append([0] * 3) == 3, "the connection is in step"
    assert len(steps.item([0], [0])) == 1


def test_a_table_without_windows_takes_no_steps(raw, table):
    for command in (GOOD_APPEND, GOOD_ITEM):
        assert "no windows" in str(raw.command(*[table if part == "NAME" else part for part in command]))


def test_streams_of_one_connection_are_bounded(client, steps):
    streams = list(range(4096))
    assert steps.append(streams, options=("HISTORY", 8)) == 4096
    refused = steps.append([1, 5000], options=("HISTORY", 8))
    assert isinstance(refused, rs.LimitExceeded)
    assert "4096 streams open" in str(refused)
    assert client.info(steps.name)["streams"] == 4096
    assert steps.raw.command("REPLAY.CLOSE", steps.name, np.array([17], np.uint32).tobytes()) == 1
    assert steps.append([5000], options=("HISTORY", 8)) == 1


def test_streams_opened_right_after_others_were_closed_find_the_room_of_those(client, steps):
    table, many = steps.name, 2000
    history = (1 << 22) // many  # all that a table keeps for streams
    numbers = np.arange(many, dtype=np.uint32)

    def append(first: int) -> Any:
        frames, actions = bytes(3 * many), bytes(8 * many)
        columns = ("COLUMNS", 2, "frame", frames, "action", actions)
        return steps.raw.command(
            "REPLAY.APPEND", table, many, (numbers + first).tobytes(), "", "HISTORY", history, *columns
        )  # fmt: skip

    assert append(0) == many
    assert isinstance(append(many), rs.LimitExceeded)
    for repeat in range(3):
        assert steps.raw.command("REPLAY.CLOSE", table, (numbers + many * repeat).tobytes()) == many
        assert append(many * (repeat + 1)) == many
    assert client.info(table)["streams"] == many


def test_a_refused_append_opens_no_stream(client, make_steps):
    steps = make_steps(max_bytes=200)
    assert isinstance(steps.append(list(range(100))), rs.LimitExceeded)
    assert client.info(steps.name)["streams"] == 0


def test_a_connection_that_breaks_in_the_middle_leaves_nothing(client, make_steps, open_raw, server, eventually):
    steps = make_steps((84, 84))
    frames = bytes(10 * 84 * 84)
    request = encoded("REPLAY.APPEND", steps.name, 10, np.zeros(10, np.uint32).tobytes(), b"", "COLUMNS", 2,
                      "frame", frames, "action", bytes(80))  # fmt: skip
    for cut in (40, 150, 200, 30_000, len(request) - 90, len(request) - 1):
        broken = open_raw(server.url)
        broken.send(request[:cut])
        broken.close()
    eventually(lambda: int(client.redis.info("clients")["connected_clients"]) <= 4, "the broken ones are noticed")
    info = client.info(steps.name)
    assert (info["steps"], info["streams"]) == (0, 0)


# ---- compression -----------------------------------------------------------------------------------------------------

CODECS = [name for name in ("lz4", "zstd") if lib.codec_available(getattr(lib, f"CODEC_{name.upper()}"))]


def blocks_of(codec: str, steps: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Steps (n, …) as a client sends them with CODED: sizes uint32 (n,), and the blocks."""
    coder = ffi.gc(lib.codec_new(getattr(lib, f"CODEC_{codec.upper()}")), lib.codec_free)
    plain = np.ascontiguousarray(steps).reshape(len(steps), -1).view(np.uint8)
    sizes, blocks = np.empty(len(steps), np.uint32), np.empty(plain.size, np.uint8)
    length = lib.codec_encode_steps(
        coder, ffi.from_buffer("uint8_t[]", plain.reshape(-1)), len(steps), plain.shape[1],
        ffi.from_buffer("uint32_t[]", sizes), ffi.from_buffer("uint8_t[]", blocks),
    )  # fmt: skip
    return sizes, blocks[:length].tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_steps_show_what_plain_ones_do(client, make_steps, codec):
    steps = make_steps((84, 84), compression=codec)
    assert client.table(steps.name).compression == codec
    random = np.random.default_rng(3)
    for _ in range(20):
        streams = random.choice(4, size=random.integers(1, 9)).tolist()
        flags = random.choice([0, 0, 0, 0, FIRST, LAST], size=len(streams)).tolist()
        assert steps.append(streams, flags) == len(streams)
    for stream in steps.frames:
        steps.append([stream], [LAST])
    pairs = [(stream, step) for stream, frames in steps.frames.items() for step in range(len(frames))]
    streams, numbers = [p[0] for p in pairs], [p[1] for p in pairs]
    assert steps.get(steps.item(streams, numbers)) == steps.expected(streams, numbers)


@pytest.mark.parametrize("codec", CODECS)
def test_many_steps_are_compressed_in_slices_and_other_clients_are_served(client, make_steps, raw, codec):
    steps = make_steps((84, 84), compression=codec)
    n = 800
    frames = np.random.default_rng(5).integers(0, 4, (n, 84, 84), np.uint8)
    arguments = [
        "REPLAY.APPEND", steps.name, n, np.zeros(n, np.uint32).tobytes(), b"", "HISTORY", 1000,
        "COLUMNS", 2, "frame", frames.tobytes(), "action", np.arange(n).tobytes(),
    ]  # fmt: skip
    steps.raw.send(b"".join(encode_command(arguments)))
    assert raw.command("PING") == "PONG"
    assert steps.raw.reply() == n
    ids = steps.item([0, 0], [3, 700])
    shown = np.frombuffer(steps.get(ids)["obs"], np.uint8).reshape(2, 4, 84, 84)
    np.testing.assert_array_equal(shown, [frames[0:4], frames[697:701]])
    info = client.info(steps.name)
    assert info["steps"] == n
    assert info["step_bytes"] < 0.8 * n * 84 * 84


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_a_client_are_looked_into(client, make_steps, codec):
    steps = make_steps((84, 84), compression=codec)
    frames = np.zeros((2, 84, 84), np.uint8)
    frames[:, 10:20] = 7
    sizes, blocks = blocks_of(codec, frames)
    actions, own = np.arange(2), np.full(2, 8, np.uint32)

    def append(blocks: bytes) -> Any:
        return steps.raw.command(
            "REPLAY.APPEND", steps.name, 2, np.zeros(2, np.uint32).tobytes(), bytes([0, LAST]), "CODED", "COLUMNS", 2,
            "frame", sizes.tobytes() + blocks, "action", own.tobytes() + actions.tobytes(),
        )  # fmt: skip

    damaged = bytearray(blocks)
    damaged[sizes[0]] ^= 0x80
    damaged[sizes[0] + 1] ^= 0x55
    refusal = append(bytes(damaged))
    assert isinstance(refusal, rs.SchemaError)
    assert "at index 1 that is none" in str(refusal)
    assert client.info(steps.name)["steps"] == 0
    assert append(blocks) == 2
    ids = steps.item([0], [1])
    shown = np.frombuffer(steps.get(ids)["obs"], np.uint8).reshape(4, 84, 84)
    np.testing.assert_array_equal(shown, frames[[0, 0, 0, 1]])
