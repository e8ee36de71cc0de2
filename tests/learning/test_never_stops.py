"""A job goes on: when its server or a part is killed or silent, and when it is resumed after all were killed."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
from apex_job import LONGEST_S, Job, address_of, alive, gone, processes_of, wait_for_updates, wait_until

import replay_server as rs
from replay_server.bench.result import machine
from replay_server.jobs.job_server import ASIDE, JobServer, ReplaySaver, saves_replay, snapshot_bytes
from replay_server.rl.settings import ApexSettings

TABLE = rs.Table("apex", 1000, {"x": rs.Column("float32", (50,))})
SAVING = ("--actors", "1", "--checkpoint-replay-every-s", "0.2", "--checkpoint-every-s", "0.5")
QUICK = ("--actors", "1", "--final-episodes", "0")


def servers_of(job: Job) -> list[int]:
    """Process ids of the servers that the job has started, in order."""
    return [int(pid) for pid in re.findall(r"server redis://\S+ \(process (\d+)\)", job.text)]


def wait_for_snapshot(job: Job) -> int:
    """Waits until a snapshot is there that began after this call; how many transitions were in the table before."""
    snapshot = job.run / "replay" / "replay.snapshot"
    with rs.Client(address_of(job), reconnect_timeout=LONGEST_S) as client:
        size = client.info("apex")["size"]
    for _ in range(2):  # the first may have begun before
        seen = snapshot.stat().st_mtime_ns if snapshot.exists() else 0
        wait_until(lambda seen=seen: snapshot.exists() and snapshot.stat().st_mtime_ns != seen)
    return size


def end(job: Job) -> None:
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text


def test_killed_server_comes_back_with_the_replay_that_was_saved_and_all_parts_wait_for_it(start):
    job = start(*SAVING)
    wait_for_updates(job)
    address, parts = address_of(job), {pid for pid in job.children() if pid != servers_of(job)[0]}
    size = wait_for_snapshot(job)
    os.kill(servers_of(job)[0], signal.SIGKILL)
    back = job.wait_for(r"server ended \(-9: [\s\S]*server (redis://\S+) \(process \d+\) with a replay of (\d+) trans")
    assert back[1] == address
    assert int(back[2]) >= size >= 200
    wait_for_updates(job)
    assert {pid for pid in job.children() if pid != servers_of(job)[1]} == parts
    assert job.process.poll() is None
    end(job)
    assert not any(alive(pid) for pid in servers_of(job))
    summary = job.summary()
    assert summary["restarts"] == 1
    assert summary["transitions"] >= size
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    versions = [row["version"] for row in rows if row["kind"] == "learner"]
    assert versions == sorted(versions)
    steps = [row["version"] for row in rows if row["kind"] == "evaluation"]
    assert len(steps) == len(set(steps)), "no evaluation is counted twice"


def test_job_whose_processes_were_all_killed_goes_on_with_the_replay_that_was_there(start):
    job = start(*SAVING)
    wait_for_updates(job)
    size = wait_for_snapshot(job)
    wait_until(lambda: any((job.run / "checkpoints").glob("step_[1-9]*")))
    processes = job.children()
    for pid in (job.process.pid, *processes):
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert gone(processes)
    newest = max(int(path.name[5:]) for path in (job.run / "checkpoints").glob("step_*"))
    assert not (job.run / "summary.json").exists()

    resumed = start("--resume")
    back = resumed.wait_for(r"with a replay of (\d+) transitions")
    assert int(back[1]) >= size >= 200
    resumed.wait_for(rf"learner: goes on from \S+/step_{newest}")
    assert wait_for_updates(resumed) > newest
    with rs.Client(address_of(resumed), reconnect_timeout=LONGEST_S) as client:
        info = client.info("apex")
        assert info["size"] >= size
        assert client.fetch_weights("apex")[0] >= newest
    end(resumed)
    assert re.search(r"replay saved \d+ s ago in \S+/replay/replay\.snapshot \(\d+ [kM]?B\)", resumed.text)
    assert sorted(path.name for path in (resumed.run / "replay").iterdir()) == ["replay.snapshot"]


def test_a_resumed_run_whose_server_dies_before_it_saved_goes_on_with_its_own_settings(start):
    """What the server comes back with is of the session before, which had fewer actors."""
    job = start(*SAVING)
    wait_for_updates(job)
    wait_for_snapshot(job)
    end(job)
    resumed = start("--resume", "--checkpoint-replay-every-s", "3600", "--actors", "2")
    wait_for_updates(resumed)
    os.kill(servers_of(resumed)[0], signal.SIGKILL)
    resumed.wait_for(r"server ended \(-9: [\s\S]*server redis://\S+ \(process \d+\) with a replay of")
    wait_for_updates(resumed)
    end(resumed)


def test_replay_is_saved_at_the_end_stays_beside_a_run_of_other_settings_and_is_not_saved_where_that_is_off(start):
    job = start(*QUICK, "--max-updates", "100", "--checkpoint-replay-every-s", "3600")
    assert job.wait() == 0, job.text
    assert re.search(r"the replay is saved every 3600 s in \S+ \(two files of up to \d+\.?\d* MB", job.text)
    assert re.search(r"step_100\nreplay saved \d+ s ago in \S+/replay/replay\.snapshot \(\d+ [kM]B\)", job.text)

    resumed = start("--resume", "--max-updates", "200", "--capacity", "20000")
    assert resumed.wait() == 0, resumed.text
    assert re.search(r"the replay that was saved does not come back: .*capacity", resumed.text)
    assert resumed.summary()["updates"] == 200
    assert {"replay.snapshot", ASIDE} <= {path.name for path in (resumed.run / "replay").iterdir()}

    (job.run / "replay" / "replay.snapshot").unlink()
    resumed = start("--resume", "--max-updates", "300", "--checkpoint-replay", "off")
    assert resumed.wait() == 0, resumed.text
    assert "the replay is not saved (--checkpoint-replay off)" in resumed.text
    assert not (job.run / "replay" / "replay.snapshot").exists()


def test_server_that_is_silent_is_waited_for(start):
    job = start("--actors", "1", constants={"replay_server.jobs.apex.ANSWER_WITHIN_S": 0.5})
    wait_for_updates(job)
    (server,) = servers_of(job)
    os.kill(server, signal.SIGSTOP)
    job.wait_for(r"server does not answer \(.*\): waiting for it, up to 600 s")
    time.sleep(2.0)
    os.kill(server, signal.SIGCONT)
    job.wait_for(r"server answers again after \d+ s")
    wait_for_updates(job)
    assert servers_of(job) == [server]
    end(job)
    assert job.summary()["restarts"] == 0


def test_server_that_stays_silent_is_killed_and_started_again(start):
    constants = {"replay_server.jobs.apex.ANSWER_WITHIN_S": 2.0, "replay_server.jobs.job_server.SILENT_S": 10.0}
    job = start(*SAVING, constants=constants)
    wait_for_updates(job)
    size = wait_for_snapshot(job)
    os.kill(servers_of(job)[0], signal.SIGSTOP)
    back = job.wait_for(
        r"has not answered for \d+ s: killing it[\s\S]*process \d+\) with a replay of (\d+) transitions"
    )
    assert int(back[1]) >= size
    wait_for_updates(job)
    end(job)


def test_server_that_always_dies_ends_the_job_with_5_a_message_and_a_checkpoint(start):
    constants = {"replay_server.jobs.supervisor.RESTARTS_PER_MINUTE": 1}
    job = start("--actors", "1", "--checkpoint-replay", "off", constants=constants)
    wait_for_updates(job)
    children = job.children()
    killed: set[int] = set()
    deadline = time.monotonic() + LONGEST_S
    while job.process.poll() is None and time.monotonic() < deadline:
        for pid in set(servers_of(job)) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.05)
    assert job.wait() == 5, job.text
    assert "replay server lost (it ended 2 times within a minute, with status -9" in job.text
    assert not any(alive(pid) for pid in children)
    checkpoint = max((job.run / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
    assert int(checkpoint.name[5:]) > 0
    assert f"newest checkpoint {checkpoint}" in job.text
    assert "go on with: replay-server apex --resume" in job.text
    assert job.summary()["ended_by"] == "server lost"


def test_parts_that_are_stopped_for_a_while_or_killed_go_on(start):
    job = start("--samples-per-insert", "8")
    wait_for_updates(job)
    stopped = [pid for part in ("learner", "evaluator", "actor-0") for pid in processes_of(job, part)]
    assert len(stopped) == 3
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)
        wait_for_updates(job, 10)
        assert alive(pid)
    assert "starting it again" not in job.text
    (evaluator,) = processes_of(job, "evaluator")
    os.kill(evaluator, signal.SIGKILL)
    job.wait_for(r"evaluator ended \(-9\): starting it again")
    wait_until(lambda: processes_of(job, "evaluator") not in ([], [evaluator]))
    wait_for_updates(job, 10)
    end(job)
    assert job.summary()["restarts"] == 1


CARTPOLE = ("--env", "CartPole-v1", "--actors", "2", "--final-episodes", "0",
            "--checkpoint-replay-every-s", "2", "--checkpoint-every-s", "2")  # fmt: skip
PONG = ("--env", "ALE/Pong-v5", "--actors", "2", "--capacity", "50000", "--min-size-to-sample", "2000",
        "--final-episodes", "0", "--eval-every-updates", "500", "--eval-episodes", "1",
        "--checkpoint-replay-every-s", "20", "--checkpoint-every-s", "10")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("settings", "stop_s"), [(CARTPOLE, 5.0), (PONG, 90.0)], ids=["cartpole", "pong"])
def test_job_goes_on_after_each_process_was_stopped_and_killed_and_after_all_were(start, tmp_path, settings, stop_s):
    """The whole round, in one run: what `docs/how-to/resume.md` promises.

    What happened, with seconds, is written to outages-GAME.json, in the folder that REPLAY_RECORDS names, if any.
    """
    if settings is PONG:
        pytest.importorskip("ale_py")
    outages: list[dict[str, object]] = []
    job = start(settings=settings)
    wait_for_updates(job)

    def running(part: str) -> int:
        found: list[int] = []

        def is_there() -> bool:
            found[:] = servers_of(job)[-1:] if part == "server" else processes_of(job, part)
            return found != []

        wait_until(is_there)
        return found[0]

    for part in ("actor-0", "evaluator", "learner", "server"):
        stopped = running(part)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(stop_s)
        os.kill(stopped, signal.SIGCONT)
        began = time.monotonic()
        updates = wait_for_updates(job)
        outages.append({"part": part, "stopped_s": stop_s, "until_50_updates_s": time.monotonic() - began,
                        "updates": updates})  # fmt: skip
        assert running(part) == stopped
        assert "starting it again" not in job.text
    restarts = 0
    for part in ("actor-0", "actor-1", "evaluator", "learner", "server"):
        size, killed = wait_for_snapshot(job), running(part)
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda part=part, killed=killed: running(part) != killed)
        updates = wait_for_updates(job)
        took_s = time.monotonic() - began
        with rs.Client(address_of(job), reconnect_timeout=LONGEST_S) as client:
            held = client.info("apex")["size"]
        assert held >= size
        outages.append({"part": part, "killed": True, "until_50_updates_s": took_s, "updates": updates,
                        "replay_saved": size, "replay_after": held})  # fmt: skip
        restarts += 1
    size = wait_for_snapshot(job)
    processes = job.children()
    for pid in (job.process.pid, *processes):
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert gone(processes)
    began = time.monotonic()
    resumed = start("--resume", settings=settings)
    held = int(resumed.wait_for(r"with a replay of (\d+) transitions")[1])
    assert held >= size
    updates = wait_for_updates(resumed, 1)
    outages.append({"part": "all, resumed", "killed": True, "until_1_update_s": time.monotonic() - began,
                    "updates": updates, "replay_saved": size, "replay_after": held})  # fmt: skip
    end(resumed)
    assert resumed.summary()["restarts"] >= restarts
    write_record(resumed, settings, outages, Path(os.environ.get("REPLAY_RECORDS") or tmp_path))


def write_record(job: Job, settings: tuple[str, ...], outages: list[dict[str, object]], folder: Path) -> None:
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    record = {
        "name": "outages",
        "machine": machine(),
        "settings": settings,
        "outages": outages,
        "evaluations": [row for row in rows if row["kind"] == "evaluation"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    game = settings[1].rpartition("/")[2].partition("-")[0].lower()
    (folder / f"outages-{game}.json").write_text(json.dumps(record, indent=1) + "\n")


# ---- the server of a job, and its snapshots --------------------------------------------------------------------------


def serve(folder, resumed: bool, said: list[str]) -> JobServer:
    return JobServer(TABLE, folder, 0, True, resumed, {}, said.append)


def test_snapshot_that_is_damaged_is_moved_aside_and_the_server_begins_empty(tmp_path):
    said: list[str] = []
    for resumed, size in ((False, 0), (True, 10)):
        server = serve(tmp_path / "replay", resumed, said)
        with rs.Client(server.url) as client:
            assert client.info("apex")["size"] == size
            if not size:
                client.add("apex", {"x": np.zeros((10, 50), np.float32)})
            saver = ReplaySaver(server, 3600.0)
            saver.save_last()
            assert saver.wait(60.0)
            assert (tmp_path / "replay" / "replay.snapshot").stat().st_size > 2000
            assert re.fullmatch(rf"replay saved \d+ s ago in {server.snapshot} \(\d kB\)", saver.told())
            saver.close()
        server.stop(10.0)
    assert said == []
    whole = server.snapshot.read_bytes()
    server.snapshot.write_bytes(whole[: len(whole) // 2])
    server = serve(tmp_path / "replay", True, said)
    with rs.Client(server.url) as client:
        assert client.info("apex")["size"] == 0
    server.stop(10.0)
    assert len(said) == 1
    assert "does not come back" in said[0]
    assert (tmp_path / "replay" / ASIDE).read_bytes() == whole[: len(whole) // 2]
    assert not server.snapshot.exists()


def test_server_that_was_stopped_while_it_saved_is_asked_to_save_again_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("replay_server.jobs.job_server.MOST_OF_THE_TIME", 1e6)
    server = serve(tmp_path, False, [])
    with rs.Client(server.url) as client:
        pid = int(client.redis.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    saver = ReplaySaver(server, 0.1)
    time.sleep(1.0)  # one save is under way
    os.kill(pid, signal.SIGCONT)
    for _ in range(2):
        wait_until(server.snapshot.exists)
        server.snapshot.unlink()
    saver.close()
    server.stop(10.0)


def test_run_that_is_not_resumed_does_not_begin_with_what_lies_in_its_folder(tmp_path):
    said: list[str] = []
    with rs.Server([TABLE], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("apex", {"x": np.ones((10, 50), np.float32)})
        client.checkpoint("replay")
    server = serve(tmp_path, False, said)
    with rs.Client(server.url) as client:
        assert client.info("apex")["size"] == 0
    server.stop(10.0)
    assert (tmp_path / ASIDE).exists()


def test_a_snapshot_is_about_as_large_as_was_reckoned(tmp_path):
    stacked = rs.Table(
        "apex", 1000,
        {"frame": rs.Column("uint8", (10, 10), step_only=True), "obs": rs.Window("frame", length=4),
         "next_obs": rs.Window("frame", length=4, offset=1), "action": rs.Column("int64")},
    )  # fmt: skip
    for number, table in enumerate((TABLE, stacked)):
        with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
            if table is TABLE:
                client.add("apex", {"x": np.ones((1000, 50), np.float32)})
            else:
                with client.writer("apex") as writer:
                    for step in range(1002):
                        writer.append({"frame": np.full((10, 10), step % 256, np.uint8)})
                        if step > 1:
                            writer.create_item(1.0, at=-2, columns={"action": step})
            assert client.info("apex")["size"] == 1000
            client.checkpoint(f"full{number}")
        size = (tmp_path / f"full{number}.snapshot").stat().st_size
        assert size <= snapshot_bytes(table) <= 1.3 * size


@pytest.mark.parametrize(
    ("asked", "capacity", "saves"),
    [("auto", 1000, True), ("auto", 4_000_000_000, False), ("on", 4_000_000_000, True), ("off", 1000, False)],
)
def test_replay_is_saved_where_the_disk_has_room_or_as_asked(tmp_path, asked, capacity, saves):
    table = rs.Table("apex", capacity, {"x": rs.Column("float32", (1000, 1000))})
    settings = ApexSettings(checkpoint_replay=asked)
    decided, why = saves_replay(settings, table, tmp_path / "replay")
    assert decided is saves
    assert ("is not saved" in why) is not saves
