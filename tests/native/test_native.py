"""Builds the C tests under AddressSanitizer and UndefinedBehaviorSanitizer, runs each, fuzzes what reads the wire."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# Kept between runs, so that only what changed is compiled.
BUILD = REPOSITORY / "build" / "native-tests"
TESTS = sorted(path.stem for path in HERE.glob("test_*.c"))
FUZZERS = sorted(path.stem for path in HERE.glob("fuzz_*.c") if path.stem != "fuzz_main")
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "5"))
SIMULATION = REPOSITORY / "build" / "simulation"
SEEDS = int(os.environ.get("SEEDS", "10000"))
JOBS = min(os.cpu_count() or 1, 64)


def tool(name: str) -> str:
    """A build tool: the environment's own before the system's."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (make setup installs it)")
    return found


def build(folder: Path, *options: str, targets: tuple[str, ...] = ()) -> None:
    """Compiles what changed since the last time, with warnings as errors."""
    configure = [
        tool("cmake"),
        *("-S", str(REPOSITORY / "native"), "-B", str(folder), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        *("-DREPLAY_TESTS=ON", "-DREPLAY_WERROR=ON", *options),
    ]
    chosen = ["--target", *targets] if targets else []
    for command in (configure, [tool("cmake"), "--build", str(folder), "-j", "2", *chosen]):
        result = subprocess.run(command, capture_output=True, text=True, timeout=800)
        assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]


@pytest.fixture(scope="session")
def native_build() -> Path:
    """The folder with the test programs."""
    build(BUILD, "-DREPLAY_SANITIZE=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-O1")
    return BUILD


@pytest.fixture(scope="session")
def simulation() -> Path:
    """The simulated machines, optimized; without link-time optimization compilers warn of more than there is."""
    build(SIMULATION, "-DREPLAY_WERROR=OFF", targets=("test_failing_machine", "test_failing_network"))
    return SIMULATION


def run(program: Path, *arguments: str, folder: Path, timeout_s: int) -> None:
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    result = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )
    assert result.returncode == 0, f"exit status {result.returncode}\n{(result.stdout + result.stderr)[-6000:]}"


@pytest.mark.parametrize("name", TESTS)
def test_c(name: str, native_build: Path, tmp_path: Path) -> None:
    if name == "test_lwip" and not (native_build / name).exists():
        pytest.skip("needs DPDK and lwIP's source: install libdpdk-dev, then run make setup")
    run(native_build / name, folder=tmp_path, timeout_s=600)
    assert list(tmp_path.iterdir()) == [], "a test writes into a folder of its own: own_folder.h"


@pytest.mark.parametrize("name", FUZZERS)
def test_fuzz(name: str, native_build: Path, tmp_path: Path) -> None:
    """No input of the bounded search makes the sanitizers speak. FUZZ_SECONDS sets the bound."""
    if name == "fuzz_tls" and not (native_build / name).exists():
        pytest.skip("needs OpenSSL: install libssl-dev")
    corpus = HERE / f"{name}.corpus"  # inputs of earlier searches, from which this one goes on
    begin = [f"-corpus={corpus}"] if corpus.exists() else []
    run(native_build / name, f"-max_total_time={FUZZ_SECONDS}", *begin, folder=tmp_path, timeout_s=FUZZ_SECONDS + 600)


@pytest.mark.timeout(1800)
def test_simulation(simulation: Path, tmp_path: Path) -> None:
    """Many seeds of the simulated machine, without sanitizers; SEEDS sets how many."""
    program = simulation / "test_failing_machine"
    run(program, f"-seeds={SEEDS}", f"-jobs={JOBS}", folder=tmp_path, timeout_s=1700)


@pytest.mark.timeout(1800)
def test_simulated_replica(simulation: Path, tmp_path: Path) -> None:
    """Likewise of a primary and a replica over a simulated network, of which a seed takes longer."""
    program = simulation / "test_failing_network"
    run(program, f"-seeds={max(SEEDS // 10, 1)}", f"-jobs={JOBS}", folder=tmp_path, timeout_s=1700)
