"""Every platform that functions run on, for tests that ask the same of all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from replay_server.serverless.backends.backend import Platform, make_platform

LIMIT_S = 120.0
"""Of one invocation."""


@contextlib.contextmanager
def lambda_platform() -> Iterator[Platform]:
    pytest.importorskip("botocore")
    pytest.importorskip("awslambdaric")
    from lambda_emulator import LambdaEmulator

    with LambdaEmulator() as emulator, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "emulated")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "emulated")
        emulator.deploy("functions", timeout_s=LIMIT_S, environment={"OMP_NUM_THREADS": "1"})  # as in the image
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
    "http": lambda: platform_of_its_own("http"),
}
