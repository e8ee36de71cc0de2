"""Snapshots of a server in use: what is saved, what comes back, what is refused, and what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}
LIMITERS = {
    "min-size": rs.MinSize(3),
    "ratio": rs.SampleToInsertRatio(2.0, 5, 200.0),
    "queue": rs.Queue(100),
}


def tables() -> list[rs.Table]:
    """Tables of every sampler and limiter."""
    made = []
    for name, limiter in LIMITERS.items():
        sampler = rs.Fifo() if name == "queue" else rs.Prioritized(0.6)
        made.append(rs.Table(name, 500, SIGNATURE, sampler=sampler, rate_limiter=limiter))
    made.append(rs.Table("uniform", 300, SIGNATURE, sampler=rs.Uniform(), max_times_sampled=4))
    made.append(rs.Table("fifo", 200, SIGNATURE, sampler=rs.Fifo(), max_bytes=3200))
    return made


def use(client: rs.Client, items) -> None:
    """Adds, samples, updates and removes in each table."""
    random = np.random.default_rng(7)
    for name in client.tables():
        for i in range(6):
            ids = client.add(name, items(*range(10 * i, 10 * i + 10)), random.uniform(0, 9, 10))
            batch = client.sample(name, 8)
            client.update_priorities(name, batch.ids[:4], random.uniform(0, 9, 4))
            if name != "queue":
                client.delete(name, ids[:1])


def state(client: rs.Client) -> dict[str, dict]:
    """Everything that a restore must bring back: INFO but for the incarnation and the process."""
    return {name: {**client.info(name), "incarnation": None} for name in client.tables()}


@pytest.fixture
def saved(tmp_path: Path, items):
    """A used server's snapshot, its state, and ids of items that it holds."""
    with rs.Server(tables(), directory=tmp_path) as server, rs.Client(server.url) as client:
        use(client, items)
        before = state(client)
        path = Path(client.checkpoint())
        assert state(client) == before
    return path, before


# ---- saving and restoring --------------------------------------------------------------------------------------------


def test_a_new_server_goes_on_where_the_saved_one_stood(saved, tmp_path):
    path, before = saved
    assert path.parent == tmp_path
    for restore in ("latest", path, path.name):
        with rs.Server(tables(), directory=tmp_path, restore=restore) as server, rs.Client(server.url) as client:
            assert state(client) == before
            assert "table 'ratio'" in server.log()
            assert "is lost" in server.log()
            assert client.redis.info("persistence")["restored_from"].endswith(path.name)


def test_tables_come_back_without_being_configured(saved, tmp_path):
    path, before = saved
    with rs.Server(directory=tmp_path, restore=path) as server, rs.Client(server.url) as client:
        assert state(client) == before


def test_items_ids_and_priorities_survive(tmp_path, items):
    table = rs.Table("t", 50, SIGNATURE, sampler=rs.Prioritized(1.0))
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        old = client.add("t", items(*range(20)))
        ids = client.add("t", items(*range(100, 140)), np.arange(40) + 0.5)
        before = client.get("t", ids)
        client.checkpoint()
    with rs.Server([table], directory=tmp_path, restore="latest") as server, rs.Client(server.url) as client:
        after = client.get("t", ids)
        for name in SIGNATURE:
            np.testing.assert_array_equal(before.data[name], after.data[name])
        np.testing.assert_array_equal(before.probabilities, after.probabilities)
        applied, stale = client.update_priorities("t", np.concatenate([old, ids]), np.ones(60))
        assert (applied, stale) == (50, 10)  # the ten oldest had left before
        new = client.add("t", items(1, 2, 3))
        assert not set(new) & set(old) | set(new) & set(ids)


def test_limiters_go_on_counting(saved, tmp_path, items):
    path, before = saved
    with rs.Server(directory=tmp_path, restore=path) as server, rs.Client(server.url) as client:
        size = before["queue"]["size"]
        assert size == 12  # 60 added, 48 drawn
        client.add("queue", items(*range(100 - size)), timeout=0)
        with pytest.raises(rs.Timeout, match="waits for room"):
            client.add("queue", items(1), timeout=0)
        batch = client.sample("queue", 5)
        np.testing.assert_array_equal(batch.data["k"], np.arange(48, 53))  # the oldest, in order


def test_limits_given_now_win_and_that_is_said(saved, tmp_path):
    path, before = saved
    changed = tables()
    changed[0] = rs.Table("min-size", 500, SIGNATURE, rate_limiter=rs.MinSize(400))
    with rs.Server(changed, directory=tmp_path, restore=path) as server, rs.Client(server.url) as client:
        assert "table 'min-size': its settings" in server.log()
        assert "table 'ratio': its settings" not in server.log()
        assert client.info("min-size")["size"] == before["min-size"]["size"]
        with pytest.raises(rs.Timeout, match="400"):
            client.sample("min-size", 1, timeout=0)


