"""The same requests on every platform: what is played and learned there is equal bit by bit."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco")

import replay_server as rs  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.fragments import fragment_signature  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    ActorRequest,
    Names,
    WarmRequest,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402
from replay_server.serverless.backends.backend import PLATFORMS, Backend, Platform, make_platform  # noqa: E402

LIMIT_S = 120.0


@contextlib.contextmanager
def lambda_platform() -> Iterator[Platform]:
    pytest.importorskip("boto3")
    pytest.importorskip("awslambdaric")
    from lambda_emulator import LambdaEmulator

    with LambdaEmulator() as emulator, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "emulated")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "emulated")
        emulator.deploy("functions", timeout_s=LIMIT_S)
        options = {"function": "functions", "region": "eu-central-1", "endpoint_url": emulator.url}
        with contextlib.closing(make_platform("lambda", **options)) as platform:
            yield platform


@contextlib.contextmanager
def platform_of_its_own(name: str) -> Iterator[Platform]:
    with contextlib.closing(make_platform(name)) as platform:
        yield platform


PLACES: dict[str, Callable[[], contextlib.AbstractContextManager[Platform]]] = {
    "process": lambda: platform_of_its_own("process"),
    "ray": lambda: platform_of_its_own("ray"),
    "lambda": lambda_platform,
}


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running
        assert running.running, f"the server died: {running.log()}"


def play(server: rs.Server, client: rs.Client, platform: Platform) -> str:
    """A hash over two rounds of two actors on Hopper, the second round from where the first ended."""
    settings = PpoSettings(env="Hopper-v5", steps=96, seed=7)
    spec = policy_spec(settings)
    names = Names(f"same-{platform.name}")
    signature = fragment_signature(settings, spec)
    client.create_table(
        rs.Table(names.fragments, capacity=50, signature=signature, sampler=rs.Fifo(), remover=rs.Fifo())
    )
    digest = hashlib.sha256()
    states: list[str | None] = [None, None]
    with Backend(platform, concurrency=2, timeout_s=LIMIT_S) as backend:
        for round in (1, 2):
            network = make_policy_network(dataclasses.replace(settings, seed=round), spec)
            client.publish_weights(names.policy, module_arrays(network), version=round)
            requests = [
                ActorRequest(
                    f"act-{round}-{actor}", server.url, names.job, dataclasses.asdict(settings), "ppo", round, round,
                    actor=actor, environments=2, sequence=round - 1, state=states[actor],
                )
                for actor in range(2)
            ]  # fmt: skip
            for actor, answer in enumerate([backend.submit(encode_request(request)) for request in requests]):
                result = decode_response(answer.result(LIMIT_S)).result
                assert result is not None
                states[actor] = result["state"]
                columns = client.get(names.fragments, np.frombuffer(result["fragments"], "<u8")).data
                assert result["steps"] == 2 * settings.steps
                for name in sorted(columns):
                    digest.update(f"{round} {actor} {name} {columns[name].dtype} {columns[name].shape}".encode())
                    digest.update(np.ascontiguousarray(columns[name]).tobytes())
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
