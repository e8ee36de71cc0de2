"""Which extra of this package brings a module that is not installed."""

from __future__ import annotations

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


def how_to_install(module: str | None) -> str:
    """The command that installs what a module belongs to: an extra of this package where one has it."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return f"pip install 'replay-server[{extra}]'" if extra else "install the package that it is in"