def test_a_table_that_differs_is_refused(saved, tmp_path):
    path, _ = saved
    other = rs.Table("ratio", 500, {"y": rs.Column("int8")})
    with pytest.raises(rs.ServerError, match=r"exit status 4.*table 'ratio'.*differs"):
        rs.Server([other], directory=tmp_path, restore=path)


def test_without_a_snapshot_the_latest_is_an_empty_server(tmp_path):
    with rs.Server(tables(), directory=tmp_path, restore="latest") as server, rs.Client(server.url) as client:
        assert "starts empty" in server.log()
        assert len(client.tables()) == len(tables())


def test_only_the_newest_snapshots_are_kept_and_named_ones_stay(tmp_path):
    with rs.Server(directory=tmp_path, config={"snapshot-keep": 2}) as server, rs.Client(server.url) as client:
        named = client.checkpoint("mine.snapshot")
        paths = []
        for _ in range(4):
            paths.append(client.checkpoint())
            time.sleep(0.002)  # names are of the millisecond
        assert sorted(os.listdir(tmp_path)) == sorted(Path(path).name for path in [named, *paths[-2:]])


def test_a_snapshot_saved_after_the_clock_went_back_is_not_the_one_that_is_removed(tmp_path):
    for i in range(3):
        (tmp_path / f"replay-29991231-235959-00{i}.snapshot").touch()
    with rs.Server(directory=tmp_path, config={"snapshot-keep": 3}) as server, rs.Client(server.url) as client:
        path = Path(client.checkpoint())
        assert path.exists()
        assert sorted(os.listdir(tmp_path))[1:] == [f"replay-29991231-235959-00{i}.snapshot" for i in (1, 2)]


