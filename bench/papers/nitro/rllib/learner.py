"""Updates of this project's PPO learner by RLlib's PPO, which lives in a process and an environment of its own.

State and fragments go there with each update and the new state comes back, as arrays in files: parameters under RLlib's
names, Adam's moments and the KL coefficient. So RLlib's process may die between two updates and nothing is lost.

The networks are the same (two towers of tanh units, a log standard deviation that depends on nothing), and so are the
settings but for what RLlib has otherwise: it evaluates the critic anew on the fragments, adds a step to each episode
that its means over a batch count and its losses do not, tells means of its last minibatch, and adapts the KL
coefficient by that one's KL. Observations are normalised by the actor functions, with moments that are merged here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay_server.bench.environments import is_ready
from replay_server.bench.load import ONE_THREAD
from replay_server.bench.process import Program
from replay_server.learner.algorithms import Learner, Settings
from replay_server.learner.ppo import Ppo, PpoSettings
from replay_server.rl.fragments import Fragments, in_order, merged_moments
from replay_server.rl.policy_networks import ActorCritic
from replay_server.rl.policy_spec import PolicySpec

ENVIRONMENT = "rllib"
PROGRAMS = Path(__file__).resolve().parent / "programs"
"""What RLlib's environment runs."""
MISSING = "RLlib is not there: make its environment by `replay-server bench scalers --figure 12 --setup --folder DIR`"
RLLIB_NAMES = {
    "policy_body": "encoder.actor_encoder.net.mlp",
    "critic_body": "encoder.critic_encoder.net.mlp",
    "policy_head": "pi.net.mlp.0",
    "critic_head": "vf.net.mlp.0",
    "log_std": "pi.log_std",
}
"""How a part of `replay_server.rl.policy_networks.ActorCritic` is called in RLlib's module."""
TOLD = (
    "discount", "gae_lambda", "clip", "kl_coefficient", "kl_target", "entropy_coefficient", "value_coefficient",
    "value_clip", "learning_rate", "adam_epsilon", "gradient_norm", "iterations", "minibatch_size", "hidden",
)  # fmt: skip
"""Settings that RLlib is given."""
COLUMNS = (
    "observation", "action", "reward", "terminated", "truncated", "behaviour_log_probability", "behaviour_parameters",
    "final_observation", "final_step",
)  # fmt: skip
"""What RLlib is given of fragments."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class RllibLost(ConnectionError):
    """RLlib's process ended in an update. Nothing was changed: the update may be asked for again."""


def rllib_name(parameter: str) -> str:
    """What a parameter of this project's network is called in RLlib's. KeyError for one that RLlib does not have."""
    part, dot, rest = parameter.partition(".")
    return RLLIB_NAMES[part] + dot + rest


def rllib_parameters(network: ActorCritic) -> dict[str, np.ndarray]:
    """A network's parameters as RLlib's program takes them, ``parameter.NAME``; they share its memory."""
    parameters = network.named_parameters()
    return {f"parameter.{rllib_name(name)}": parameter.detach().numpy() for name, parameter in parameters}


def told_statistics(results: Mapping[str, float]) -> dict[str, float]:
    """What RLlib's Learner tells of a round's last minibatch, under this project's names."""
    return {
        "loss": results["total_loss"],
        "surrogate": -results["policy_loss"],
        "value_error": results["vf_loss"],
        "entropy": results["entropy"],
        "kl": results["mean_kl_loss"],
        "gradient_norm": results["gradients_default_optimizer_global_norm"],
        "explained_variance": results["vf_explained_var"],
    }


def check_rllib(settings: Settings, spec: PolicySpec) -> None:
    """Raises ValueError for what RLlib's PPO has no equal of here."""
    if not isinstance(settings, PpoSettings):
        raise ValueError(f"RLlib learns by PPO here: expected settings of it, got {type(settings).__name__}")
    if settings.standardize_advantages != "batch":
        raise ValueError(f"RLlib standardises advantages over the batch, not by {settings.standardize_advantages!r}")
    if spec.is_image:
        raise ValueError(f"{settings.env}: RLlib learns from vectors here, since its convolutions are others")


