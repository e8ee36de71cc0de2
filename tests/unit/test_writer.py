"""Writers of steps: what items see, when they are sent, and what a lost connection leaves."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replay_server as rs
from replay_server._native import lib
from replay_server.buffer_streams import BufferStreams
from replay_server.driver import Operation
from replay_server.writer import VectorWriter

FRAME = (3, 2)
CODECS = [
    name
    for name, kind in (("none", lib.CODEC_NONE), ("lz4", lib.CODEC_LZ4), ("zstd", lib.CODEC_ZSTD))
    if lib.codec_available(kind)
]
"""What the build can compress steps with."""
SIGNATURE = {
    "frame": rs.Column("uint8", FRAME, step_only=True),
    "obs": rs.Window("frame", length=4),
    "action": rs.Column("int64"),
    "return": rs.Column("float32"),
    "next_obs": rs.Window("frame", length=4, offset=3),
    "rewards": rs.Window("reward", length=3, offset=2),
    "reward": rs.Column("float32"),
    "key": rs.Column("int64"),
}


def table(capacity: int = 1000, **parts: Any) -> rs.Table:
    return rs.Table("t", capacity, SIGNATURE, **{"sampler": rs.Uniform(), "seed": 1, **parts})


def step(value: int, **more: Any) -> dict[str, Any]:
    ordinary = {"frame": np.full(FRAME, value, np.uint8), "action": value, "reward": value / 2}
    return {**ordinary, "key": 1000 + value, **more}


def frames(batch: rs.Batch, name: str, at: int = 0) -> list[int]:
    assert (batch.data[name][at] == batch.data[name][at][:, :1, :1]).all()
    return batch.data[name][at][:, 0, 0].tolist()


# ---- one environment -------------------------------------------------------------------------------------------------


def test_an_item_sees_its_own_steps_and_those_after_it():
    buffer = rs.Buffer(table())
    with buffer.writer() as writer:
        for value in range(6):
            writer.append(step(value))
        writer.create_item(at=-4, columns={"return": 7.5})
        ids = writer.flush()
        batch = buffer.get(ids)
        assert list(batch.data) == ["obs", "action", "return", "next_obs", "rewards", "reward", "key"]
        assert frames(batch, "obs") == [0, 0, 1, 2]
        assert frames(batch, "next_obs") == [2, 3, 4, 5]
        assert batch.data["obs"].dtype == np.uint8
        assert batch.data["obs"].shape == (1, 4, *FRAME)
        assert batch.data["rewards"].tolist() == [[1.0, 1.5, 2.0]]
        assert [batch.data[name][0] for name in ("action", "return", "reward", "key")] == [2, 7.5, 1.0, 1002]


def test_a_step_that_lacks_columns_is_the_final_observation():
    buffer = rs.Buffer(table())
    with buffer.writer() as writer:
        for value in range(2):
            writer.append(step(value))
        writer.append({"frame": np.full(FRAME, 2, np.uint8)})
        writer.create_item(at=-2, columns={"return": 0.0})
        writer.append(step(10))
        writer.append(step(11))
        batch = buffer.get(writer.flush())
        assert frames(batch, "obs") == [0, 0, 0, 1]
        assert frames(batch, "next_obs") == [0, 0, 1, 2]
        assert batch.data["rewards"].tolist() == [[0.0, 0.5, 0.0]]  # the final one has no reward


def test_an_item_waits_for_the_steps_that_it_sees_or_for_the_end():
    buffer = rs.Buffer(table())
    with buffer.writer() as writer:
        writer.append(step(0))
        writer.create_item(columns={"return": 0.0})
        assert len(writer.flush()) == 0
        assert writer.waiting == 1
        for value in (1, 2):
            writer.append(step(value))
        assert len(writer.flush()) == 0
        writer.append(step(3))
        assert len(writer.flush()) == 1
        writer.create_item(columns={"return": 0.0})
        assert len(writer.flush()) == 0
        writer.end_episode()  # after its newest step was sent
        batch = buffer.get(writer.flush())
        assert frames(batch, "next_obs") == [0, 1, 2, 3]
        writer.append(step(20))
        writer.create_item(columns={"return": 0.0})
        writer.end_episode()  # before it was
        assert frames(buffer.get(writer.flush()), "next_obs") == [20] * 4


def test_steps_are_sent_by_themselves_when_enough_were_gathered():
    buffer = rs.Buffer(table())
    with buffer.writer(flush_steps=4) as writer:
        for value in range(4):
            writer.append(step(value))
            if value == 3:
                writer.create_item(at=-4, columns={"return": 0.0})
        assert buffer.info()["steps"] == 0
        writer.append(step(4))
        assert buffer.info()["steps"] == 4
        assert len(buffer) == 1
        assert len(writer.flush()) == 1


def test_priorities_given_and_not_given_go_in_order():
    buffer = rs.Buffer(table(sampler=rs.Prioritized(1.0)))
    with buffer.writer() as writer:
        for value in range(10):
            writer.append(step(value))
            writer.create_item(None if value in (3, 4) else 1.0 + value, columns={"return": 0.0})
        writer.end_episode()
        ids = writer.flush()
        keys = buffer.get(ids).data["key"]
        assert keys.tolist() == list(range(1000, 1010))
        # 3 and 4 took the maximum of what was there before them
        np.testing.assert_allclose(
            buffer.get(ids).probabilities * buffer.info()["total_priority"], [1, 2, 3, 3, 3, 6, 7, 8, 9, 10]
        )


def test_what_is_wrong_is_refused_and_nothing_is_taken():
    buffer = rs.Buffer(table())
    writer = buffer.writer()
    with pytest.raises(rs.SchemaError, match="has windows: its items are made from steps"):
        buffer.add({"action": np.zeros(1, np.int64)})
    with pytest.raises(rs.SchemaError, match="none was appended yet"):
        writer.create_item(columns={"return": 0.0})
    with pytest.raises(rs.SchemaError, match="first step of a writer must have column 'reward'"):
        writer.append({"frame": np.zeros(FRAME, np.uint8)})
    with pytest.raises(rs.SchemaError, match="'obs' is not a column of steps"):
        writer.append(step(0, obs=np.zeros(1)))
    with pytest.raises(rs.SchemaError, match=r"column 'frame' expects dtype uint8, got float64"):
        writer.append(step(0, frame=np.zeros(FRAME)))
    with pytest.raises(rs.SchemaError, match=r"expects shape \(N, 3, 2\), got \(1, 2, 3\)"):
        writer.append(step(0, frame=np.zeros((2, 3), np.uint8)))
    writer.append(step(0))
    with pytest.raises(rs.SchemaError, match="only the final observation"):
        writer.append({"frame": np.zeros(FRAME, np.uint8)}, final=False)
    for empty, got in (({}, "no columns"), ({"action": 1, "key": 2}, "action, key")):
        for final in (None, True):
            with pytest.raises(rs.SchemaError, match=f"expected some of frame, reward, got {got}; end_episode"):
                writer.append(empty, final=final)
    with pytest.raises(rs.SchemaError, match="'return' was not among those of the first append"):
        writer.append(step(0, **{"return": 0.0}))
    with pytest.raises(rs.SchemaError, match="from -1, the newest step, to -1, got -2"):
        writer.create_item(at=-2, columns={"return": 0.0})
    with pytest.raises(rs.SchemaError, match="from -1, the newest step, to -1, got 0"):
        writer.create_item(at=0, columns={"return": 0.0})
    with pytest.raises(rs.SchemaError, match="column 'return' is needed"):
        writer.create_item()
    with pytest.raises(rs.SchemaError, match="'frame' is not a column of items"):
        writer.create_item(columns={"return": 0.0, "frame": np.zeros(FRAME, np.uint8)})
    with pytest.raises(rs.PriorityError):
        writer.create_item(-1.0, columns={"return": 0.0})
    assert writer.waiting == 0
    writer.flush()
    assert buffer.info()["steps"] == 1
    writer.close()
    with pytest.raises(rs.ConnectionLost, match="closed"):
        writer.append(step(1))
    with pytest.raises(rs.SchemaError, match="has no windows"):
        rs.Buffer(rs.Table("t", 3, {"x": rs.Column("int8")})).writer()
    with pytest.raises(rs.SchemaError, match="flush_steps must be"):
        buffer.writer(flush_steps=0)
    with pytest.raises(rs.SchemaError, match="at most 65536"):
        buffer.writer(history=65_536)


def test_a_rate_limiter_that_holds_items_back_loses_none():
    buffer = rs.Buffer(table(sampler=rs.Fifo(), rate_limiter=rs.Queue(3), max_times_sampled=1))
    writer = buffer.writer(flush_steps=2, timeout=0)
    taken, reasons, seen = 0, set(), []
    for _ in range(100):
        try:
            writer.append(step(taken))
            writer.create_item(columns={"return": 0.0})
            taken += 1
        except rs.Timeout as error:
            reasons.add(error.reason.partition(":")[0])
            seen += buffer.sample(1, timeout=0).data["key"].tolist()
    assert taken > 20
    assert reasons == {"rate limiter"}
    writer.end_episode()
    while writer.waiting or len(buffer):
        with contextlib.suppress(rs.Timeout):
            writer.flush(timeout=0)
        if len(buffer):
            seen += buffer.sample(1, timeout=0).data["key"].tolist()
    assert seen == list(range(1000, 1000 + taken))


def test_items_that_a_full_queue_holds_back_keep_their_steps_however_often_append_is_called_again():
    buffer = rs.Buffer(rs.Table.queue("t", SIGNATURE, 16))
    seen: list[int] = []
    with buffer.writer(timeout=0.0, flush_steps=4) as writer:
        for value in range(200):
            refused = 0
            while True:
                with contextlib.suppress(rs.Timeout):
                    writer.append(step(value))
                    break
                refused += 1
                if refused > 40:  # more calls than the stream keeps steps
                    batch = buffer.sample(8, timeout=0)
                    seen += batch.data["action"].tolist()
                    for i, shown in enumerate(batch.data["action"]):
                        assert frames(batch, "obs", i) == [max(0, shown - back) for back in (3, 2, 1, 0)]
                        assert frames(batch, "next_obs", i) == list(range(shown, shown + 4))
            writer.create_item(columns={"return": 0.0})
        assert writer.waiting <= 16
        writer.close(flush=False)
    assert seen == list(range(len(seen)))
    assert len(seen) > 150


def test_a_writer_and_a_learner_do_not_hold_each_other_back_at_a_queue():
    on_policy = rs.Table.queue("t", SIGNATURE, 16)  # as many as the learner takes at once
    buffer = rs.Buffer(on_policy)
    with buffer.writer(timeout=0.0, flush_steps=12) as writer:
        for value in range(30):
            with contextlib.suppress(rs.Timeout):
                writer.append(step(value))
                writer.create_item(columns={"return": 0.0})
        writer.end_episode()
        with pytest.raises(rs.Timeout):
            writer.flush(timeout=0)
        assert len(buffer.sample(16, timeout=0).ids) == 16
        writer.flush(timeout=0)


def test_more_steps_than_a_request_holds_are_sent_in_pieces(monkeypatch):
    monkeypatch.setattr("replay_server.step_sender.MAX_STEP_BYTES", 5 * 14)
    buffer = rs.Buffer(table())
    sink = FaultySink(buffer)
    sizes = []
    monkeypatch.setattr(sink, "_lost", lambda where, lost=sink._lost: (sizes.append(where), lost(where)))
    with VectorWriter(buffer.table, sink, 3, flush_steps=4) as writer:
        for value in range(25):
            if value == 20:
                sink.lose = ["steps"]
            rows = {"frame": np.full((3, *FRAME), value, np.uint8), "reward": np.full(3, value, np.float32)}
            with contextlib.suppress(rs.ConnectionLost):
                writer.append(rows | {"action": np.arange(3), "key": np.arange(3)})
        with pytest.raises(rs.SchemaError, match="environment 0"):
            writer.create_items(at=-25, columns={"return": np.zeros(3, np.float32)})
        writer.create_items(at=-4, columns={"return": np.zeros(3, np.float32)})
        batch = buffer.get(writer.flush())
    # 24 steps of 3 environments: one append was refused when the line was cut.
    assert [frames(batch, "next_obs", i) for i in range(3)] == [[21, 22, 23, 24]] * 3
    assert len(sizes) > 24 * 3 // 5


@pytest.mark.parametrize("offset", [0, 16384])
def test_the_longest_windows_can_be_written_without_a_history_of_ones_own(offset):
    signature = {"frame": rs.Column("uint8", (), step_only=True), "w": rs.Window("frame", length=16384, offset=offset)}
    buffer = rs.Buffer(rs.Table("t", 10, signature))
    with buffer.writer() as writer:
        for value in (3, 7):
            writer.append({"frame": value})
        writer.create_item(at=-2)
        writer.end_episode()
        shown = buffer.get(writer.flush()).data["w"][0]
    assert shown.sum() == 16384 * 3 + (4 if offset else 0)


def test_steps_leave_with_the_last_item_that_sees_them():
    buffer = rs.Buffer(table(capacity=10))
    writer = buffer.writer(flush_steps=1, history=8)
    for value in range(200):
        writer.append(step(value % 250))
        writer.create_item(columns={"return": 0.0})
    writer.flush()
    info = buffer.info()
    assert info["size"] == 10
    assert info["steps"] < 40
    assert info["bytes"] == 10 * info["item_bytes"] + info["step_bytes"]
    assert info["streams"] == 1
    writer.close()
    assert buffer.info()["streams"] == 0
    assert buffer.info()["steps"] <= 10 + 6
    buffer.reset()
    assert buffer.info()["steps"] == 0


def test_the_streams_of_a_writer_that_was_dropped_are_given_back():
    buffer = rs.Buffer(table())
    writer = buffer.writer()
    writer.append(step(0))
    writer.flush()
    del writer
    gc.collect()
    with buffer.writer() as other:
        other.append(step(0))
        other.flush()
        assert buffer.info()["streams"] == 1


# ---- many environments, against explicit stacking --------------------------------------------------------------------


class Stacked:
    """Episodes of one environment as lists, and what an item shall show by gymnasium's frame stacking."""

    def __init__(self) -> None:
        self.episodes: list[list[int]] = [[]]

    def append(self, value: int) -> tuple[int, int]:
        self.episodes[-1].append(value)
        return len(self.episodes) - 1, len(self.episodes[-1]) - 1

    def end(self) -> None:
        if self.episodes[-1]:
            self.episodes.append([])

    def expected(self, where: tuple[int, int], length: int, offset: int) -> list[int]:
        episode, at = where
        values = self.episodes[episode]
        end = min(at + offset, len(values) - 1)
        return [values[max(0, end - length + 1 + i)] for i in range(length)]


