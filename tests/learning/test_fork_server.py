"""Processes forked from one that has imported torch: how they end, and what outlives what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from apex_job import alive, wait_until

from replay_server.jobs import fork_server
from replay_server.jobs.fork_server import ChildFailed, ForkedProcess, ask

ASKS = """
import sys
from pathlib import Path
from replay_server.jobs.fork_server import ask
ask("asked", sys.argv[1], {}, Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a fork server of this module's own finds modules."""
    made = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "_server", None)
        patch.setenv("PYTHONPATH", str(made))
        yield made


@pytest.fixture
def module(folder: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a module with these lines in its `main`; its name."""

    def make(*lines: str) -> str:
        name = f"forked_{abs(hash((request.node.name, lines)))}"
        body = "".join(f"    {line}\n" for line in lines)
        (folder / f"{name}.py").write_text(
            f"import json, os, random, signal, sys, time\nimport numpy as np\n"
            f"from replay_server.jobs.fork_server import asked\n\ndef main():\n{body}"
        )
        return name

    return make


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("return 0", 0),
        ("return 7", 7),
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("raise RuntimeError('it fails')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os._exit(9)", 9),
    ],
)
def test_its_exit_code_is_known(module, tmp_path, line, code):
    process = ForkedProcess("it", module(line), tmp_path / "log")
    assert process.wait(60.0) == code
    assert process.wait(0.0) == code
    process.kill()
    assert ("RuntimeError: it fails" in (tmp_path / "log").read_text()) == ("it fails" in line)


def test_it_answers_a_question(module):
    assert ask("it", module("print('words'); print(json.dumps([asked(), 1])); return 0"), {"a": [2]}) == [{"a": [2]}, 1]


def test_a_failure_is_told_by_its_last_line_and_the_rest_is_in_the_log(module, tmp_path):
    with pytest.raises(ChildFailed, match="failed with exit code 1: ValueError: so it is"):
        ask(
            "it",
            module("asked()", "print('before', file=sys.stderr)", "raise ValueError('so it is')"),
            0,
            tmp_path / "l",
        )
    assert "before" in (tmp_path / "l").read_text()


def test_what_takes_too_long_is_ended(module, tmp_path):
    name = module("asked()", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")
    with pytest.raises(TimeoutError, match=r"it took longer than 2 s"):
        ask("it", name, 0, timeout_s=2.0)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_it_ends_with_whoever_asked(module, folder, tmp_path):
    name = module("asked()", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")
    asker = subprocess.Popen([sys.executable, "-c", ASKS, name, str(tmp_path / "log")])
    try:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    finally:
        asker.kill()
        asker.wait()
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_processes_outlive_what_they_were_forked_from_and_tell_their_exit_codes(module, tmp_path):
    goes_on = module("asked(os._exit)", "sys.stdin.read()", "return 5")
    first = ForkedProcess("it", module("os.read(0, 1)", "return 5"), tmp_path / "log")
    killed = ForkedProcess("it", goes_on, tmp_path / "log")
    assert fork_server._server is not None
    os.kill(fork_server._server.process.pid, signal.SIGKILL)
    fork_server._server.process.wait()
    time.sleep(0.2)
    assert first.wait(0.0) is None
    first.hang_up()
    assert first.wait(60.0) == 5
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(60.0) == fork_server.UNKNOWN_EXIT
    assert ForkedProcess("it", module("return 4"), tmp_path / "log").wait(60.0) == 4


def test_no_two_draw_the_same_numbers(module):
    name = module("asked()", "print(json.dumps([random.random(), float(np.random.rand())]))", "return 0")
    first, second = ask("it", name, 0), ask("it", name, 0)
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each process imports what it needs itself")
def test_what_a_learner_needs_has_been_imported_before_it_is_forked(module):
    """Each import that is left takes its time before every measurement of the machine, and every learner's start."""
    name = module(
        "from replay_server.learner.replay_algorithms import make_learner",
        "from replay_server.rl.environment_spec import environment_spec",
        "from replay_server.rl.settings import ApexSettings",
        "import torch",
        "settings = ApexSettings(env='CartPole-v1', hidden=16)",
        "spec, before = environment_spec(settings), set(sys.modules)",
        "make_learner(settings, spec, torch.device('cpu'), 'float32')",
        "print(json.dumps([sorted(set(sys.modules) - before), len(os.listdir('/proc/self/task'))]))",
        "return 0",
    )
    assert ask("it", name, 0) == [[], 1]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="tells how much memory is a process's own")
def test_collecting_garbage_copies_none_of_the_memory_that_forked_processes_share(module):
    own = "int(open('/proc/self/smaps_rollup').read().split('Private_Dirty:')[1].split()[0])"
    before_kb, after_kb = ask(
        "it", module("import gc", f"before = {own}", "gc.collect()", f"print([before, {own}])", "return 0"), 0
    )
    assert after_kb < before_kb + 20_000, "what is imported is in 80 MB"