def test_a_snapshot_of_any_name_is_found_at_a_start_and_replaces_no_other_file(tmp_path, items):
    (tmp_path / "server.toml").write_text("port = 1")
    with rs.Server([rs.Table("t", 5, SIGNATURE)], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("t", items(1, 2))
        assert Path(client.checkpoint("server.toml")).name == "server.toml.snapshot"
        assert client.restore("server.toml")[0].startswith("restored server.toml.snapshot")
    assert (tmp_path / "server.toml").read_text() == "port = 1"
    with rs.Server(directory=tmp_path, restore="latest") as server, rs.Client(server.url) as client:
        assert client.info("t")["size"] == 2


def test_a_file_too_large_for_its_limit_is_said_and_service_goes_on(tmp_path):
    table = rs.Table("t", 5000, {"x": rs.Column("uint8", (1000,))})
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("t", {"x": np.zeros((5000, 1000), np.uint8)})
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with pytest.raises(rs.ServerError, match="File too large"):
            client.checkpoint()
        assert client.info("t")["size"] == 5000
        assert not os.listdir(tmp_path)


def test_a_snapshot_of_no_tables_and_of_empty_tables(tmp_path):
    with rs.Server(directory=tmp_path) as server, rs.Client(server.url) as client:
        client.checkpoint("none")
        client.create_table(rs.Table("t", 5, SIGNATURE))
        client.checkpoint("empty")
        assert client.restore("none")[0].startswith("restored none.snapshot")
        assert "0 items" in client.restore("empty")[1]


# ---- while it serves -------------------------------------------------------------------------------------------------


def test_the_cut_is_one_moment_however_much_changes_meanwhile(tmp_path, items):
    """Two tables get the same keys, one after the other: no snapshot shows more in the second than in the first."""
    names = ("first", "second")
    made = [rs.Table(name, 3000, SIGNATURE, sampler=rs.Uniform()) for name in names]
    stop = threading.Event()
    with rs.Server(made, directory=tmp_path) as server:

        def push() -> None:
            with rs.Client(server.url) as client:
                key = 0
                while not stop.is_set():
                    for name in names:
                        client.add(name, items(*range(key, key + 50)))
                    key += 50
                    client.sample("first", 64)

        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            with rs.Client(server.url) as client:
                while client.info("second")["size"] < 3000:
                    time.sleep(0.005)
                saved = [client.checkpoint(f"cut-{i}.snapshot") for i in range(5)]
        finally:
            stop.set()
            pusher.join()
    for path in saved:
        with rs.Server(directory=tmp_path, restore=path) as server, rs.Client(server.url) as client:
            added = [client.info(name)["added"] for name in names]
            assert added[0] - added[1] in (0, 50)
            for name in names:
                info = client.info(name)
                batch = client.sample(name, 3000, replace=False)
                assert info["size"] == 3000
                expected = np.arange(info["added"] - 3000, info["added"])
                np.testing.assert_array_equal(np.sort(batch.data["k"]), expected)
                np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"].astype(np.float32))


def test_saving_is_waited_for_by_one_client_only(tmp_path, items):
    table = rs.Table("t", 20_000, {"obs": rs.Column("uint8", (10_000,))})
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        for _ in range(8):
            client.add("t", {"obs": np.ones((1000, 10_000), np.uint8)})
        done = threading.Event()

        def save() -> None:
            with rs.Client(server.url) as other:
                other.checkpoint()
            done.set()

        saver = threading.Thread(target=save)
        saver.start()
        served = 0
        while not done.is_set():
            client.sample("t", 4)
            served += 1
        saver.join()
        assert served > 3


def test_clients_that_ask_at_once_share_snapshots_and_all_get_one_of_their_time(tmp_path):
    with rs.Server(tables(), directory=tmp_path) as server:
        paths: list[str] = []

        def save() -> None:
            with rs.Client(server.url) as client:
                paths.append(client.checkpoint())

        savers = [threading.Thread(target=save) for _ in range(8)]
        for saver in savers:
            saver.start()
        for saver in savers:
            saver.join()
        assert len(paths) == 8
        with rs.Client(server.url) as client:
            # Two of one millisecond have one name: the later takes the place of the one before.
            assert len(set(paths)) <= client.redis.info("persistence")["snapshots_saved"] <= 8
            assert client.redis.execute_command("LASTSAVE")


def test_a_table_dropped_while_it_is_saved_is_in_the_snapshot(tmp_path, items):
    table = rs.Table("big", 5000, {"obs": rs.Column("uint8", (10_000,))})
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        for _ in range(5):
            client.add("big", {"obs": np.full((1000, 10_000), 3, np.uint8)})

        def save() -> None:
            with rs.Client(server.url) as other:
                other.checkpoint("all")

        saver = threading.Thread(target=save)
        saver.start()
        while not client.redis.info("persistence")["rdb_bgsave_in_progress"] and saver.is_alive():
            pass
        client.drop_table("big")
        saver.join()
        assert "5000 items" in client.restore("all")[1]
        assert (client.sample("big", 100).data["obs"] == 3).all()


def test_a_folder_that_cannot_be_written_is_said_and_harms_nothing(tmp_path, items):
    with rs.Server([rs.Table("t", 5, SIGNATURE)], directory=tmp_path) as server, rs.Client(server.url) as client:
        (tmp_path / "taken.snapshot.partial").mkdir()
        with pytest.raises(rs.ServerError, match=r"taken\.snapshot\.partial"):
            client.checkpoint("taken")
        client.add("t", items(1))
        assert Path(client.checkpoint("other")).exists()
        assert client.redis.info("persistence")["snapshots_failed"] == 1


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "-x", "", "x.partial", "a b", "n" * 300, "zero\0byte"])
def test_a_name_that_is_no_file_of_the_folder_is_refused(raw, name):
    for command in ("REPLAY.SAVE", "REPLAY.RESTORE"):
        error = raw.command(command, name)
        assert isinstance(error, rs.ServerError)
        assert "name of a file" in str(error)


# ---- restoring into a server that serves -----------------------------------------------------------------------------


def test_a_restore_takes_the_places_of_tables_and_leaves_the_others(saved, tmp_path, items):
    path, before = saved
    with rs.Server(tables(), directory=tmp_path) as server, rs.Client(server.url) as client:
        client.create_table(rs.Table("mine", 5, SIGNATURE))
        client.add("mine", items(1, 2))
        client.add("min-size", items(*range(50)))
        lines = client.restore(path.name)
        assert lines[0].startswith(f"restored {path.name}, cut at ")
        after = state(client)
        assert after.pop("mine")["size"] == 2
        assert after == before
        client.add("min-size", items(1))  # the client learns by itself that the table was made anew
        assert client.sample("min-size", 4).data["k"].shape == (4,)


def test_tables_that_fit_maxmemory_one_by_one_but_not_together_are_refused(tmp_path):
    both = [rs.Table(name, 60_000, {"x": rs.Column("uint8", (1000,))}) for name in ("a", "b")]
    with rs.Server(both, directory=tmp_path) as server, rs.Client(server.url) as client:
        client.checkpoint("both")
    with rs.Server(directory=tmp_path, maxmemory=100_000_000) as server, rs.Client(server.url) as client:
        with pytest.raises(rs.LimitExceeded, match="maxmemory"):
            client.restore("both")
        assert client.tables() == []
    with pytest.raises(rs.ServerError, match=r"exit status 4.*maxmemory"):
        rs.Server(directory=tmp_path, restore="latest", maxmemory=100_000_000)


