"""Cluster clients that know nothing of this server do their work on shards, while slots move from one to another."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import replay_server as rs

HERE = Path(__file__).resolve().parent
PACKAGES = ["ioredis@5.11.1", "redis@4.7.1", "@valkey/valkey-glide@2.5.2"]


@pytest.fixture
def cluster() -> Iterator[rs.Cluster]:
    with rs.Cluster(shards=3) as started:
        yield started


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("node")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, capture_output=True, text=True, timeout=300
    )
    if installed.returncode != 0:
        pytest.skip(f"npm install failed: {installed.stderr[-300:]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "library", ["ioredis", "redis", "@valkey/valkey-glide"], ids=["ioredis", "node-redis", "valkey-glide"]
)
def test_clients_for_node_work_through_moves_of_slots(cluster: rs.Cluster, node_folder: Path, library: str) -> None:
    works_through_moves(cluster, "node", str(HERE / "node_cluster.mjs"), library, folder=node_folder)


def test_the_client_for_php_works_through_moves_of_slots(cluster: rs.Cluster) -> None:
    """It is an extension in C, which the clients above are not."""
    php = shutil.which("php")
    if php is None or "redis" not in subprocess.run([php, "-m"], capture_output=True, text=True, timeout=60).stdout:
        pytest.skip("needs PHP and its client: apt-get install php-cli php-redis")
    works_through_moves(cluster, php, str(HERE / "cluster_client.php"))


def works_through_moves(cluster: rs.Cluster, *command: str, folder: Path | None = None) -> None:
    """Slots move while a program works, whose last argument is the port of a shard."""
    port = str(cluster.topology.shards[0].port)
    with subprocess.Popen(
        [*command, port], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            begun = client.stdout.readline()
            if begun == "begun\n":
                for target in (2, 1, 0):
                    cluster.move("100-5000,6000-10000,11000-16000", target)
            out, errors = client.communicate("end\n", timeout=120)
            assert (begun + out, client.returncode) == ("begun\nfine\n", 0), errors
        finally:
            client.kill()


def test_redis_cli_follows_redirections(cluster: rs.Cluster) -> None:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("needs redis-cli: apt-get install redis-tools")
    ports = [shard.port for shard in cluster.topology.shards]

    def say(place: int, lines: str) -> str:
        command = [program, "-c", "-p", str(ports[place])]
        return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60).stdout

    said = say(0, "".join(f"SET key:{number} {number}\n" for number in range(60)))
    assert said.count("OK") == 60
    cluster.move("0-4000", 2)
    said = say(1, "".join(f"GET key:{number}\n" for number in range(60)))
    assert "-> Redirected to slot" in said
    assert [word for word in said.split("\n") if word.isdigit()] == [str(number) for number in range(60)]
    checked = subprocess.run(
        [program, "--cluster", "check", f"127.0.0.1:{ports[0]}"], capture_output=True, text=True, timeout=60
    )
    assert "[OK] All 16384 slots covered." in checked.stdout, checked.stdout + checked.stderr