class FaultySink(BufferStreams):
    """Loses its connection when told to, as a server does: before or after what was sent has arrived."""

    def __init__(self, buffer: rs.Buffer) -> None:
        super().__init__(buffer)
        self.lose: list[str] = []
        self.goes = threading.Event()
        self.goes.set()

    def _lost(self, where: str) -> None:
        if not self.goes.is_set():
            time.sleep(0.01)
            raise rs.Timeout("the test holds it back")
        if where in self.lose:
            self.lose.remove(where)
            self.close()
            raise rs.ConnectionLost("the test cut the line")

    def send_steps(self, *arguments: Any) -> Operation[None]:
        self._lost("steps")
        yield from super().send_steps(*arguments)

    def send_items(self, *arguments: Any) -> Operation[np.ndarray]:
        self._lost("items")
        ids = yield from super().send_items(*arguments)
        self._lost("reply")
        return ids


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "append", "final", "end", "flush", "send", "lose"]),
        st.lists(st.booleans(), min_size=3, max_size=3),
        st.integers(1, 6),
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, flush_steps=st.integers(1, 5), faults=st.booleans(), in_flight=st.sampled_from([0, 1, 3]))
def test_items_show_what_explicit_stacking_shows(operations, flush_steps, faults, in_flight):
    buffer = rs.Buffer(table(capacity=5000))
    sink = FaultySink(buffer)
    writer = VectorWriter(buffer.table, sink, 3, flush_steps=flush_steps, history=6, in_flight=in_flight)
    stacks = [Stacked() for _ in range(3)]
    items: dict[int, tuple[int, tuple[int, int]]] = {}
    newest: list[list[tuple[int, int]]] = [[], [], []]
    value, key, unsure = 0, 0, False
    told: list[int] = []

    def attempt(call: Any) -> Any:
        nonlocal unsure
        for _ in range(3):
            try:
                return call()
            except rs.ConnectionLost:
                unsure = True
        raise AssertionError("lost more often than it was told to")

    for kind, mask, number in operations:
        chosen = [i for i in range(3) if mask[i]]
        if kind in ("append", "final"):
            values = np.arange(value, value + 3) % 256
            value += 3
            data = {
                "frame": np.broadcast_to(values[:, None, None], (3, *FRAME)).astype(np.uint8),
                "reward": values.astype(np.float32),
            }
            attempt(lambda: writer.append(data, mask=mask, final=kind == "final"))  # noqa: B023
            for i in chosen:
                newest[i].append(stacks[i].append(int(values[i])))
                if kind == "final":
                    stacks[i].end()
            chosen = [i for i in chosen if len(newest[i]) >= number]
            make = [i in chosen for i in range(3)]
            keys = np.arange(key, key + 3)
            key += 3
            own = {"key": keys, "action": keys, "return": keys.astype(np.float32)}
            writer.create_items(None, -number, own, mask=make)
            items.update({int(keys[i]): (i, newest[i][-number]) for i in chosen})
        elif kind == "end":
            writer.end_episode(mask)
            for i in chosen:
                stacks[i].end()
        elif kind in ("flush", "send"):
            told += attempt(lambda: writer.flush(wait=kind == "flush")).tolist()  # noqa: B023
        elif faults:
            sink.lose = [["steps", "items", "reply"][number % 3]]
    sink.lose = []
    writer.end_episode()
    told += attempt(writer.flush).tolist()
    assert writer.waiting == 0
    writer.close()
    batch = buffer.sample(max(1, 4 * len(buffer)), timeout=0) if len(buffer) else None
    shown = {} if batch is None else dict(zip(batch.data["key"].tolist(), range(len(batch)), strict=True))
    assert set(shown) <= set(items)
    assert len(set(told)) == len(told) == len(buffer.get(told)), "each id was told once"
    assert unsure or len(told) == len(buffer) == len(items)
    for item, at in shown.items():
        i, where = items[item]
        assert frames(batch, "obs", at) == stacks[i].expected(where, 4, 0)
        assert frames(batch, "next_obs", at) == stacks[i].expected(where, 4, 3)
        assert batch.data["rewards"][at].tolist() == stacks[i].expected(where, 3, 2)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_whoever_appends_while_sends_are_due_overwrites_nothing_that_they_need(lost):
    """As far as a writer lets itself be filled, whether what is due goes through or is lost."""
    buffer = rs.Buffer(table())
    sink = FaultySink(buffer)
    writer = VectorWriter(buffer.table, sink, 1, flush_steps=4, history=1, in_flight=8, timeout=0.0)
    stack, where = Stacked(), []

    def fill() -> None:
        """Until it takes no more."""
        while True:
            value = len(where)
            frame = np.full((1, *FRAME), value, np.uint8)
            writer.append({"frame": frame, "reward": np.array([value], np.float32)})
            own = {"key": [value], "action": [value], "return": np.zeros(1, np.float32)}
            writer.create_items(columns=own)
            where.append(stack.append(value))

    sink.lose = ["steps"] * lost
    for failed in range(lost + 1):
        sink.goes.clear()
        with pytest.raises(rs.Timeout, match="8 sends due"):
            fill()
        assert len(where) >= 9 * 4 - 1
        sink.goes.set()
        if failed < lost:
            with pytest.raises(rs.ConnectionLost):
                writer.flush()
    writer.end_episode()
    writer.flush()
    shown = buffer.sample(4 * len(buffer), timeout=0)
    assert len(buffer) == len(where)
    for key, at in dict(zip(shown.data["key"].tolist(), range(len(shown)), strict=True)).items():
        assert frames(shown, "obs", at) == stack.expected(where[key], 4, 0)
        assert frames(shown, "next_obs", at) == stack.expected(where[key], 4, 3)
    writer.close()


