"""Which extra of this package brings a module that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "torch": "rl",
    "gymnasium": "rl",
    "safetensors": "rl",
    "ale_py": "atari",
    "cv2": "atari",
    "mujoco": "mujoco",
    "matplotlib": "plots",
    "tensorboard": "plots",
    "rich": "dashboard",
    "nicegui": "dashboard",
    "fastapi": "dashboard",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
    "ray": "ray",
    "botocore": "lambda",
    "awslambdaric": "lambda",
    "functions_framework": "http",
    "aiohttp": "http",
    "yarl": "http",
    "flask": "http",
    "cloudevents": "http",
    "wandb": "wandb",
    "shtab": "completion",
    "ml_dtypes": "bfloat16",
}
"""Module → extra of pyproject.toml."""
PACKAGES = {
    "jax": "jax",
    "stable_baselines3": "stable-baselines3",
    "tensordict": "torchrl",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
    "transfer_queue": "TransferQueue",
    "tree": "ray[rllib]",
}
"""Module → the package that has it. These modules are in no extra: their libraries get environments of their own."""


def how_to_install(module: str | None) -> str:
    """The command that installs what a module belongs to: an extra of this package where one has it."""
    top = (module or "").partition(".")[0]
    if top in EXTRAS:
        return f"pip install 'replay-server[{EXTRAS[top]}]'"
    return f"pip install '{PACKAGES[top]}'" if top in PACKAGES else "install the package that it is in"


@contextmanager
def needed_by(module: str) -> Iterator[None]:
    """Around a module's imports of libraries: a ModuleNotFoundError says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "replay_server":
            raise
        told = f"{module} needs {error.name}: {how_to_install(error.name)}"
        raise ModuleNotFoundError(told, name=error.name, path=error.path) from error
