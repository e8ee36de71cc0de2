"""The files of deploy/, as far as they can be checked without systemd, Docker or a cluster."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import cli
from replay_server.cluster_shards import Shards
from replay_server.config import load_config, read_password

MOST_EXPOSED = 20
"""Of 100, in tenths of what systemd-analyze security prints: 2.0 is "OK", unrestricted services have 9.6."""


@pytest.fixture
def deploy(repository: Path) -> Path:
    return repository / "deploy"


def serve_arguments(words: list[str]) -> list[str]:
    """What follows `replay-server serve` in a command."""
    assert Path(words[0]).name == "replay-server"
    assert words[1] == "serve"
    return words[2:]


# ---- systemd ---------------------------------------------------------------------------------------------------------


def commands_of(unit: Path) -> list[list[str]]:
    found = re.findall(r"^Exec(?:Start|Reload)=(.+)$", unit.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in found if "kill" not in line]


@pytest.fixture
def installed(deploy: Path, tmp_path: Path) -> Path:
    """The unit with its password, with the command that is here: systemd-analyze looks whether it can be run."""
    here = Path(sys.executable).parent / "replay-server"
    if not here.exists():
        pytest.skip("the command is not installed beside this Python")
    for name in ("replay-server.service", "replay-server.service.d/password.conf"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = (deploy / "systemd" / name).read_text()
        path.write_text(text.replace("/opt/replay-server/bin/replay-server", str(here)))
    return tmp_path / "replay-server.service"


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (systemd)")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=120)


def test_systemd_finds_nothing_wrong_with_the_unit(installed: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(installed))
    about_it = [line for line in done.stderr.splitlines() if "replay-server" in line]
    assert (done.returncode, about_it) == (0, [])


def test_the_unit_is_as_closed_as_it_was(installed: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(installed))
    if "unrecognized option" in done.stderr or "Unknown" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit that is not loaded")
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


def test_the_commands_of_the_unit_are_accepted(deploy: Path) -> None:
    units = [deploy / "systemd/replay-server.service", deploy / "systemd/replay-server.service.d/password.conf"]
    found = [words for unit in units for words in commands_of(unit)]
    assert [words[-1] == "--check" for words in found] == [False, True, False, True]
    for words in found:
        options = cli.serve_parser().parse_args(serve_arguments(words))
        assert (options.config, options.dir) == ("/etc/replay-server/replay-server.toml", "/var/lib/replay-server")
        assert options.restore == "latest"


def test_the_unit_leaves_room_for_all_clients(deploy: Path, tmp_path: Path) -> None:
    """With as many descriptors as the unit allows, and none of them to be had beyond, maxclients is not lowered."""
    limit = int(re.findall(r"^LimitNOFILE=(\d+)$", (deploy / "systemd/replay-server.service").read_text(), re.M)[0])
    script = f"ulimit -n {limit} && exec {sys.executable} -m replay_server serve --port 0"
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[1].removeprefix("url=")
        with rs.Client(url) as client:
            assert client.redis.config_get("maxclients") == {"maxclients": "10000"}
        process.terminate()
        assert process.stderr.read() == ""


# ---- the image -------------------------------------------------------------------------------------------------------


def instructions(deploy: Path) -> list[tuple[str, str]]:
    """Those of the container file, with lines joined and comments left out."""
    lines = [line for line in (deploy / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def test_the_image_copies_what_is_there_and_not_what_is_ignored(deploy: Path, repository: Path) -> None:
    ignored = (repository / ".dockerignore").read_text().splitlines()
    for instruction, rest in instructions(deploy):
        if instruction == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (repository / source).exists()
                assert source not in ignored


def test_the_image_has_every_library_that_the_build_links(deploy: Path) -> None:
    """Lua is linked whole; of the others a -dev package in the first stage has its library in the second."""
    installs = [rest for instruction, rest in instructions(deploy) if instruction == "RUN" and "apt-get" in rest]
    for development, runtime in (("liblz4-dev", "liblz4-1"), ("libzstd-dev", "libzstd1"), ("libssl-dev", "libssl3")):
        assert development in installs[0]
        assert runtime in installs[1]
    assert "liblua5.1-0-dev" in installs[0]


def test_the_command_of_the_image_is_accepted_and_wants_a_password(deploy: Path, tmp_path: Path) -> None:
    (command,) = [json.loads(rest) for instruction, rest in instructions(deploy) if instruction == "CMD"]
    words = [word.replace("/etc/replay-server", str(deploy)).replace("/data", str(tmp_path))
             for word in serve_arguments(command)]  # fmt: skip
    options = cli.serve_parser().parse_args(words)
    assert options.host == "0.0.0.0"
    done = subprocess.run(
        [sys.executable, "-m", "replay_server", "serve", *words, "--port", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no password" in done.stderr


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def objects_of(deploy: Path, name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray")
    found = list(yaml.safe_load_all((deploy / "kubernetes" / f"{name}.yaml").read_text()))
    return {each["kind"]: each for each in found}


@pytest.fixture
def objects(deploy: Path) -> dict[str, Any]:
    return objects_of(deploy, "replay-server")


BOTH = pytest.mark.parametrize("name", ["replay-server", "replay-shards"])


@BOTH
def test_the_objects_fit_their_schemas(deploy: Path, name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for each in objects_of(deploy, name).values():
        validate.validate(each, "1.28", strict=True)


@BOTH
def test_the_objects_name_one_another(deploy: Path, name: str) -> None:
    objects = objects_of(deploy, name)
    assert {kind: each["metadata"]["name"] for kind, each in objects.items()} == dict.fromkeys(
        ("Secret", "ConfigMap", "Service", "StatefulSet"), name
    )
    sts = objects["StatefulSet"]["spec"]
    labels = sts["template"]["metadata"]["labels"]
    assert sts["selector"]["matchLabels"] == labels == objects["Service"]["spec"]["selector"]
    assert sts["serviceName"] == objects["Service"]["metadata"]["name"]
    assert (sts["replicas"] == 1) == (name == "replay-server"), "a second one would lack the first one's data"
    pod = sts["template"]["spec"]
    (container,) = pod["containers"]
    named = {volume["name"] for volume in pod["volumes"]}
    named |= {claim["metadata"]["name"] for claim in sts["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == named
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        (how,) = {"tcpSocket", "httpGet"} & set(container[probe])
        assert container[probe][how]["port"] in ports
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert {port["targetPort"] for port in objects["Service"]["spec"]["ports"]} == ports


@BOTH
def test_the_pod_is_closed(deploy: Path, name: str) -> None:
    pod = objects_of(deploy, name)["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_server_of_the_pod_serves_with_the_settings_of_the_map(objects: dict[str, Any], tmp_path: Path) -> None:
    """Its command, with the pod's folders as they are here; the file must load, and the password open the door."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "replay-server.toml"
    text = objects["ConfigMap"]["data"][file.name].replace("metrics-port = 9121", "metrics-port = 0")
    file.write_text(text.replace("/etc/replay-server-secret", str(tmp_path)).replace("/data", f"{tmp_path}/data"))
    (tmp_path / "password").write_text(objects["Secret"]["stringData"]["password"])
    assert load_config(file).host == "0.0.0.0"
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    words = [word.replace("/etc/replay-server/", f"{tmp_path}/") for word in serve_arguments(container["args"])]
    command = [sys.executable, "-m", "replay_server", "serve", *words, "--port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            metrics = re.search(r"metrics=http://127\.0\.0\.1:(\d+)/", ready)
            assert metrics is not None, ready
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics[1]}/healthz", timeout=60) as answer:
                assert answer.status == 200
            url = ready.split()[1].removeprefix("url=")
            with rs.Client(url) as stranger, pytest.raises(rs.ReplayError):
                stranger.tables()
            with rs.Client(url.replace("://", f"://:{read_password(tmp_path / 'password')}@")) as client:
                assert client.redis.config_get("save") == {"save": "3600 1"}
                client.redis.set("key", "value")
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert list((tmp_path / "data").glob("*.snapshot")), "rules of save: a stop writes one"


