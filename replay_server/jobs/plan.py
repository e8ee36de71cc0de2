"""How a job on one machine shares its cores: measured before its parts start, by a process that ends again."""

from __future__ import annotations

import functools
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from replay_server.jobs import giving_way
from replay_server.jobs.fork_server import ChildFailed, ask, asked
from replay_server.rl.machine import usable_cores
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import samples_per_insert_at

ACTING_S = 0.7
"""Seconds for which acting is measured."""
PUSH_SHARE = 0.25
"""What making and sending transitions takes of an actor's time beside games and forward passes, for which no server is
there yet."""
BUSY = 0.8
"""Share of a core that one actor's work may take before there is a second one."""
LONGEST_S = 120.0
"""A measurement that takes longer is given up."""


@dataclass(frozen=True)
class Plan:
    """What was chosen."""

    execution: dict[str, Any]
    """`replay_server.learner.execution_choice.Choice.as_values`."""
    actors: int
    acting_ms: float = 0.0
    """Core milliseconds of one transition; 0 = not measured."""
    gives_way: bool = False
    """Whether actors take only what the learner leaves of the cores (`replay_server.jobs.giving_way`)."""

    def told(self) -> str:
        """One line for people; "" where nothing was measured."""
        if not self.acting_ms:
            return ""
        rest = "; the learner's work comes first" if self.gives_way else ""
        actors = f"{self.actors} actor process{'es' * (self.actors > 1)}"
        return f"{actors}: each transition takes {self.acting_ms:g} ms of processor time{rest}"


def make_plan(settings: ApexSettings, actors_given: bool = False) -> Plan:
    """Measures this machine for a run of `settings`, in another process, so that this one loads no torch.

    With `actors_given` their number is that of `settings`. Where nothing is left to choose, nothing is measured.
    ValueError, with what it said last, where that process fails.
    """
    if actors_given and "auto" not in (settings.precision, settings.learner_threads, settings.targets_ahead):
        asked = {"precision": settings.precision, "threads": settings.learner_threads}
        return Plan(
            {**asked, "ahead": settings.targets_ahead == "on", "graph": False, "measured_rows": 0, "update_ms": {}},
            settings.actors,
        )
    try:
        plan = Plan(**ask("plan", "replay_server.jobs.plan", asdict(settings), timeout_s=LONGEST_S))
    except TimeoutError:
        raise ValueError(
            f"measuring this machine took longer than {LONGEST_S:g} s: give --actors, --precision, --learner-threads "
            "and --targets-ahead, then nothing is measured"
        ) from None
    except ChildFailed as error:
        raise ValueError(f"measuring this machine {error}") from None
    return replace(plan, actors=settings.actors) if actors_given else plan


def measured_plan(settings: ApexSettings) -> Plan:
    """What `make_plan` has another process do. Uses torch, and changes its number of threads."""
    from replay_server.learner.execution_choice import choose_execution
    from replay_server.learner.replay_algorithms import make_learner
    from replay_server.learner.replay_learner import choose_device
    from replay_server.rl.environment_spec import environment_spec

    spec = environment_spec(settings)
    # Where actors play elsewhere, or as fast as they can, their number does not follow from these times.
    beside = settings.actors_on == "processes"
    transitions = transitions_an_update(settings) if beside or settings.actors_on == "ray" else 0.0
    transition_s = transition_seconds(settings) if transitions else 0.0
    most = max(transitions, transitions_an_update(settings, settings.samples_per_insert_end_updates))
    acting_s = transition_s * most
    device = choose_device(settings.device)
    found = choose_execution(settings, spec, functools.partial(make_learner, settings, spec, device), device, acting_s)
    cores = usable_cores()
    update_s = 1e-3 * (found.update_ms.get(str(found.way)) or 0.0)
    update_s *= settings.batch_size / max(found.rows, 1)  # a slow machine has no time to time whole batches
    return Plan(
        execution=found.as_values(),
        actors=max(actors_for(cores, acting_s, update_s) if acting_s else settings.actors, settings.replay_shards),
        acting_ms=round(1e3 * transition_s, 3),
        gives_way=giving_way.POSSIBLE
        and transitions > 0
        and device.type == "cpu"
        and settings.actors_on == "processes",
    )


def transitions_an_update(settings: ApexSettings, step: int = 0) -> float:
    """How many transitions are acted for learner step `step`, by the replay ratio; 0 where it is not limited."""
    ratio = samples_per_insert_at(step, settings)
    return settings.batch_size / ratio if ratio else 0.0


def actors_for(cores: int, acting_s: float, update_s: float) -> int:
    """As many actor processes as keep up with the learner, at most one for each core.

    `acting_s`: core seconds of acting for each update; `update_s`: an update's, 0 where it was not measured.
    """
    if update_s <= 0:
        return max(1, cores - 1)
    busy = acting_s / max(update_s, acting_s / cores)
    return min(cores, max(1, math.ceil(busy / BUSY)))


def transition_seconds(settings: ApexSettings) -> float:
    """Core seconds that one transition takes an actor, as a first network that nobody has trained plays."""
    import numpy as np
    import torch

    from replay_server.actors.envs import make_environments
    from replay_server.rl.acting import make_acting
    from replay_server.rl.environment_spec import environment_spec
    from replay_server.rl.exploration import actor_epsilons
    from replay_server.rl.networks import make_acting_network
    from replay_server.rl.observations import map_tree
    from replay_server.rl.process_memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    spec = environment_spec(settings)
    network, acting = make_acting_network(settings, spec), make_acting(spec)
    generator = np.random.default_rng(settings.seed)
    epsilons = actor_epsilons(0, 1, settings.envs_per_actor, settings.epsilon_base, settings.epsilon_exponent)
    environments = make_environments(settings, settings.envs_per_actor, np.random.SeedSequence(settings.seed))
    try:
        observations, steps, begin, cpu_begin = environments.reset(), -2, 0.0, 0.0
        while steps < 1 or time.perf_counter() - begin < ACTING_S:
            if steps == 0:  # those before warm up
                begin, cpu_begin = time.perf_counter(), time.process_time()
            with torch.inference_mode():
                outputs = network(map_tree(torch.from_numpy, observations)).numpy()
            actions = acting.explore(outputs, epsilons, generator)
            observations = environments.step(environments.forced(actions)).observations
            steps += 1
        spent_s = time.process_time() - cpu_begin
    finally:
        environments.close()
    return spent_s / (steps * settings.envs_per_actor) * (1 + PUSH_SHARE)


def main() -> int:
    """Answers `make_plan`."""
    print(json.dumps(asdict(measured_plan(ApexSettings(**asked())))))
    return 0
