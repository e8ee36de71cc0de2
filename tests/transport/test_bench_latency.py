"""``replay-server bench latency`` measures every side that there is, and writes what it measured."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from replay_server.bench import latency, messages
from replay_server.bench.client import Role
from replay_server.bench.main import main
from replay_server.bench.namespace import Namespace, NamespaceError
from replay_server.bench.sides import SIDES, Host, Waker, choose


@pytest.fixture(autouse=True)
def _hosts() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    try:
        Namespace("probe").close()
    except NamespaceError as error:
        pytest.skip(str(error))


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_every_side_that_is_here_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "latency.json", tmp_path / "latency.png"
    assert main(["latency", "--quick", "--json", str(file), "--plot", str(picture)]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    content = json.loads(file.read_text())
    here = [name for name in latency.USUAL if SIDES[name].missing() is None]
    for measurement in latency.measurements(600):
        for name in here:
            prefix = f"{measurement.name}.{name}"
            assert 0 < content["median"][f"{prefix}.latency_us_p50"] <= content["median"][f"{prefix}.latency_us_p99"]
            assert content["median"][f"{prefix}.requests_per_s"] > 0
            if name != "kernel":
                assert content["ratio"][f"{measurement.name} latency_us_p50 {name} / kernel"] > 0
    assert content["median"]["echo.kernel.server_cpu_us"] > 0
    for name in latency.USUAL:
        assert (name in content["settings"]["not_measured"]) == (name not in here)
        assert f"not measured: {name}" in printed or name in here
    assert "| 64 bytes there and back |" in printed
    assert picture.stat().st_size > 10_000


def test_over_a_line_each_fault_has_figures_and_the_servers_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "line.json"
    sides = [name for name in ("kernel", "dpdk_af_packet") if SIDES[name].missing() is None]
    chosen = [word for name in sides for word in ("--side", name)]
    line = ["--delay-us", "1000", "--rate-mbit", "1000", "--faults", "loss=0", "loss=0.05", "--connections", "2"]
    arguments = ["latency", "--quick", "--measurement", "download", *chosen, *line, "--json", str(file)]
    assert main(arguments) == 0, capsys.readouterr().err
    median = json.loads(file.read_text())["median"]
    for name in sides:
        assert median[f"download loss=0.{name}.latency_us_p50"] > 2000
        assert median[f"download loss=0.05.{name}.latency_us_p50"] > median[f"download loss=0.{name}.latency_us_p50"]
        assert median[f"download loss=0.05.{name}.server_retransmissions"] > 10
        for count in ("recoveries", "timeouts", "undone"):
            assert median[f"download loss=0.05.{name}.server_{count}"] >= 0


def test_a_server_rests_between_its_turns_and_ends_with_its_host() -> None:
    with Host(SIDES["kernel"]) as host:
        host.rest()
        assert state(host.pid) == "T"
        turn = host.turn([Role("a", {"ping": messages.echo()})], 0.05)
        assert turn.measured.count() > 0
        assert state(host.pid) == "T"
    assert not Path(f"/proc/{host.pid}").exists()


def test_a_stopped_server_does_not_outlive_a_benchmark_that_was_killed() -> None:
    """The parent's end is all that the waker hears of."""
    ready, ready_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
        os.kill(child, signal.SIGSTOP)
        Waker(child)
        os.write(ready_write, b"%d\n" % child)
        time.sleep(60)
        os._exit(0)
    child = int(os.read(ready, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and state(child) != "Z":
        assert time.monotonic() < end, "the stopped process is still there"
        time.sleep(0.05)
    os.close(ready)
    os.close(ready_write)


def test_every_request_is_what_its_system_takes() -> None:
    """Whole pushes arrive, samples come back, in the numbers that they are called by."""
    tables = [messages.ATARI.table(600), messages.frames_table(600)]
    with Host(SIDES["kernel"], tables) as host:
        assert host.client is not None
        latency.prepare(host, 600)
        host.wake()
        before = host.client.info("bench")
        requests = {"push": messages.push(messages.ATARI, 50), "frames": messages.push_frames(50)}
        host.turn([Role("a", requests | {"sample": messages.sample(32)}, rounds=3)], 0)
        host.wake()
        after, frames = host.client.info("bench"), host.client.info(messages.FRAMES)
        assert after["added"] - before["added"] == 150
        assert after["sampled"] - before["sampled"] == 96
        assert frames["added"] == 150
        assert frames["streams"] == 0
        batch = host.client.sample(messages.FRAMES, 20)
        assert (batch.data["obs"][:, 3] == batch.data["next_obs"][:, 0]).all()
        version, arrays = host.client.fetch_weights(messages.WEIGHTS) or (0, {})
        assert version == 1
        assert arrays["parameters"].nbytes == 4 * messages.PARAMETERS


def test_what_the_aims_say_is_taken_within_rounds() -> None:
    rounds = [
        {"echo.kernel.latency_us_p50": 100.0 * number, "echo.dpdk_af_xdp.latency_us_p50": 26.0 * number}
        | {"upload.kernel.requests_per_s": 10.0, "upload.dpdk_af_xdp.requests_per_s": 10.5}
        for number in (1, 2, 3)
    ]
    echo, upload = latency.findings(rounds)
    assert (echo["median"], echo["met"]) == (pytest.approx(0.26), True)
    assert (upload["median"], upload["met"]) == (pytest.approx(1.05), False)


def test_unknown_names_are_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no side is called 'dpkd'"):
        choose(["dpkd"])
    assert main(["latency", "--measurement", "eco"]) == 1
    assert "expected some of echo, echo_1k, echo_50" in capsys.readouterr().err
