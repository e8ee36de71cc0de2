"""docs/reference/settings.md: what each algorithm can be told, from its settings and their profiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

HEAD = """# Settings of the algorithms

## Ape-X

Every setting is an option of `replay-server apex`: [all of them](commands.md#replay-server-apex). A profile changes
these defaults (an empty cell leaves one as it is), and what is given on the command line wins over it. Without
`--profile`, ALE/* get `atari-gpu` where the learner's machine has a GPU that torch finds
([measured on one](../how-to/gpu.md#measured-on-an-h100)), and `atari-small` elsewhere. Where actors share that
machine, `atari-gpu` also needs 8 cores. Environments with continuous actions get `sac`, and all others `cartpole`,
where `learner_threads` stays `auto` for observations with images. The defaults, the paper's, are meant for hundreds
of actors: `--profile paper` takes them.

"""
POLICIES = """
## PPO, IMPACT and IMPALA

Given to `replay-server train` as `--setting NAME=VALUE`, as often as one likes, over the profile of `--profile`. An
empty cell of a profile is the default. These are all algorithms':

"""


def page() -> str:
    """The whole page."""
    from replay_server.learner.algorithms import ALGORITHMS
    from replay_server.rl.policy_settings import PolicySettings
    from replay_server.rl.settings import PROFILES, ApexSettings

    changed = [name for name in _defaults(ApexSettings) if any(name in profile for profile in PROFILES.values())]
    meanings = _docs(ApexSettings)
    text = HEAD + _table(_defaults(ApexSettings), PROFILES, {name: meanings[name] for name in changed})
    text += POLICIES + _table(_defaults(PolicySettings), {}, _docs(PolicySettings))
    shared = set(_defaults(PolicySettings))
    for name, (kind, profiles) in ALGORITHMS.items():
        docs = {field: meaning for field, meaning in _docs(kind).items() if field not in shared}
        text += f"\n### {name}\n\n{_first_sentence(kind)}\n\n" + _table(_defaults(kind), profiles, docs)
        beside = {
            profile: {field: value for field, value in values.items() if field in shared}
            for profile, values in profiles.items()
        }
        for profile, values in beside.items():
            if values:
                told = ", ".join(f"`{field}={value}`" for field, value in values.items())
                text += f"\nOf those above, profile `{profile}` has {told}.\n"
    return text


def _table(defaults: Mapping[str, Any], profiles: Mapping[str, Mapping[str, Any]], rows: Mapping[str, str]) -> str:
    names = [name for name, values in profiles.items() if values]
    head = ["setting", "default", *names, "meaning"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for field, meaning in rows.items():
        cells = [f"`{field}`", f"`{defaults[field]}`"]
        cells += [f"`{profiles[name][field]}`" if field in profiles[name] else "" for name in names]
        lines.append("| " + " | ".join([*cells, meaning]) + " |")
    return "\n".join(lines) + "\n"


def _defaults(kind: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _docs(kind: type) -> dict[str, str]:
    """What is said of each field, in the class or in one that it comes from; in the order of the fields."""
    from replay_server.rl.options import _field_docs

    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if dataclasses.is_dataclass(each):
            found.update(_field_docs(each))
    return {field.name: found.get(field.name, "").replace("|", "\\|") for field in dataclasses.fields(kind)}


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())
