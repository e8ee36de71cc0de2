"""All of a learner's state as named arrays on the server: what a learner function goes on from, wherever it runs.

The key `Names.learner` holds, as weights of the learner's version, every tensor of its networks and of its optimiser,
and one array more, `note`: a msgpack map of the rest. Publishing the next version there is what makes a round count;
`Names.policy` then gets the network alone, for those who act. Versions are the learner's own count (rounds of PPO,
passes of IMPACT and IMPALA), so a version may be more than one above that before it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch

import replay_server as rs
from replay_server.learner.algorithms import Learner, Settings, algorithm_of, make_learner
from replay_server.learner.finite_checks import check_finite
from replay_server.rl.function_contract import Names
from replay_server.rl.policy_spec import PolicySpec
from replay_server.rl.weights import load_arrays, module_arrays

Arrays = Mapping[str, np.ndarray]
FORMAT = 1
NOTE = "note"


class StateError(Exception):
    """The learner's state on the server is not what was expected: none, another algorithm's, or of another version."""


@dataclass(frozen=True)
class Note:
    """What there is to say of a state beside its tensors."""

    algorithm: str
    counters: Mapping[str, Any]
    """The learner's: version, coefficients."""
    spec: PolicySpec
    """So that nobody who learns has to make an environment."""
    token: str
    """Names this very state: another one of the same version has another."""
    request: str = ""
    """Whose work made it (`LearnerRequest.name_in_job`)."""
    statistics: tuple[Mapping[str, float], ...] = field(default=())
    """Of each update of that work."""
    asynchronous: Mapping[str, Any] = field(default_factory=dict)
    """Where a parameter function stands (`replay_server.learner.parameter_state`); {} without asynchronous learners."""


def state_arrays(learner: Learner, note: Note) -> dict[str, np.ndarray]:
    """A learner's whole state. The arrays may share its memory: publish them before its next update.

    Raises Diverged where a value is not finite.
    """
    arrays = {
        f"{network}.{name}": array
        for network, module in learner.networks().items()
        for name, array in module_arrays(module).items()
    }
    for index, entries in learner.optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if value is not None:
                arrays[f"optimizer.{index}.{name}"] = torch.as_tensor(value).detach().cpu().numpy()
    check_finite(arrays, "nothing was kept")
    packed = msgpack.packb({"format": FORMAT, **dataclasses.asdict(note)}, use_bin_type=True)
    assert packed is not None
    arrays[NOTE] = np.frombuffer(packed, np.uint8)
    return arrays


def read_note(arrays: Arrays) -> Note:
    """The note of a state. Raises StateError where there is none that this version reads."""
    if NOTE not in arrays:
        raise StateError("expected the state of a learner, got arrays without a note: another program published them")
    values = msgpack.unpackb(arrays[NOTE].tobytes(), raw=False)
    if (found := values.pop("format", None)) != FORMAT:
        raise StateError(f"expected the state of a learner in format {FORMAT}, got {found!r}: update the older side")
    spec: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.pop("spec").items()
    }
    return Note(**values | {"spec": PolicySpec(**spec), "statistics": tuple(values["statistics"])})


def policy_arrays(arrays: Arrays) -> dict[str, np.ndarray]:
    """The network alone, as `replay_server.rl.weights.module_arrays` gives it."""
    prefix = "network."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def restored_learner(settings: Settings, arrays: Arrays, note: Note, device: torch.device | str = "cpu") -> Learner:
    """A learner that goes on exactly as the one whose state it is. Raises StateError where it is of other settings."""
    if note.algorithm != algorithm_of(settings):
        raise StateError(f"expected the state of a learner of {algorithm_of(settings)}, got one of {note.algorithm}")
    learner = make_learner(settings, note.spec, device)
    try:
        for network, module in learner.networks().items():
            prefix = f"{network}."
            load_arrays(module, {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)})
    except ValueError as error:
        raise StateError(f"the learner's state on the server: {error}") from None
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for key, array in arrays.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            # Copied: what was fetched may be read-only.
            entries.setdefault(int(index), {})[name] = torch.from_numpy(np.array(array))
    groups = learner.optimizer.state_dict()["param_groups"]
    learner.optimizer.load_state_dict({"state": entries, "param_groups": groups})
    learner.set_counters(note.counters)
    return learner


def initialise(
    settings: Settings, spec: PolicySpec, client: rs.Client, names: Names, checkpoint: Path | None = None
) -> int:
    """Publishes a learner's first state and its policy, and returns their version: 0, or that of `checkpoint`.

    Raises StateError where a job of that name has one on this server; FileNotFoundError and ValueError for a
    checkpoint that is not there or belongs to other settings.
    """
    learner, asynchronous = make_learner(settings, spec), {}
    if checkpoint is not None:
        from replay_server.learner.policy_checkpoint import read_policy_checkpoint

        counters = read_policy_checkpoint(checkpoint, learner)
        # What was applied is of another run's gradients.
        asynchronous = {"round": counters.get("round", 0), "bound": counters.get("staleness_bound")}
    note = Note(algorithm_of(settings), learner.counters(), spec, new_token(), asynchronous=asynchronous)
    try:
        client.publish_weights(names.learner, state_arrays(learner, note), learner.version)
        client.publish_weights(names.policy, module_arrays(learner.network), learner.version)
    except rs.StaleVersion:
        raise StateError(
            f"expected no job {names.job!r} on {client.url}, and there is one: give this one another name"
        ) from None
    client.command("SET", names.learner_token, token_line(learner.version, note.token), repeatable=True)
    return learner.version


def save_checkpoint(
    settings: Settings, client: rs.Client, names: Names, folder: Path, more: Mapping[str, Any] | None = None
) -> Path:
    """Writes the published state to `folder`/step_N (`replay_server.learner.policy_checkpoint`); returns its path.

    `initialise` goes on from it. `more` is saved with the counters. Raises StateError where there is no state.
    """
    from replay_server.learner.policy_checkpoint import write_policy_checkpoint

    _, arrays = fetch_state(client, names)
    note = read_note(arrays)
    bound = {"staleness_bound": note.asynchronous.get("bound")} if note.asynchronous else {}
    return write_policy_checkpoint(folder, restored_learner(settings, arrays, note), {**(more or {}), **bound})


def fetch_state(client: rs.Client, names: Names) -> tuple[int, dict[str, np.ndarray]]:
    """Version and arrays of the newest state. Raises StateError where there is none."""
    found = client.fetch_weights(names.learner)
    if found is None:
        raise StateError(f"job {names.job!r} has no learner's state on {client.url}: publish the first (initialise)")
    return found


def new_token() -> str:
    """A token that no other state has."""
    return uuid.uuid4().hex


def token_line(version: int, token: str) -> bytes:
    """What `Names.learner_token` holds once the state of that version and token is published."""
    return f"{version}:{token}".encode()
