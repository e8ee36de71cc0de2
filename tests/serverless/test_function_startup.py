"""What a function loads before it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("mujoco")

import replay_server as rs
from replay_server.bench.functions import ActorJob
from replay_server.rl.function_contract import decode_response

CODE = """
import json, sys
from replay_server.serverless.function import handle
before = sorted(sys.modules)
with open(sys.argv[1], "rb") as file:
    answer = handle(file.read())
with open(sys.argv[2], "wb") as file:
    file.write(answer)
print(json.dumps([before, sorted(sys.modules)]))
"""


def test_an_actor_function_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    asked, answered = tmp_path / "request", tmp_path / "response"
    with rs.Server() as server, rs.Client(server.url) as client:
        asked.write_bytes(ActorJob(client, "job", "Hopper-v5", 8, 1).request(0))
        told = subprocess.run(
            [sys.executable, "-c", CODE, str(asked), str(answered)], stdout=subprocess.PIPE, timeout=120, check=True
        )
    response = decode_response(answered.read_bytes())
    assert response.failure is None, response.failure.traceback
    assert response.measured.cold
    before, after = (set(names) for names in json.loads(told.stdout))
    # Until it knows what is asked of it, nothing of training; then what an actor on MuJoCo needs, and no more.
    assert not before & {"torch", "gymnasium", "mujoco", "redis", "asyncio"}
    assert {"torch", "gymnasium", "mujoco"} <= after
    unneeded = {
        "redis", "ale_py", "cv2", "tensorboard", "matplotlib", "rich", "safetensors", "ray", "botocore", "aiohttp",
    }  # fmt: skip
    assert not after & unneeded
    packages = (
        "replay_server.learner",
        "replay_server.jobs",
        "replay_server.bench",
        "replay_server.serverless.backends",
    )
    assert not [name for name in after if name.startswith(packages)]
