"""The whole state of a gymnasium environment: taken out of one, put into another, which then goes on bit by bit alike.

Gymnasium has no such thing, so what holds state is listed here, class by class: wrappers, MuJoCo's environments, the
classic control problems. An environment of one's own joins in with two methods, `state_dict()` (plain values, numbers,
arrays) and `load_state_dict(values)`. Everything else is refused rather than restored by half.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from replay_server.actors.state_codec import StateError

WRAPPERS: dict[str, tuple[str, ...]] = {
    "TimeLimit": ("_elapsed_steps",),
    "OrderEnforcing": ("_has_reset",),
    "FlattenObservation": (),
    "ReshapeObservation": (),
    "DtypeObservation": (),
    "RescaleAction": (),
    "ClipAction": (),
}
"""Gymnasium's wrappers, and what of each changes while it is played."""

CLASSIC_CONTROL = {
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "AcrobotEnv": ("state",),
    "MountainCarEnv": ("state",),
    "Continuous_MountainCarEnv": ("state",),
    "PendulumEnv": ("state", "last_u"),
}

MUJOCO_ATTRIBUTES = ("goal", "goal_pos", "cylinder_pos")
"""What Reacher and Pusher keep in Python beside the simulation."""

MUJOCO_LAGGING = ("xpos", "xipos")
"""Positions of bodies that rewards are computed from before a step (Humanoid, Ant, Pusher, Reacher).

MuJoCo computes them at the beginning of a step and not after it, so that they lag behind the joints' positions: to
compute them anew from a restored state would give other ones.
"""


class StateUnsupported(TypeError):
    """The environment cannot give its state."""


def environment_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """All that `env` needs to go on elsewhere, for `restore_environment`; plain values, numbers and arrays.

    Raises StateUnsupported for an environment or a wrapper that is not known.
    """
    base, wrappers = _layers(env)
    return {
        "class": _name(base),
        "wrappers": [[type(wrapper).__name__, *_values(wrapper, names)] for wrapper, names in wrappers],
        "random": _random_state(base),
        "own": _own_state(base),
    }


def restore_environment(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Puts a state of an environment of the same id and arguments into `env`, which need not have been reset.

    Raises StateError, before anything is changed, for the state of another environment.
    """
    base, wrappers = _layers(env)
    kinds = [type(wrapper).__name__ for wrapper, _ in wrappers]
    got = (state["class"], [wrapper[0] for wrapper in state["wrappers"]])
    if got != (_name(base), kinds):
        raise StateError(f"expected a state of {_name(base)} in {kinds}, got one of {got[0]} in {got[1]}")
    for (wrapper, names), (_, *values) in zip(wrappers, state["wrappers"], strict=True):
        for name, value in zip(names, values, strict=True):
            setattr(wrapper, name, value)
    _restore_random(base, state["random"])
    _restore_own(base, state["own"])


def _layers(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], list[tuple[Any, tuple[str, ...]]]]:
    """The environment itself, and its wrappers from the outermost with the names of what they hold."""
    wrappers = []
    while isinstance(env, gymnasium.Wrapper):
        kind = type(env)
        if kind.__module__.split(".")[0] != "gymnasium" or kind.__name__ not in WRAPPERS:
            instead = "do what it does in an environment with state_dict() and load_state_dict(values)"
            if kind.__name__ == "PassiveEnvChecker":
                instead = "make what you wrap with gymnasium.make(…, disable_env_checker=True)"
            raise StateUnsupported(
                f"the wrapper {_name(env)} cannot give its state: expected only {', '.join(WRAPPERS)}; {instead}"
            )
        wrappers.append((env, WRAPPERS[kind.__name__]))
        env = env.env
    return env, wrappers


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


def _values(holder: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(holder, name) for name in names]


# ---- random numbers --------------------------------------------------------------------------------------------------


def _random_state(base: Any) -> dict[str, Any]:
    generator = base._np_random
    return {
        "seed": base._np_random_seed,
        "generator": None if generator is None else generator.bit_generator.state,
    }


def _restore_random(base: Any, state: dict[str, Any]) -> None:
    if state["generator"] is None:
        base._np_random = None
    else:
        bit_generator = np.random.PCG64(0)  # gymnasium.utils.seeding makes no other
        bit_generator.state = state["generator"]
        base._np_random = np.random.Generator(bit_generator)
    base._np_random_seed = state["seed"]


# ---- what each class holds -------------------------------------------------------------------------------------------


def _own_state(base: Any) -> dict[str, Any]:
    if callable(getattr(base, "state_dict", None)) and callable(getattr(base, "load_state_dict", None)):
        return dict(base.state_dict())
    if _is_mujoco(base):
        return _mujoco_state(base)
    return {name: getattr(base, name) for name in _attributes(base)}


def _restore_own(base: Any, state: dict[str, Any]) -> None:
    if callable(getattr(base, "load_state_dict", None)):
        base.load_state_dict(state)
    elif _is_mujoco(base):
        _restore_mujoco(base, state)
    else:
        for name in _attributes(base):
            setattr(base, name, state[name])


def _attributes(base: Any) -> tuple[str, ...]:
    kind = type(base)
    # Itself, not a class derived from one of them, which may hold more.
    if kind.__module__.startswith("gymnasium.envs.classic_control.") and kind.__name__ in CLASSIC_CONTROL:
        return CLASSIC_CONTROL[kind.__name__]
    raise StateUnsupported(
        f"{_name(base)} cannot give its state, so its episodes cannot go on in another process: expected gymnasium's "
        "MuJoCo environments (v4, v5), classic control, ALE/*, or a class with state_dict() and load_state_dict(values)"
    )


def _is_mujoco(base: Any) -> bool:
    """Of gymnasium's own MuJoCo environments. Asks by name, so that mujoco is imported only where it is played."""
    if not type(base).__module__.startswith("gymnasium.envs.mujoco."):
        return False
    return any(kind.__name__ == "MujocoEnv" for kind in type(base).__mro__)


def _mujoco_integration() -> tuple[Any, int]:
    """The module, whose functions type checkers do not see, and what a simulation's next steps depend on."""
    import mujoco

    module: Any = mujoco
    return module, int(module.mjtState.mjSTATE_INTEGRATION)


def _mujoco_state(base: Any) -> dict[str, Any]:
    mujoco, kind = _mujoco_integration()
    integration = np.empty(mujoco.mj_stateSize(base.model, kind))
    mujoco.mj_getState(base.model, base.data, integration, kind)
    return {
        "integration": integration,
        "lagging": [getattr(base.data, name).copy() for name in MUJOCO_LAGGING],
        "attributes": {name: getattr(base, name) for name in MUJOCO_ATTRIBUTES if hasattr(base, name)},
    }


def _restore_mujoco(base: Any, state: dict[str, Any]) -> None:
    mujoco, kind = _mujoco_integration()
    expected, got = mujoco.mj_stateSize(base.model, kind), len(state["integration"])
    if got != expected:
        raise StateError(f"expected a MuJoCo state of {expected} numbers, got {got}: play it with the same version")
    mujoco.mj_setState(base.model, base.data, state["integration"], kind)
    for name, values in zip(MUJOCO_LAGGING, state["lagging"], strict=True):
        getattr(base.data, name)[:] = values
    for name, value in state["attributes"].items():
        setattr(base, name, value)
