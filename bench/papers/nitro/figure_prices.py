"""How a comparison's verdicts move with prices and with the learner's speed: arithmetic over its tables, SIMULATED.

    replay-server bench scalers --figure prices --tables docs/benchmarks/scalers/hopper.json

All schemes of one comparison play as many rounds, so what a whole job takes is a line in the number of its actors:

    seconds = rounds · r + actors · l          dollars = rounds · d + actors · e

fitted to the schemes by least squares (told: the worst relative error). Actors of a round act side by side, so nearly
all of l is the learner's time for one actor's samples: a learner that is `speed` times as fast takes l / speed. Dollars
follow for two ways to pay:

    lambda     functions on demand, the learner too: as fitted, speed 1 (a function has no GPU)
    nitro      the paper's: I_max instances kept warm and billed all the time, and a p3.2xlarge for the learner

They are told over those of `fixed`. Where that is 1, equal dollars are equal rounds; where it is the scheme's actors
over those of `fixed`, equal dollars are equal samples. So a verdict at equal dollars lies, whatever the prices, between
those two, which the tables have: final reward, and reward at equal steps.

Told besides: `NAME@reserved` as it was billed (60 s at least, with a p3.2xlarge whose speed the clock does not have),
by the second, without the p3.2xlarge, and by the second for just the cores that the clock had (--clock-cores), at the
price of one of a c5.4xlarge: there price and clock are of the same machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.serverless.prices import Profile, load_prices
from replay_server.serverless.simulated_round import Stage

SPEEDS = (1, 5, 20, 100)
"""Of the learner, over the processor that the comparison was clocked on."""
BASELINE = "fixed"


def fitted(rounds: int, actors: Sequence[float], totals: Sequence[float]) -> tuple[float, float, float]:
    """(per round, per actor, worst relative error) of totals = rounds · a + actors · b; neither is below 0."""
    columns = np.column_stack([np.full(len(actors), rounds, float), np.asarray(actors, float)])
    wanted = np.asarray(totals, float)
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if both[0] < 0:
        both = np.array([0.0, columns[:, 1] @ wanted / (columns[:, 1] @ columns[:, 1])])
    return float(both[0]), float(both[1]), float(np.abs(columns @ both / wanted - 1).max())


def costs(
    table: Mapping[str, Any], rounds: int, most: int, memory_mb: int, clock_cores: int | None = None
) -> dict[str, Any]:
    """Of one environment's table: the fit, and by way to pay and speed the dollars of every scheme."""
    rows = {name: row for name, row in table["rows"].items() if "@" not in name}
    actors = [row["actors"] for row in rows.values()]
    round_s, actor_s, seconds_error = fitted(rounds, actors, [row["time_s"] for row in rows.values()])
    round_dollars, actor_dollars, dollars_error = fitted(rounds, actors, [row["cost"] for row in rows.values()])
    prices = load_prices()
    nitro = prices.profile("lambda-provisioned-learner-vm")
    gb = memory_mb / 1024
    used_s = acting_s(nitro, actor_dollars, actor_s, gb)
    standing, used = nitro_standing(nitro, most, gb), used_s * gb * float(_provisioned(nitro).used_gb_s)
    found = {"lambda": {name: rounds * round_dollars + row["actors"] * actor_dollars for name, row in rows.items()}}
    for speed in SPEEDS:
        found[f"nitro, learner × {speed}"] = {
            name: (rounds * round_s + row["actors"] * actor_s / speed) * standing + row["actors"] * used
            for name, row in rows.items()
        }
    return {
        "fit": {"round_s": round_s, "actor_s": actor_s, "seconds_error": seconds_error,
                "round_dollars": round_dollars, "actor_dollars": actor_dollars, "dollars_error": dollars_error},
        "dollars": found,
        "over_fixed": {
            way: {name: each / dollars[BASELINE] for name, each in dollars.items() if name != BASELINE}
            for way, dollars in found.items()
        },
        "reserved": {name: reserved(table, name, clock_cores) for name in rows if f"{name}@reserved" in table["rows"]},
    }  # fmt: skip


