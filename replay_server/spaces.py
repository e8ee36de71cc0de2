"""Signatures from the spaces of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

from .errors import SchemaError
from .selectors import check_whole
from .table import Column, Table, Window

_OF_ONE_SHAPE = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
_EXPECTED = "expected Box, Discrete, MultiBinary, MultiDiscrete, and Dict and Tuple of these"


def signature_of(env: Any, n_step: int | None = None) -> dict[str, Any]:
    """The signature of a table for the transitions of an environment.

    Spaces become columns of their own dtype and shape: a Box as it is, images included, a Discrete a single int64, a
    MultiBinary int8 and a MultiDiscrete int64 of their shape. Dict and Tuple spaces become dicts and tuples of columns,
    so that `add` and writers take what `env.reset` and `env.step` return.

    Args:
        env: a `gymnasium.Env`, or a `gymnasium.vector.VectorEnv`, of which it is the signature for one environment.
        n_step: None: for `add`. A number: for `writer(n_step=…)`, which keeps each observation once.

    Returns:
        The columns obs, action, reward (float32), next_obs, and terminated (bool). With n_step next_obs is a window
        over obs, and discount (float32) takes the place of terminated. More columns may be added to the dict.

    Raises:
        SchemaError: a space has no fixed shape (Text, Sequence, Graph, OneOf), a key of a Dict cannot be a column's
            name, a Dict or Tuple is empty, `n_step` is no whole number of at least 1, or it is no environment.
    """
    spaces = []
    for name in ("observation_space", "action_space"):
        space = getattr(env, f"single_{name}", None) or getattr(env, name, None)
        if space is None:
            raise SchemaError(f"expected a Gymnasium environment, which has an {name}, got {type(env).__name__}")
        spaces.append(space)
    if n_step is not None:
        check_whole(n_step, "n_step", 1)
    obs, action = _columns(spaces[0], "obs"), _columns(spaces[1], "action")
    signature: dict[str, Any] = {"obs": obs, "action": action, "reward": Column("float32")}
    if n_step is None:
        signature |= {"next_obs": obs, "terminated": Column("bool")}
    else:
        signature |= {"next_obs": Window("obs", offset=n_step), "discount": Column("float32")}
    Table("checked", 1, signature)  # refuses names that no column can have
    return signature


def _columns(space: Any, path: str) -> Any:
    """The columns of a space."""
    # By name: the environment may be of another release of Gymnasium than what could be imported here, or of Gym.
    kinds = {kind.__name__ for kind in type(space).__mro__}
    if "Dict" in kinds:
        return {key: _columns(part, f"{path}/{key}") for key, part in space.spaces.items()}
    if "Tuple" in kinds:
        return tuple(_columns(part, f"{path}/{place}") for place, part in enumerate(space.spaces))
    if not kinds & set(_OF_ONE_SHAPE):
        raise SchemaError(
            f"{path!r}: {_EXPECTED}, got {space}, which does not fit a column of one dtype and shape; wrap the "
            "environment in a gymnasium.ObservationWrapper that makes a Box of it, or leave it out"
        )
    return Column(space.dtype, space.shape)
