"""What is packed: the wheel holds one import root with server and binding inside; the sdist holds what builds it."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from replay_server.errors import ServerError
from replay_server.server import find_executable

pytest.importorskip("scikit_build_core", reason="needs scikit-build-core (make setup installs it)")


def build(repository: Path, folder: Path, kind: str) -> Path:
    """Builds a wheel or an sdist of the checkout as pip would, without fetching anything."""
    code = f"import sys; from scikit_build_core.build import build_{kind}; build_{kind}(sys.argv[1])"
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=repository, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(repository, tmp_path_factory.mktemp("wheel"), "wheel"))


def test_the_wheel_installs_one_import_root(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"replay_server"}


def test_the_wheel_holds_all_parts_at_their_place(wheel: zipfile.ZipFile, repository: Path) -> None:
    names = set(wheel.namelist())
    for folder, prefix in (
        ("replay_server", "replay_server"),
        ("actors", "replay_server/actors"),
        ("learner", "replay_server/learner"),
        ("serverless", "replay_server/serverless"),
        ("bench", "replay_server/bench"),
    ):
        for path in (repository / folder).rglob("*.py"):
            if "deploy" in path.parts or "papers" in path.parts:  # see below
                continue
            expected = f"{prefix}/{path.relative_to(repository / folder)}"
            assert expected in names, f"{expected} is missing"
    assert "replay_server/py.typed" in names
    assert "replay_server/serverless/prices.toml" in names


def test_the_wheel_leaves_out_what_reproduces_papers_and_what_containers_are_made_of(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if "/papers" in name or "/deploy" in name] == []


def test_the_wheel_holds_the_server_and_the_binding(wheel: zipfile.ZipFile) -> None:
    server = wheel.getinfo("replay_server/bin/replay-server-kernel")
    assert (server.external_attr >> 16) & 0o111, "the server must be executable"
    assert any(name.startswith("replay_server/_native.") and name.endswith(".so") for name in wheel.namelist())


def needed_libraries(file: Path) -> list[str]:
    """What the loader will look for, from the file's dynamic section."""
    shown = subprocess.run(["readelf", "--dynamic", "--wide", file], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    return re.findall(r"\(NEEDED\).*\[(.*)\]", shown.stdout)


def test_the_base_install_links_no_dpdk(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Only the executables and the extension that are for it do."""
    for name in wheel.namelist():
        if not name.startswith("replay_server/bin/") and not name.endswith(".so"):
            continue
        needs = needed_libraries(Path(wheel.extract(name, tmp_path)))
        assert "libc.so.6" in needs, name
        is_for_dpdk = Path(name).name.startswith(
            ("replay-server-dpdk", "replay-bench-client-dpdk", "replay-server-fstack", "_dpdk.")
        )
        assert any(library.startswith("librte_") for library in needs) == is_for_dpdk, name


@pytest.mark.parametrize("transport", ["dpdk", "fstack"])
def test_the_wheel_holds_the_transports_that_were_built(wheel: zipfile.ZipFile, transport: str) -> None:
    try:
        find_executable(transport)
    except ServerError as error:
        pytest.skip(str(error))
    if transport == "fstack" and "FF_PATH" not in os.environ:
        pytest.skip("where F-Stack is was said at set-up, and is not now: FF_PATH")
    server = wheel.getinfo(f"replay_server/bin/replay-server-{transport}")
    assert (server.external_attr >> 16) & 0o111, "the server must be executable"


def test_the_wheel_leaves_out_tests_sources_and_caches(wheel: zipfile.ZipFile) -> None:
    wrong = [
        name
        for name in wheel.namelist()
        if "__pycache__" in name or "/tests/" in name or name.endswith((".c", ".h", ".o"))
    ]
    assert not wrong


def test_the_base_install_asks_for_no_training_package(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(path))
    base = {line.split(";")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    names = {name.split(">")[0].strip() for name in base}
    assert names - {"tomli"} == {"numpy", "cffi", "msgpack", "redis", "uvloop"}  # tomli: before Python 3.11
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "rl",
        "atari",
        "mujoco",
        "plots",
        "ray",
        "lambda",
        "http",
        "functions",
        "serverless",
        "dashboard",
        "docs",
        "dev",
        "all",
        "wandb",
        "completion",
        "bfloat16",
    }


@pytest.fixture(scope="module")
def sdist(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(repository, tmp_path_factory.mktemp("sdist"), "sdist")


def test_pip_makes_the_same_wheel_of_the_sdist(sdist: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        [*pip, sdist], env={**os.environ, "PATH": tools}, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    (made,) = tmp_path.iterdir()
    # What is compiled depends on what is there: a checkout may have fetched lwIP.
    of_sdist, of_checkout = (
        {name for name in each.namelist() if not name.startswith("replay_server/bin/") and not name.endswith(".so")}
        for each in (zipfile.ZipFile(made), wheel)
    )
    assert of_sdist == of_checkout


def test_the_sdist_holds_what_builds_and_tests_it(repository: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        links = [each.name for each in archive.getmembers() if each.issym() or each.islnk()]
    assert links == []  # pip refuses some, depending on the Python that it runs with
    for path in (
        "pyproject.toml",
        "Makefile",
        "README.md",
        "LICENSE",
        "constraints.txt",
        "tests/conftest.py",
        "serverless/prices.toml",
    ):
        assert path in names, f"{path} is missing"
    for path in ("native/net/lwip/fetch", "setup_dpdk.sh", "native/net/dpdk/setup/journal.sh", ".ci/system-packages"):
        assert path in names, f"{path} is missing"
    for folder in ("native", "replay_server", "actors", "learner", "serverless", "bench", "tests"):
        for path in (repository / folder).rglob("*"):
            relative = str(path.relative_to(repository))
            if path.suffix in (".c", ".h", ".py") and "__pycache__" not in relative:
                assert relative in names, f"{relative} is missing"
    assert not [name for name in names if name.startswith((".venv/", "build/", "runs/", ".git/"))]
