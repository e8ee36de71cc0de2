"""Programs of others over every transport, as they are: redis-cli, redis-benchmark, asyncio; and a whole Ape-X run."""

from __future__ import annotations

import asyncio
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs


def run(*command: str, text: str | None = None) -> str:
    """Runs a program of Redis' on the client's side; what it printed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}: apt-get install redis-tools")
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_redis_cli(site: Any, client: Any) -> None:
    cli = ["redis-cli", "-h", site.address]
    assert run(*cli, "SET", "greeting", "hello") == "OK\n"
    assert run(*cli, "GET", "greeting") == "hello\n"
    assert f"transport{0 if site.transport == 'kernel' else 1}:{site.transport}" in run(*cli, "INFO", "transport")
    commands = "".join(f"SET key:{n} {n}\r\n" for n in range(5000))
    assert "errors: 0, replies: 5000" in run(*cli, "--pipe", text=commands)
    assert run(*cli, "GET", "key:4999") == "4999\n"
    client.redis.flushall()


@pytest.mark.parametrize(("clients", "pipeline", "requests"), [(50, 1, 5_000), (50, 16, 50_000), (200, 4, 10_000)])
def test_redis_benchmark(site: Any, client: Any, clients: int, pipeline: int, requests: int) -> None:
    tests = "ping,set,get,incr,lpush,rpop,hset"
    options = ["-n", str(requests), "-c", str(clients), "-P", str(pipeline), "-r", "1000", "-d", "100", "-t", tests]
    rows = list(csv.DictReader(run("redis-benchmark", "-h", site.address, *options, "--csv").splitlines()))
    assert {row["test"].split()[0].partition("_")[0] for row in rows} == {name.upper() for name in tests.split(",")}
    assert all(float(row["rps"]) > 100 for row in rows)
    client.redis.flushall()


def test_asyncio(server: Any, make_table: Any, items: Any) -> None:
    name = make_table()

    async def use() -> None:
        async with rs.aio.Client(server.url) as client:
            await asyncio.gather(*(client.add(name, items(*range(10 * i, 10 * i + 10))) for i in range(10)))
            batches = await asyncio.gather(*(client.sample(name, 50) for _ in range(10)))
            for batch in batches:
                np.testing.assert_array_equal(batch.data["x"], items(*batch.data["k"])["x"])

    asyncio.run(use())


# ---- Ape-X -----------------------------------------------------------------------------------------------------------

PASSWORD = "a password that nobody prints"
UPDATES = 150
SETTINGS = [
    "--env", "CartPole-v1", "--profile", "cartpole", "--actors", "2", "--seed", "1", "--min-size-to-sample", "200",
]  # fmt: skip


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(("kernel", "kernel"), id="kernel", marks=pytest.mark.slow),
        pytest.param(("dpdk", "af_packet"), id="dpdk-af_packet", marks=pytest.mark.dpdk),
        pytest.param(("dpdk", "af_xdp"), id="dpdk-af_xdp", marks=[pytest.mark.dpdk, pytest.mark.slow]),
        pytest.param(("fstack", "af_xdp"), id="fstack", marks=[pytest.mark.dpdk, pytest.mark.slow]),
    ],
    indirect=True,
)
def test_a_whole_apex_run(site: Any, tmp_path: Path) -> None:
    """Two actors and a learner on the client's side, until the learner has made its updates and ended them."""
    pytest.importorskip("torch", reason="needs the extra rl (make setup installs it)")
    pytest.importorskip("gymnasium", reason="needs the extra rl (make setup installs it)")
    server = site.serve(password=PASSWORD)
    module = [sys.executable, "-m", "replay_server"]
    to = ["--server", f"redis://{site.address}:6379"]
    environment = {**os.environ, "REPLAY_SERVER_PASSWORD": PASSWORD, "OMP_NUM_THREADS": "1"}
    commands = {f"actor{i}": [*module, "actor", *to] for i in range(2)}
    run_directory = str(tmp_path / "run")
    commands["learner"] = [
        *module, "learner", *to, *SETTINGS, "--learner-threads", "1", "--max-updates", str(UPDATES),
        "--logdir", run_directory,
    ]  # fmt: skip
    running = {}
    try:
        for name, command in commands.items():
            with open(tmp_path / f"{name}.log", "w") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        assert running["learner"].wait(timeout=120) == 0, (tmp_path / "learner.log").read_text()
        with rs.Client(server.url) as client:
            information = client.info("apex")
            assert int(client.redis.hget("apex:learner", "updates")) == UPDATES  # type: ignore[arg-type]
            for actor in range(2):
                assert int(client.redis.hget(f"apex:actor:{actor}", "frames")) > 0  # type: ignore[arg-type]
            assert client.fetch_weights("apex") is not None
        assert information["added"] >= 200
        assert information["sampled"] >= UPDATES * 32
        assert information["updates_applied"] > 0
        for actor in range(2):
            assert running[f"actor{actor}"].wait(timeout=60) == 0, (tmp_path / f"actor{actor}.log").read_text()
        assert server.stop() == 0
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