class RllibLearner:
    """Starts RLlib's process with its first update; a context manager that ends it."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="replay-rllib-")
        self.cpu_s = 0.0
        """Processor seconds of all updates, in RLlib's process."""

    @property
    def pid(self) -> int | None:
        """RLlib's process; None = not running."""
        return self._program.pid if self._program is not None else None

    def start(self) -> Program:
        """RLlib's process, started if it is not running. RuntimeError where RLlib is not there, or this was closed."""
        if self._closed:
            raise RuntimeError("expected an open learner: this one was closed, and RLlib's process ended")
        if self._program is None:
            if not is_ready(ENVIRONMENT):
                raise RuntimeError(MISSING)
            self._program = Program("rllib_learner", ENVIRONMENT, ONE_THREAD, PROGRAMS)
        return self._program

    def update(self, learner: Learner, fragments: Fragments) -> dict[str, float]:
        """One round of RLlib's PPO on `learner`: its network, its optimiser and its counters become what RLlib made.

        Args:
            fragments: of a round (`replay_server.rl.fragments`), in any order.

        Returns RLlib's numbers under this project's names, of the last minibatch. Raises ValueError for a learner that
        is none of PPO's, RllibLost, and RuntimeError with what RLlib said. `check_rllib` is the caller's.
        """
        if not isinstance(learner, Ppo):
            raise ValueError(f"RLlib learns by PPO here, expected its learner, got {type(learner).__name__}")
        program = self.start()
        fragments = in_order(fragments)
        given, found = (str(Path(self._folder.name) / f"{name}.npz") for name in ("given", "found"))
        before = _state(learner)
        np.savez(given, **before, **{f"fragments.{name}": fragments[name] for name in COLUMNS})  # pyright: ignore
        answer = self._ask(program, learner, given, found)
        with np.load(found, allow_pickle=False) as file:
            after = dict(file)
        used = learner.kl_coefficient
        _take(learner, after)
        if learner.network.normalizes:
            learner.network.set_moments(learner.network.moments.merged(merged_moments(fragments)))
        staleness = float(learner.version - fragments["policy_version"].mean())
        learner.version += 1
        self.cpu_s += answer["cpu_s"]
        return {
            **told_statistics(answer["results"]),
            "kl_coefficient": used,
            "samples": float(answer["steps"]),
            "optimizer_steps": float(after["step"]) - float(before.get("step", 0.0)),
            "staleness": staleness,
            "rllib_cpu_s": answer["cpu_s"],
        }

    def _ask(self, program: Program, learner: Ppo, given: str, found: str) -> dict[str, Any]:
        settings, network = learner.settings, learner.network
        try:
            program.ask(
                "role",
                role="learner",
                features=network.policy_body[0].in_features,
                actions=network.policy_head.out_features,
                continuous=network.is_gaussian,
                settings={name: getattr(settings, name) for name in TOLD},
            )
            return program.ask("call", given=given, found=found, seed=[settings.seed, learner.version])
        except RuntimeError as error:
            ended = program.ended
            self.stop()
            raise RllibLost(str(error)) if ended else error from None

    def stop(self) -> None:
        """Ends RLlib's process; the next update starts another."""
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def close(self) -> None:
        """Ends RLlib's process for good; an update that is under way fails."""
        self._closed = True
        self.stop()
        self._folder.cleanup()

    def __enter__(self) -> RllibLearner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _state(learner: Ppo) -> dict[str, Any]:
    found: dict[str, Any] = {"kl_coefficient": np.array(learner.kl_coefficient), **rllib_parameters(learner.network)}
    for name, parameter in learner.network.named_parameters():
        entries = learner.optimizer.state.get(parameter)
        if entries:
            found["step"] = np.array(float(entries["step"]))
            found |= {f"{each}.{rllib_name(name)}": entries[each].numpy() for each in MOMENTS}
    return found


def _take(learner: Ppo, arrays: Mapping[str, np.ndarray]) -> None:
    learner.kl_coefficient = float(arrays["kl_coefficient"])
    with torch.no_grad():
        for name, parameter in learner.network.named_parameters():
            theirs = rllib_name(name)
            parameter.copy_(torch.from_numpy(arrays[f"parameter.{theirs}"]))
            moments = {each: torch.from_numpy(arrays[f"{each}.{theirs}"]) for each in MOMENTS}
            learner.optimizer.state[parameter] = {"step": torch.tensor(float(arrays["step"])), **moments}