# ---- Kubernetes, shards ----------------------------------------------------------------------------------------------


NAME_SERVICE = """
import re
import runpy
import socket

known = socket.getaddrinfo


def getaddrinfo(host, *further, **named):
    pod = re.fullmatch(r"replay-shards-(\\d+)\\.replay-shards", str(host))
    return known(f"127.0.0.{int(pod[1]) + 2}" if pod else host, *further, **named)


socket.getaddrinfo = getaddrinfo
"""
"""A module of Python's start that knows the names which the headless service gives to pods."""


class Pods:
    """The command of replay-shards.yaml, run for several pods, whose names stand for addresses of loopback.

    `settings` follow those of the ConfigMap."""

    def __init__(self, objects: dict[str, Any], folder: Path, port: int, settings: str = "") -> None:
        sts = objects["StatefulSet"]["spec"]
        (container,) = sts["template"]["spec"]["containers"]
        self._shell, (self._script,) = container["command"], container["args"]
        self._environment = {each["name"]: each["value"] for each in container["env"]}
        assert sts["podManagementPolicy"] == "Parallel", "a pod waits for none before it"
        assert self._environment == {"PODS": str(sts["replicas"])}
        self._settings = objects["ConfigMap"]["data"]["replay-server.toml"] + settings
        self._folder, self._port = folder, port
        (folder / "password").write_text("a-password-of-the-test")
        (folder / "start").mkdir()
        (folder / "start/sitecustomize.py").write_text(NAME_SERVICE)
        self._running: dict[int, subprocess.Popen[str]] = {}

    def url(self, *pods: int) -> str:
        return "redis+cluster://:a-password-of-the-test@" + ",".join(f"127.0.0.{pod + 2}:{self._port}" for pod in pods)

    def launch(self, *pods: int) -> None:
        """Starts their processes."""
        for pod in pods:
            address, data = f"127.0.0.{pod + 2}", self._folder / f"pod-{pod}"
            data.mkdir(exist_ok=True)
            settings = self._folder / f"{pod}.toml"
            settings.write_text(
                self._settings.replace("0.0.0.0", address)
                .replace("port = 6379", f"port = {self._port}")
                .replace("metrics-port = 9121", "metrics-port = 0")
                .replace("/etc/replay-server-secret", str(self._folder))
                .replace("/data", str(data))
            )
            script = (
                self._script.replace("replay-shards:6379", f"replay-shards:{self._port}")
                .replace("/etc/replay-server/replay-server.toml", str(settings))
                .replace("replay-server cluster", f"{sys.executable} -m replay_server cluster")
            )
            paths = os.pathsep.join(filter(None, (str(self._folder / "start"), os.environ.get("PYTHONPATH"))))
            own = {"HOSTNAME": f"replay-shards-{pod}", "PYTHONPATH": paths}
            environment = {**os.environ, **self._environment, **own}
            with (self._folder / f"{pod}.log").open("a") as errors:
                self._running[pod] = subprocess.Popen(
                    [*self._shell, script], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=data
                )

    def ready(self, pod: int) -> str:
        """The line that it prints when it serves."""
        output = self._running[pod].stdout
        assert output is not None
        return output.readline()

    def start(self, *pods: int) -> list[str]:
        """The lines that they print when they serve."""
        self.launch(*pods)
        return [self.ready(pod) for pod in pods]

    def stop(self, *pods: int) -> None:
        for pod in pods:
            self._running[pod].terminate()
        assert [self.status(pod) for pod in pods] == [0] * len(pods)

    def lose_volume(self, pod: int) -> None:
        shutil.rmtree(self._folder / f"pod-{pod}")

    def status(self, pod: int) -> int:
        """With which it ends."""
        with self._running.pop(pod) as process:
            return process.wait(60)

    def log(self, pod: int) -> list[str]:
        """The lines that it printed as errors, without those that it waits."""
        lines = (self._folder / f"{pod}.log").read_text().splitlines()
        return [line for line in lines if "waiting for" not in line]

    def wait_until_it_waits(self, pod: int) -> None:
        until = time.monotonic() + 100
        while "waiting for" not in (self._folder / f"{pod}.log").read_text():
            assert self._running[pod].poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._running.values():
            with process:
                process.kill()  # its shard ends with it


