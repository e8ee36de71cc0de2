"""Which settings of a run each of its parts uses, and what to do with those that it does not."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NoReturn

from replay_server.rl.options import add_options
from replay_server.rl.settings import ApexSettings

_USED_BY: tuple[tuple[str, str], ...] = (
    ("learner actor evaluator", "env profile seed table actors network hidden frame_stack min_size_to_sample"),
    # What transitions are: the learner notes it, and creates the table with it.
    (
        "learner actor",
        "envs_per_actor n_step discount reward_clip episodic_life prioritized priority_epsilon priority_exponent "
        "capacity samples_per_insert batch_size push_every compression",
    ),
    ("learner actor evaluator", "sticky_actions noop_max fire_on_reset max_frames_per_episode"),
    ("actor", "epsilon_base epsilon_exponent pull_every_frames"),
    (
        "learner",
        "minutes max_updates max_transitions target_score target_evaluations importance_sampling_exponent loss "
        "optimizer learning_rate learning_rate_end learning_rate_decay_updates optimizer_epsilon rmsprop_decay "
        "gradient_norm target_update_every target_mix publish_every precision device learner_threads prefetch "
        "checkpoint_every_s checkpoints_kept wandb",
    ),
    ("evaluator", "eval_every_updates eval_episodes eval_epsilon final_episodes"),
    ("learner evaluator", "logdir resume"),
    ("", "actors_on dashboard"),
)
_INSTEAD = {
    "actors_on": "start each actor on its machine; replay-server apex places actors by itself",
    "dashboard": "replay-server dashboard shows run directories and servers",
    "logdir": "an actor leaves no files; the learner and the evaluator have a run directory",
    "resume": "an actor has nothing to resume: start it again",
}


def users_of(setting: str) -> list[str]:
    """The parts that use a setting: learner, actor, evaluator. KeyError for one that nobody has thought of."""
    for users, settings in _USED_BY:
        if setting in settings.split():
            return users.split()
    raise KeyError(f"{setting}: say in {__name__} which parts of a job use it")


def add_part_settings(parser: argparse.ArgumentParser, part: str) -> None:
    """Adds an option for each setting that the part uses; the others are refused with what to do instead."""
    refused = [field.name for field in dataclasses.fields(ApexSettings) if part not in users_of(field.name)]
    title = "settings of the run (defaults are the paper's; a profile changes some)"
    add_options(parser.add_argument_group(title), ApexSettings, refused)
    for name in refused:
        flag = name.replace("_", "-")
        parser.add_argument(
            f"--{flag}", f"--no-{flag}", action=_Refused, nargs="?", dest=name, part=part,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip


class _Refused(argparse.Action):
    """An option of another part."""

    def __init__(self, *arguments: Any, part: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._part = part

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        users = " and ".join(f"replay-server {user}" for user in users_of(self.dest))
        do = _INSTEAD.get(self.dest) or f"give it to {users}"
        parser.error(f"{self.option_strings[0]}: the {self._part} does not use it; {do}")
