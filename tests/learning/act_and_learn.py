"""Ape-X in one thread, for environments that are learned in seconds: each turn acts once and learns once."""

from __future__ import annotations

import numpy as np
import torch

import replay_server as rs
from replay_server.actors.envs import make_environments
from replay_server.actors.transitions import TransitionWriter, n_step_options
from replay_server.learner.replay_learner import ReplayLearner
from replay_server.rl.acting import make_acting
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import map_tree
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table

LEARNS_FROM = 50
"""The first turn that learns."""


def act_and_learn(
    settings: ApexSettings, spec: EnvironmentSpec, learner: ReplayLearner, turns: int, epsilon: float
) -> rs.Batch:
    """Has `learner` act in the settings' environments and learn from what they give; returns the last batch."""
    buffer, acting = rs.Buffer(apex_table(settings, spec)), make_acting(spec)
    number = settings.envs_per_actor
    transitions = TransitionWriter(buffer.vector_writer(number, **n_step_options(settings)), settings, spec)
    environments = make_environments(settings, number, np.random.SeedSequence(1))
    generator, observations = np.random.default_rng(1), environments.reset()
    for turn in range(turns):
        with torch.inference_mode():
            outputs = learner.published(map_tree(torch.from_numpy, observations)).numpy()
        actions = acting.explore(outputs, np.full(number, epsilon), generator)
        step = environments.step(actions)
        transitions.step(
            observations, outputs, actions, step.rewards, step.terminated, step.truncated, step.ignored
        )  # fmt: skip
        observations = step.observations
        if turn >= LEARNS_FROM:
            batch = buffer.sample(settings.batch_size, importance_sampling_exponent=0.4, timeout=0)
            update = learner.update(batch.columns, batch.weights)
            buffer.update_priorities(batch.ids, update.priorities.double().numpy())
    environments.close()
    return batch