TABLES = """
[[tables]]
name = "t"
capacity = 100
sampler = {kind = "uniform"}
signature = {x = {dtype = "int64", shape = []}}
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return probe.getsockname()[1]


@pytest.fixture
def pods(deploy: Path, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    found = Pods(objects_of(deploy, "replay-shards"), tmp_path, port, TABLES)
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # put back after the test
    runpy.run_path(str(tmp_path / "start/sitecustomize.py"))
    yield found
    found.close()


def numbers_told_by(url: str) -> list[int]:
    with Shards(url) as shards:
        return [shard.number for shard in shards.topology.shards]


def test_the_pods_of_the_set_are_one_replay_and_each_comes_back_to_it(pods: Pods) -> None:
    for ready in pods.start(0, 1, 2):
        assert ready.startswith("ready url=redis+cluster://replay-shards-0.replay-shards:")
    with rs.Client(pods.url(0)) as client:
        assert client.info("t")["capacity"] == 300
        ids = client.add("t", {"x": np.arange(90)})
        client.redis.set("key", "value")
        assert numbers_told_by(pods.url(0)) == [0, 1, 2]
    pods.stop(1, 0)  # rules of save: they write snapshots
    for pod in (1, 0):  # the first one is away when another one comes back
        assert "replay-shards-2.replay-shards:" in pods.start(pod)[0]
    with rs.Client(pods.url(2, 1)) as client:
        assert sorted(client.get("t", ids).data["x"].tolist()) == list(range(90))
        assert client.redis.get("key") == b"value"
        assert numbers_told_by(pods.url(2, 1)) == [0, 1, 2]
    assert [pods.log(pod) for pod in range(3)] == [[], [], []]


def test_the_first_pod_without_its_volume_joins_the_others(pods: Pods) -> None:
    pods.start(0, 1, 2)
    with rs.Client(pods.url(0)) as client:
        ids = client.add("t", {"x": np.arange(90)})
    pods.stop(0)
    pods.lose_volume(0)
    (ready,) = pods.start(0)
    assert ready.count("replay-shards-") == 3
    (said,) = pods.log(0)
    assert said.startswith("shard 0 was at replay-shards-0.replay-shards:")
    with rs.Client(pods.url(0)) as client:
        assert numbers_told_by(pods.url(0)) == [1, 2, 3]
        assert client.info("t")["capacity"] == 300
        left = ids[ids >> np.uint64(56) != 0]
        assert len(client.get("t", left)) == client.info("t")["size"] == len(left)
        client.redis.set("key", "value")
    with rs.Client(pods.url(2)) as client:
        assert client.redis.get("key") == b"value"
    pods.stop(0)  # with its new number it comes back as any other
    assert pods.start(0)[0].count("replay-shards-") == 3
    assert numbers_told_by(pods.url(1)) == [1, 2, 3]


def test_pods_that_start_together_find_that_the_first_one_has_lost_its_volume(pods: Pods) -> None:
    pods.start(0, 1, 2)
    with rs.Client(pods.url(0)) as client:
        client.add("t", {"x": np.arange(90)})
        left = client.info("t")["shards"]
    pods.stop(0, 1, 2)
    pods.lose_volume(0)
    pods.launch(0, 1, 2)
    while not (ready := pods.ready(0)):  # it gives up after 30 s, and Kubernetes starts it again
        assert pods.status(0) == 1
        pods.launch(0)
    assert ready.count("replay-shards-") == 3
    assert all(pods.ready(pod) for pod in (1, 2))
    with rs.Client(pods.url(2)) as client:
        assert numbers_told_by(pods.url(2)) == [1, 2, 3]
        assert client.info("t")["size"] == left[1]["size"] + left[2]["size"]


def test_a_pod_that_finds_no_cluster_waits_and_one_that_joins_tells_which_tables_it_leaves_out(
    deploy: Path, tmp_path: Path, pods: Pods, port: int
) -> None:
    (tmp_path / "another").mkdir()
    another = Pods(objects_of(deploy, "replay-shards"), tmp_path / "another", port, TABLES.replace('"t"', '"later"'))
    try:
        another.launch(1)
        another.wait_until_it_waits(1)
        another.stop(1)
        another.launch(1)
        pods.start(0, 2)
        assert another.ready(1).startswith("ready")
        (said,) = another.log(1)
        assert "table 'later' of the file is left out" in said
        with rs.Client(pods.url(0)) as client:
            assert client.tables() == ["t"]
    finally:
        another.close()
