"""Access latencies under load: an actor's push, an actor's pull, the learner's set, for 1, 2, 4, 8 actors at once.

Every actor pushes its experience and then pulls the parameters, without a pause, while the learner sets new parameters
without a pause: the server is loaded to its limit. Faithful sizes: 43 MB (RPUSH of a blob) and 13.17 MB (GET, SET),
which is what Redis is asked as well. This project's own: 50 transitions, frames once (APPEND and ITEM), and WEIGHTS.
"""

from __future__ import annotations

import contextlib

from replay_server.bench import messages
from replay_server.bench.client import Role
from replay_server.bench.papers.in_network.figure import (
    Measured,
    Options,
    Round,
    Say,
    findings_by_side,
    name,
    panels_of,
    ratios_between_sides,
    turned,
)
from replay_server.bench.sides import Host, start, usual

TITLE = "Optimisation 1: access latency of the shared memory"
PAPER = "access latency −32.7 % to −58.9 % (Redis with F-Stack over Redis without, 40 Gb/s)"
WHATS = {"actor_push": "actor push", "actor_pull": "actor pull", "learner_set": "learner set"}
OWN_PUSH = 50
FRAMES_CAPACITY = 20_000


def roles(sizes: str, actors: int, redis: bool, push_bytes: int = messages.FAITHFUL_PUSH_BYTES) -> list[Role]:
    """What actors and learner do, without a pause."""
    as_redis = redis or sizes == "faithful"
    push = messages.push_blob(push_bytes, actors) if sizes == "faithful" else messages.push_frames(OWN_PUSH, redis)
    return [
        Role("actor", {"push": push, "pull": messages.pull_weights(as_redis)}, actors),
        Role("learner", {"set": messages.publish(as_redis)}),
    ]


def values(host: Host, sizes: str, actors: int, seconds: float, push_bytes: int) -> Round:
    turn = host.turn(roles(sizes, actors, host.side.is_redis, push_bytes), seconds, warm_up_s=seconds / 5)
    found: Round = {}
    for what, role, request in (
        ("actor_push", "actor", "push"),
        ("actor_pull", "actor", "pull"),
        ("learner_set", "learner", "set"),
    ):
        for statistic in ("p50", "mean"):
            value = turn.measured.latency_us(role, request, statistic)
            found[name(sizes, what, host.side.name, actors, f"latency_us_{statistic}")] = round(value, 1)
    found[name(sizes, "all", host.side.name, actors, "retransmits")] = turn.measured.content["retransmits"]
    return found


def prepare(host: Host) -> None:
    """Parameters for the first pull."""
    with host.awake():
        host.redis.set(messages.WEIGHTS, messages.weights_blob())
        if host.client is not None:
            host.redis.execute_command("WEIGHTS.PUBLISH", messages.WEIGHTS, "*", messages.weights_blob())


def measure(options: Options, say: Say) -> Measured:
    push_bytes = 4_000_000 if options.quick else messages.FAITHFUL_PUSH_BYTES
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        hosts, about = start(options.sides or usual(), stack, [messages.frames_table(FRAMES_CAPACITY)])
        for host in hosts:
            prepare(host)
        for number in range(options.rounds):
            found: Round = {}
            for sizes in options.sizes:
                for actors in options.actors:
                    for host in turned(hosts, number):
                        seconds = options.seconds * (2 if sizes == "faithful" else 1)
                        found |= values(host, sizes, actors, seconds, push_bytes)
            rounds.append(found)
            say(f"access: round {number + 1}/{options.rounds}")
    ratios = ratios_between_sides(rounds[0])
    settings = {**about, "push_bytes": push_bytes, "own_push_transitions": OWN_PUSH}
    return Measured(
        rounds, ratios, panels_of(rounds[0], WHATS), settings, findings_by_side(rounds, ratios, WHATS, PAPER)
    )