def acting_s(profile: Profile, actor_dollars: float, learner_s: float, gb: float) -> float:
    """Seconds of one actor function, from what its bill on demand is without the learner's share and the request."""
    assert profile.function is not None
    learner = learner_s * Stage.learner_memory_mb / 1024 * float(profile.function.gb_s)
    return (actor_dollars - learner - float(profile.function.request)) / (gb * float(profile.function.gb_s))


def nitro_standing(profile: Profile, most: int, gb: float) -> float:
    """Dollars a second of what stands all the time: instances kept warm, and the learner's machine."""
    return most * gb * float(_provisioned(profile).gb_s) + float(profile.machine("learner").hour) / 3600


def reserved(table: Mapping[str, Any], name: str, clock_cores: int | None = None) -> dict[str, float]:
    """Dollars of the same training on machines that are always there, by how they are billed; also over functions'."""
    seconds = table["rows"][f"{name}@reserved"]["time_s"]
    machines = machines_of(table, name)
    learner, actor = _hour("learner"), machines * _hour("actor")
    slots = load_prices().profile("reserved-vms").machine("actor").slots
    least = max(seconds, float(load_prices().profile("reserved-vms").machine("actor").minimum_s))
    dollars = {
        "as_billed": least * (learner + actor) / 3600,
        "by_the_second": seconds * (learner + actor) / 3600,
        "by_the_second_without_gpu": seconds * actor / 3600,
        "clocks_own_cores": seconds * (clock_cores or machines * slots) / slots * _hour("actor") / 3600,
    }
    functions = table["rows"][name]["cost"]
    over = {f"{way}_over_functions": each / functions for way, each in dollars.items()}
    return {"machines": machines, "seconds": seconds, "functions": functions, **dollars, **over}


def machines_of(table: Mapping[str, Any], name: str) -> int:
    """How many actors' machines NAME@reserved was billed for."""
    row = table["rows"][f"{name}@reserved"]
    least = max(row["time_s"], float(load_prices().profile("reserved-vms").machine("actor").minimum_s))
    return round((row["cost"] * 3600 / least - _hour("learner")) / _hour("actor"))


def _hour(part: str) -> float:
    return float(load_prices().profile("reserved-vms").machine(part).hour)


def _provisioned(profile: Profile) -> Any:
    assert profile.function is not None
    assert profile.function.provisioned is not None
    return profile.function.provisioned


def lines(env: str, found: Mapping[str, Any]) -> list[str]:
    """For people."""
    fit = found["fit"]
    told = [
        f"{env}, SIMULATED: a job takes {fit['round_s']:.3f} s a round and {fit['actor_s']:.4f} s an actor (worst "
        f"error {fit['seconds_error']:.0%}), ${fit['round_dollars']:.2e} and ${fit['actor_dollars']:.2e} "
        f"({fit['dollars_error']:.0%})",
        "dollars of a whole job, over fixed's:",
    ]
    for way, over in found["over_fixed"].items():
        told.append(f"  {way:22} " + "  ".join(f"{name} {each:.2f}" for name, each in over.items()))
    for name, each in found["reserved"].items():
        told.append(
            f"{name} on machines, over functions: {each['as_billed_over_functions']:.1f} as billed, "
            f"{each['by_the_second_over_functions']:.1f} by the second, "
            f"{each['by_the_second_without_gpu_over_functions']:.1f} without the GPU, "
            f"{each['clocks_own_cores_over_functions']:.1f} for the clock's own cores"
        )
    return told


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench scalers --figure prices", description=__doc__)
    parser.add_argument("--tables", required=True, metavar="FILE", help="what bench scalers --json wrote")
    parser.add_argument(
        "--clock-cores", type=int, metavar="N",
        help="that the clock gave NAME@reserved: 36 in tables made before it had those of the machines in the bill",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    content = json.loads(Path(options.tables).read_text())
    settings = content["settings"]
    found = {
        env: costs(table, settings["rounds"], settings["actors_max"], settings["memory_mb"], options.clock_cores)
        for env, table in content["tables"].items()
    }
    for env, each in found.items():
        say("\n".join(lines(env, each)))
    if options.json:
        command = " ".join(["replay-server bench scalers --figure prices", *argv])
        document = {"name": "scalers-figure-prices", "command": command, "note": "simulated", "environments": found}
        result.write(options.json, document)
    return 0
