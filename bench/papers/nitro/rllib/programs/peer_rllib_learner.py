"""RLlib's PPO, whose rollout worker hands on what actor functions have played.

`Algorithm.train` is RLlib's own from end to end: its training step samples, its connectors make advantages of the
episodes, its Learner takes the steps, and its weights go back to its workers. Only the worker is another one
(`ActorFunctions`): it plays nothing itself. Between two updates nothing is kept here that counts: parameters, Adam's
moments and the KL coefficient come with each update and go back with its answer.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import ray
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import NUM_AGENT_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED_LIFETIME
from rllib_ppo import build, learner_state, ppo, seed_everything, take_state

PACKAGES = ("ray", "torch", "gymnasium")
KEPT = 4
"""Algorithms that stay built: jobs whose updates come in turns."""


class ActorFunctions(EnvRunner):
    """A rollout worker of RLlib that has neither environment nor policy: its episodes come from elsewhere."""

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.episodes: list[SingleAgentEpisode] = []
        """What the next `sample` hands on."""
        self.weights: Mapping[str, np.ndarray] = {}
        """As RLlib sent them after its last update."""

    def assert_healthy(self) -> None:
        """Nothing can be missing."""

    def sample(self, **_: Any) -> list[SingleAgentEpisode]:
        if not self.episodes:
            raise RuntimeError("expected episodes of actor functions, and RLlib asked for more than came")
        given, self.episodes = self.episodes, []
        steps = sum(map(len, given))
        for name in (NUM_ENV_STEPS_SAMPLED, NUM_AGENT_STEPS_SAMPLED):
            self.metrics.log_value(name, steps, reduce="sum")
        self.metrics.log_value(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps, reduce="lifetime_sum")
        return given

    def get_metrics(self) -> Any:
        return self.metrics.reduce()

    def get_spaces(self) -> dict[str, Any]:
        spaces = (self.config.observation_space, self.config.action_space)
        return {INPUT_ENV_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if COMPONENT_RL_MODULE in state:
            found = state[COMPONENT_RL_MODULE]
            found = ray.get(found) if isinstance(found, ray.ObjectRef) else found
            self.weights = found.get(DEFAULT_MODULE_ID, found)


def learner(**options: Any) -> Callable[..., dict[str, Any]]:
    """Takes updates of one job; options as `_algorithm` has them."""
    return functools.partial(_update, _kept(json.dumps(options, sort_keys=True)))


@functools.lru_cache(maxsize=KEPT)
def _kept(options: str) -> Any:
    return _algorithm(**json.loads(options))


def _algorithm(features: int, actions: int, continuous: bool, settings: dict[str, Any]) -> Any:
    """RLlib's PPO for vectors of `features` numbers, and so many discrete actions or dimensions of a continuous one."""
    # Bounds are for those who act.
    unbounded = functools.partial(gymnasium.spaces.Box, -np.inf, np.inf, dtype=np.float32)
    config = (
        ppo(continuous, settings)
        .environment(
            observation_space=unbounded(shape=(features,)),
            action_space=unbounded(shape=(actions,)) if continuous else gymnasium.spaces.Discrete(actions),
        )
        .env_runners(env_runner_cls=ActorFunctions, num_env_runners=0)
    )
    algorithm = build(config, settings)
    algorithm.config = algorithm.config.copy(copy_frozen=False)  # A round's batch is as large as its actors made it.
    return algorithm


def _update(algorithm: Any, given: str, found: str, seed: list[int]) -> dict[str, Any]:
    """One training step from the file `given`, whose outcome goes to the file `found`; NumPy's .npz both.

    `given` holds fragments (``fragments.*``), the parameters (``parameter.*``) by RLlib's names, the optimiser's
    ``step`` and moments (``exp_avg.*``, ``exp_avg_sq.*``) where it has any, and ``kl_coefficient``; `found` the same
    but for fragments. Random numbers come from `seed` alone, so that an update can be repeated.
    """
    began = time.process_time()
    with np.load(given, allow_pickle=False) as file:
        arrays = dict(file)
    seed_everything(seed)
    core = algorithm.learner_group._learner
    take_state(core, arrays)
    episodes = fragment_episodes({name.removeprefix("fragments."): array for name, array in arrays.items()
                                  if name.startswith("fragments.")})  # fmt: skip
    algorithm.env_runner.episodes = episodes
    # RLlib adds a step to each of them.
    algorithm.config.train_batch_size_per_learner = steps = sum(map(len, episodes))
    results = algorithm.train()["learners"][DEFAULT_MODULE_ID]
    state = learner_state(core)
    sent = algorithm.env_runner.weights
    policy = [name for name in sent if f"parameter.{name}" in state]
    if not policy or not all(np.array_equal(sent[name], state[f"parameter.{name}"]) for name in policy):
        raise RuntimeError("expected RLlib to send its workers the weights that its Learner has")
    np.savez(found, **state)  # pyright: ignore[reportArgumentType]
    numbers = {name: float(value) for name, value in results.items() if isinstance(value, int | float | np.number)}
    cpu_s = time.process_time() - began
    return {"cpu_s": cpu_s, "results": numbers, "episodes": len(episodes), "steps": steps}


def fragment_episodes(fragments: Mapping[str, np.ndarray]) -> list[SingleAgentEpisode]:
    """The fragments' episodes, cut where they ended or the fragment does; columns as the project's fragments have them.

    What follows a terminated step is not known, and RLlib does not look at it: its last observation stands there again.
    """
    found = []
    for row in range(len(fragments["reward"])):
        one = {name: column[row] for name, column in fragments.items()}
        steps = len(one["reward"])
        finals = {int(step): slot for slot, step in enumerate(one["final_step"]) if step >= 0}
        ends = np.flatnonzero(one["terminated"] | one["truncated"])
        begin = 0
        for end in dict.fromkeys([*ends.tolist(), steps - 1]):
            part = slice(begin, end + 1)
            last = one["final_observation"][finals[end]] if end in finals else one["observation"][end]
            found.append(
                SingleAgentEpisode(
                    observations=[*one["observation"][part], last],
                    actions=list(one["action"][part]),
                    rewards=one["reward"][part].tolist(),
                    terminated=bool(one["terminated"][end]),
                    truncated=bool(one["truncated"][end]) and not one["terminated"][end],
                    extra_model_outputs={
                        "action_logp": list(one["behaviour_log_probability"][part]),
                        "action_dist_inputs": list(one["behaviour_parameters"][part]),
                    },
                    len_lookback_buffer=0,
                ).to_numpy()
            )
            begin = end + 1
    return found