def test_limits_of_the_running_server_win(saved, tmp_path):
    path, _ = saved
    with rs.Server(tables(), directory=tmp_path) as server, rs.Client(server.url) as client:
        client.configure("uniform", max_times_sampled=0)
        lines = client.restore(path.name)
        assert [line for line in lines if "given now" in line] == [
            "table 'uniform': its settings are those given now, not those saved"
        ]
        assert client.info("uniform")["max_times_sampled"] == 0


def test_who_waits_at_a_table_is_served_by_the_restored_one(tmp_path, items):
    table = rs.Table("t", 50, SIGNATURE)
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("t", items(*range(9)))
        client.checkpoint("nine")
        client.reset("t")
        got: list[int] = []

        def wait() -> None:
            with rs.Client(server.url) as other:
                got.extend(other.sample("t", 4, timeout=60).data["k"])

        waiter = threading.Thread(target=wait)
        waiter.start()
        while client.info("t")["waiting_sample"] == 0:
            time.sleep(0.002)
        client.restore("nine")
        waiter.join()
        assert len(got) == 4
        assert max(got) < 9


def test_a_restore_that_does_not_fit_changes_nothing(saved, tmp_path, items):
    path, _ = saved
    with rs.Server([rs.Table("fifo", 7, SIGNATURE)], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("fifo", items(1, 2))
        with pytest.raises(rs.SchemaError, match="differs from the one here"):
            client.restore(path.name)
        assert client.tables() == ["fifo"]
        assert client.info("fifo")["size"] == 2
        with pytest.raises(rs.ServerError, match="cannot open"):
            client.restore("no-such-file")


# ---- damage ----------------------------------------------------------------------------------------------------------


def damage(path: Path, at: int, tmp_path: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    damaged = tmp_path / "damaged.snapshot"
    damaged.write_bytes(content)
    return damaged


def test_damage_anywhere_is_refused_with_the_place_and_exit_4(saved, tmp_path, items):
    path, _ = saved
    size = path.stat().st_size
    places = [0, 9, 20, 60, 64, 70, 76, 84, 90, 97, 120, 500, size // 2, size - 20, size - 1]
    for at in places:
        damaged = damage(path, at, tmp_path)
        with pytest.raises(rs.ServerError, match=r"exit status 4.*damaged\.snapshot, byte \d+: "):
            rs.Server(directory=tmp_path, restore=damaged)
    with rs.Server(tables(), directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("min-size", items(1))
        with pytest.raises(rs.ServerError, match=r"byte \d+: .*damaged.*nothing was restored"):
            client.restore(damage(path, size // 2, tmp_path).name)
        assert client.info("min-size")["size"] == 1


def test_a_file_cut_short_anywhere_is_refused(saved, tmp_path):
    path, _ = saved
    content = path.read_bytes()
    short = tmp_path / "short.snapshot"
    for length in (0, 1, 63, 64, 80, 96, len(content) // 2, len(content) - 33, len(content) - 1):
        short.write_bytes(content[:length])
        with pytest.raises(rs.ServerError, match=r"exit status 4.*byte \d+.*cut short"):
            rs.Server(directory=tmp_path, restore=short)
    short.write_bytes(content + b"x")
    with pytest.raises(rs.ServerError, match="something follows the end"):
        rs.Server(directory=tmp_path, restore=short)


def test_a_damaged_newest_snapshot_is_refused_not_passed_over(saved, tmp_path):
    path, _ = saved
    with rs.Server(directory=tmp_path, restore=path) as server, rs.Client(server.url) as client:
        newest = Path(client.checkpoint())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.raises(rs.ServerError, match=f"exit status 4.*{newest.name}"):
        rs.Server(directory=tmp_path, restore="latest")


def test_serve_restores_and_refuses_with_4(saved, tmp_path):
    path, _ = saved
    command = [sys.executable, "-m", "replay_server", "serve", "--port", "0", "--dir", str(tmp_path), "--restore"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "restored " + path.name in said
    damaged = damage(path, 200, tmp_path)
    refused = subprocess.run([*command, str(damaged)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 4
    assert "byte " in refused.stderr


# ---- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["add", "sample", "save"])
def test_after_a_kill_the_last_complete_snapshot_comes_back(doing, tmp_path):
    """SIGKILL in the middle of adding, sampling or saving; twice, since the first may come at a lucky moment."""
    table = rs.Table("t", 2000, {"obs": rs.Column("uint8", (10_000,)), "k": rs.Column("int64")})
    batch = {"obs": np.ones((200, 10_000), np.uint8), "k": np.arange(200)}
    for round in range(2):
        server = rs.Server([table], directory=tmp_path, restore="latest")
        with rs.Client(server.url) as client:
            client.add("t", batch)
            path = Path(client.checkpoint())
            expected = client.info("t")

            def work(url: str = server.url) -> None:
                with contextlib.suppress(rs.ReplayError), rs.Client(url, reconnect_timeout=0.2) as other:
                    while True:
                        if doing == "add":
                            other.add("t", batch)
                        elif doing == "sample":
                            other.sample("t", 200)
                        else:
                            other.add("t", batch)
                            other.checkpoint()

            worker = threading.Thread(target=work)
            worker.start()
            time.sleep(0.08 + 0.05 * round)
            os.kill(server.pid, signal.SIGKILL)
            worker.join()
        server.stop()
        with rs.Server([table], directory=tmp_path, restore="latest") as restarted, rs.Client(restarted.url) as client:
            after = client.info("t")
            assert "is lost" in restarted.log()
            assert not list(tmp_path.glob("*.partial"))
            if doing == "save":
                assert after["added"] >= expected["added"]
            else:
                assert path.name in restarted.log()
                assert {**after, "incarnation": 0} == {**expected, "incarnation": 0}
            assert (client.sample("t", 50).data["obs"] == 1).all()


def test_a_server_that_stops_while_it_saves_says_so_and_leaves_no_file(tmp_path):
    table = rs.Table("t", 30_000, {"obs": rs.Column("uint8", (10_000,))})
    server = rs.Server([table], directory=tmp_path)
    with rs.Client(server.url) as client:
        for _ in range(20):
            client.add("t", {"obs": np.ones((1000, 10_000), np.uint8)})
        failures: list[BaseException] = []

        def save() -> None:
            try:
                with rs.Client(server.url) as other:
                    other.checkpoint()
            except rs.ReplayError as error:
                failures.append(error)

        saver = threading.Thread(target=save)
        saver.start()
        while not client.redis.info("persistence")["rdb_bgsave_in_progress"]:
            pass
        assert server.stop() == 0
        saver.join()
    if failures:  # it was quicker than the stop
        assert "the snapshot was cancelled" in str(failures[0])
        assert os.listdir(tmp_path) == []


# ---- steps and windows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_windows_show_the_same_steps_after_a_restore_and_streams_begin_anew(tmp_path, compression):
    signature = {
        "frame": rs.Column("uint8", (20, 20), step_only=True),
        "obs": rs.Window("frame", length=4),
        "next_obs": rs.Window("frame", length=4, offset=1),
        "key": rs.Column("int64"),
    }
    table = rs.Table("w", 100, signature, compression=compression, sampler=rs.Uniform())
    frames = np.repeat(np.arange(40, dtype=np.uint8), 400).tobytes()
    streams = np.zeros(40, np.uint32).tobytes()
    steps = np.arange(39, dtype=np.uint64)

    def write(client: rs.Client) -> np.ndarray:
        with client.redis as redis:
            redis.execute_command("REPLAY.APPEND", "w", 40, streams, "", "COLUMNS", 1, "frame", frames)
            keys = np.arange(39, dtype=np.int64).tobytes()
            item = ("REPLAY.ITEM", "w", 39, streams[:156], steps.tobytes(), "", "COLUMNS", 1, "key", keys)
            return np.frombuffer(redis.execute_command(*item), np.uint64)

    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        ids = write(client)
        assert client.delete("w", ids[:3]) == 3
        before, info = client.get("w", ids[3:]), client.info("w")
        client.checkpoint()
    with rs.Server([table], directory=tmp_path, restore="latest") as server, rs.Client(server.url) as client:
        after = client.get("w", ids[3:])
        for name in ("obs", "next_obs", "key"):
            np.testing.assert_array_equal(before.data[name], after.data[name])
        np.testing.assert_array_equal(after.data["obs"][5, :, 0, 0], [5, 6, 7, 8])
        restored = client.info("w")
        assert restored["steps"] == 40  # the stream is gone; the first frames are still seen
        assert (restored["streams"], restored["size"]) == (0, info["size"])
        new = write(client)
        assert len(np.unique(np.concatenate([ids, new]))) == 78
        np.testing.assert_array_equal(client.get("w", new).data["obs"][3:], before.data["obs"])