def test_after_a_loss_waiting_and_later_items_show_what_they_should():
    """A writer whose connection broke made items that saw only what was appended after it."""
    buffer = rs.Buffer(table())
    sink = FaultySink(buffer)
    writer = VectorWriter(buffer.table, sink, 1, flush_steps=1)

    def append(value: int) -> None:
        writer.append({name: np.asarray([values]) for name, values in step(value).items() if name != "reward"} | {
            "reward": np.array([value], np.float32)
        })  # fmt: skip

    for value in range(5):
        append(value)
    writer.create_items(at=-2, columns={"return": [0.0]})
    writer.flush()
    sink.lose = ["steps"]
    append(5)
    with pytest.raises(rs.ConnectionLost):
        append(6)
    append(6)
    writer.create_items(at=-1, columns={"return": [0.0]})
    writer.end_episode()
    batch = buffer.get(writer.flush())
    assert [frames(batch, "obs", i) for i in range(2)] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert [frames(batch, "next_obs", i) for i in range(2)] == [[3, 4, 5, 6], [3, 4, 5, 6]]


# ---- real frames -----------------------------------------------------------------------------------------------------


def test_breakout_seen_through_windows_is_breakout_stacked():
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    environment = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    environment = gymnasium.wrappers.AtariPreprocessing(environment, noop_max=8, terminal_on_life_loss=True)
    environment = gymnasium.wrappers.FrameStackObservation(environment, 4)
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "obs": rs.Window("frame", length=4),
        **{f"after_{n}": rs.Window("frame", length=4, offset=n) for n in (1, 3, 10)},
        "key": rs.Column("int64"),
    }
    buffers = [
        rs.Buffer(rs.Table("breakout", 2000, signature, sampler=rs.Uniform(), seed=3, compression=codec))
        for codec in CODECS
    ]
    generator = np.random.default_rng(1)
    episodes: list[list[np.ndarray]] = []
    keys: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(buffer.writer()) for buffer in buffers]
        while len(keys) < 500:
            observation, _ = environment.reset(seed=len(episodes))
            episodes.append([])
            ended = False
            while not ended:
                episodes[-1].append(observation)
                for writer in writers:
                    writer.append({"frame": observation[-1], "key": len(keys)})
                    writer.create_item()
                keys.append((len(episodes) - 1, len(episodes[-1]) - 1))
                observation, _, terminated, truncated, _ = environment.step(int(generator.integers(4)))
                ended = terminated or truncated
            episodes[-1].append(observation)
            for writer in writers:
                writer.append({"frame": observation[-1]}, final=True)
    environment.close()
    assert len(episodes) >= 8
    for buffer in buffers:
        limit_bytes = 8000 if buffer.table.compression == "none" else 1500
        assert len(buffer) == len(keys)
        assert buffer.info()["bytes"] / len(keys) <= limit_bytes
        batch = buffer.sample(1200, timeout=0)
        assert len(set(batch.data["key"].tolist())) > 400
        for at, key in enumerate(batch.data["key"].tolist()):
            episode, number = keys[key]
            stacked = episodes[episode]
            np.testing.assert_array_equal(batch.data["obs"][at], stacked[number])
            for n in (1, 3, 10):
                np.testing.assert_array_equal(batch.data[f"after_{n}"][at], stacked[min(number + n, len(stacked) - 1)])
