"""The same requests on every platform: what is played and learned there is equal bit by bit."""

from __future__ import annotations

import dataclasses
import hashlib
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco")

from places import LIMIT_S, PLACES  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.fragments import fragment_signature  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    ActorRequest,
    LearnerRequest,
    Names,
    decode_request,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.run_directory import RunDirectory  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402
from replay_server.serverless.backends.backend import PLATFORMS, Backend, Platform  # noqa: E402
from replay_server.serverless.orchestrator import Orchestrator  # noqa: E402
from replay_server.serverless.run_log import read_rounds  # noqa: E402
from replay_server.serverless.settings import TrainSettings  # noqa: E402


def add_fragments(digest: Any, client: rs.Client, table: str, ids: bytes) -> None:
    """Every byte of these fragments, and what they are, into the hash."""
    columns = client.get(table, np.frombuffer(ids, "<u8")).data
    for name in sorted(columns):
        digest.update(f"{name} {columns[name].dtype} {columns[name].shape}".encode())
        digest.update(np.ascontiguousarray(columns[name]).tobytes())


def play(server: rs.Server, client: rs.Client, platform: Platform) -> str:
    """A hash over two rounds of an actor on Hopper, the second from where the first ended."""
    settings = PpoSettings(env="Hopper-v5", steps=96, seed=7)
    spec = policy_spec(settings)
    names = Names(f"same-{platform.name}")
    signature = fragment_signature(settings, spec)
    client.create_table(
        rs.Table(names.fragments, capacity=50, signature=signature, sampler=rs.Fifo(), remover=rs.Fifo())
    )
    digest = hashlib.sha256()
    state = None
    with Backend(platform, concurrency=1, timeout_s=LIMIT_S) as backend:
        for round in (1, 2):
            network = make_policy_network(dataclasses.replace(settings, seed=round), spec)
            client.publish_weights(names.policy, module_arrays(network), version=round)
            request = ActorRequest(
                f"act-{round}", server.url, names.job, dataclasses.asdict(settings), "ppo", round, round,
                environments=2, sequence=round - 1, state=state,
            )  # fmt: skip
            result = decode_response(backend.submit(encode_request(request)).result(LIMIT_S)).result
            assert result is not None
            assert len(result["fragments"]) == 2 * 8
            state = result["state"]
            add_fragments(digest, client, names.fragments, result["fragments"])
    client.drop_table(names.fragments)
    return digest.hexdigest()


def test_trajectories_on_hopper_are_equal_bit_by_bit_on_every_platform(server):
    found = {}
    with rs.Client(server.url) as client:
        for name, place in PLACES.items():
            with place() as platform:
                found[name] = play(server, client, platform)
    assert set(found) == set(PLATFORMS)
    assert len(set(found.values())) == 1, found


class HashingBackend(Backend):
    """A backend that reads what learners are about to be given."""

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.digest = hashlib.sha256()
        self.fragments = 0

    def submit(self, payload: bytes, **options: Any) -> Future[bytes]:
        request = decode_request(payload)
        if isinstance(request, LearnerRequest):
            with rs.Client(request.server_url) as client:
                add_fragments(self.digest, client, request.names.fragments, request.fragments)
            self.fragments += len(request.fragments) // 8
        return super().submit(payload, **options)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_of_8_actors_and_10_rounds_goes_the_same_way_on_every_platform(tmp_path):
    found = {}
    for name, place in PLACES.items():
        settings = TrainSettings(
            env="Hopper-v5", algo="ppo", seed=5, actors=8, rounds=10, steps=256, learner_threads=1, final_episodes=0,
            backend=name, job="same", logdir=str(tmp_path / name),
        )  # fmt: skip
        run = RunDirectory(tmp_path / name)
        run.create(settings)
        made: list[HashingBackend] = []

        def make_backend(*values: Any, made: list[HashingBackend] = made, **options: Any) -> HashingBackend:
            made.append(HashingBackend(*values, **options))
            return made[-1]

        with place() as platform:
            orchestrator = Orchestrator(settings, run, platform=platform, make_backend=make_backend)
            assert orchestrator.run() == "rounds"
        rounds = read_rounds(run.path)
        assert [each.steps for each in rounds] == 10 * [8 * 256]
        assert sum(each.fragments for each in made) == 80
        learned = [(each.scores, dict(each.statistics)) for each in rounds]
        found[name] = [each.digest.hexdigest() for each in made], learned
    assert set(found) == set(PLATFORMS)
    assert all(each == found["process"] for each in found.values()), found
