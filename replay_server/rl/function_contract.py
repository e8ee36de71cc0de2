"""What an invocation of a function is told and what it answers: msgpack maps, the same on every platform.

A function is one ``bytes → bytes`` handler (`replay_server.serverless.function.handle`). It shares nothing with who
calls it: weights, trajectories and states of environments travel by reference through the replay server, as names and
versions in these messages. A request has a name, and the same name is the same work: done twice it counts once. Nothing
in here needs torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgpack

CONTRACT = 1
"""Version of these messages; another one is refused."""


class ContractError(ValueError):
    """A message that is not one of these: what was expected, what came."""


@dataclass(frozen=True)
class Names:
    """Where on the server the parts of one job are; another job's are elsewhere."""

    job: str

    @property
    def policy(self) -> str:
        """Weights that actors act with, by version."""
        return f"{self.job}:policy"

    @property
    def learner(self) -> str:
        """All of a learner's state, as weights by the same version: network, optimiser, counters."""
        return f"{self.job}:learner"

    @property
    def learner_token(self) -> str:
        """Version and token of the newest learner's state (a string), by which a warm learner knows its own again."""
        return f"{self.job}:learner:token"

    @property
    def fragments(self) -> str:
        """The table of fragments."""
        return f"{self.job}:fragments"

    def done(self, request: str) -> str:
        """The response to a request that is done (a string with an expiry)."""
        return f"{self.job}:done:{request}"

    def state(self, attempt: str) -> str:
        """The states of an actor's environments after an attempt of its own name (a string with an expiry)."""
        return f"{self.job}:state:{attempt}"


@dataclass(frozen=True)
class Request:
    """What every invocation is told."""

    kind: ClassVar[str]
    request: str
    """Names the work; unique within the job."""
    server_url: str
    job: str
    settings: Mapping[str, Any]
    """Of the algorithm (its dataclass's fields): an actor takes those of `PolicySettings`."""
    algorithm: str
    """"ppo" or "impact"."""
    round: int
    version: int
    """Of the policy to act with, or of the learner's state to go on from."""
    deadline: float = 0.0
    """Seconds since 1970, by the caller's clock: what is not done then is given up. 0 = none."""

    @property
    def names(self) -> Names:
        return Names(self.job)


@dataclass(frozen=True)
class ActorRequest(Request):
    """Play one fragment with each of `environments` environments and add them to the table."""

    kind: ClassVar[str] = "actor"
    actor: int = 0
    """Number of this actor within the job."""
    environments: int = 1
    """Side by side; the first is the job's number actor · environments."""
    sequence: int = 0
    """How many fragments these environments have yielded before."""
    state: str | None = None
    """Key of the states that the environments go on from; None = they are made anew, seeded by job seed and actor."""
    exact: bool = True
    """The policy must be of `version` (on-policy); else the newest is taken, if it is not older."""


@dataclass(frozen=True)
class LearnerRequest(Request):
    """Learn from fragments: from the learner's state of `version` make that of version + updates."""

    kind: ClassVar[str] = "learner"
    fragments: bytes = b""
    """Ids of the items to learn from, uint64 little-endian; empty = `sample` of them, as the table hands them out."""
    sample: int = 0
    updates: int = 1
    """Rounds of PPO, passes of IMPACT; each draws its own sample where `sample` is set."""
    threads: int = 0
    """Of torch; 0 = OMP_NUM_THREADS of the function's environment, else 1. Results are the same for the same number."""


@dataclass(frozen=True)
class EvaluationRequest(Request):
    """Play whole fresh games with the policy of `version`."""

    kind: ClassVar[str] = "evaluation"
    episodes: int = 20
    seed: int = 1
    greedy: bool = False


@dataclass(frozen=True)
class WarmRequest(Request):
    """Import what requests of some kinds need, and answer an empty result: the instance is warm then.

    It meets no replay server, is kept under no name, and on a warm instance does nothing: a platform's bare latency.
    """

    kind: ClassVar[str] = "warm"
    request: str = "warm"
    server_url: str = ""
    job: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""
    round: int = 0
    version: int = 0
    work: Sequence[str] = ("actor",)
    """The kinds of request."""
    hold_s: float = 0.0
    """Stay busy for so long, so that several sent at once reach as many instances."""


REQUESTS: dict[str, type[Request]] = {
    each.kind: each for each in (ActorRequest, LearnerRequest, EvaluationRequest, WarmRequest)
}


@dataclass(frozen=True)
class Measured:
    """What a function says of its own invocation. Times are seconds; started and ended are of its own clock."""

    instance: str = ""
    """Names the process that ran it."""
    invocation: int = 0
    """How many-th of this instance; the first was a cold start."""
    started: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    """Processor time, of this invocation alone (a cold one's includes the imports that it caused)."""
    startup_s: float = 0.0
    """Of a cold start: from the process's start to the handler's; else 0."""
    import_s: float = 0.0
    """Of a cold start: importing what the work needs."""
    memory_bytes: int = 0
    """Most that the process has had in memory so far."""
    bytes_in: int = 0
    """From the replay server, and the request."""
    bytes_out: int = 0
    """To the replay server; the response is not counted."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part: fetch_weights, make_environments, restore, act, push, …"""

    @property
    def cold(self) -> bool:
        return self.invocation == 1


@dataclass(frozen=True)
class Failure:
    """An error as data."""

    type: str
    message: str
    traceback: str
    retry: bool = False
    """Whether another attempt may do better."""


@dataclass(frozen=True)
class Response:
    """What an invocation answers. Exactly one of `result` and `failure` is there."""

    request: str
    measured: Measured
    result: Mapping[str, Any] | None = None
    """Actor: fragments (ids, uint64 little-endian), version (acted with), scores, steps, state (key).
    Learner: version (made), statistics (of each update, a map of numbers), samples (agent steps of all updates).
    Evaluation: scores."""
    failure: Failure | None = None
    replayed: bool = False
    """The work had been done before: this is what was answered then, with this invocation's own measurements."""


def encode_request(request: Request) -> bytes:
    """A request as bytes."""
    return _pack({"contract": CONTRACT, "kind": request.kind, **_fields(request)})


def decode_request(payload: bytes) -> Request:
    """The request that `encode_request` made. ContractError for anything else."""
    values = _unpack(payload, "request")
    kind = values.pop("kind", None)
    if kind not in REQUESTS:
        raise ContractError(f"expected a request of kind {', '.join(REQUESTS)}, came {kind!r}")
    return _made(REQUESTS[kind], values, "request")


def bounded_request(payload: bytes, deadline: float) -> bytes:
    """The encoded request with its deadline no later than `deadline`: where a platform ends its functions by itself.

    What is no request is given back as it came, for the handler to answer.
    """
    try:
        request = decode_request(payload)
    except ContractError:
        return payload
    return encode_request(dataclasses.replace(request, deadline=min(request.deadline or deadline, deadline)))


def encode_response(response: Response) -> bytes:
    """A response as bytes."""
    return _pack({"contract": CONTRACT, **dataclasses.asdict(response)})


def decode_response(payload: bytes) -> Response:
    """The response that `encode_response` made. ContractError for anything else."""
    values = _unpack(payload, "response")
    values["measured"] = _made(Measured, values.get("measured") or {}, "measurements")
    if values.get("failure") is not None:
        values["failure"] = _made(Failure, values["failure"], "failure")
    response = _made(Response, values, "response")
    if (response.result is None) == (response.failure is None):
        raise ContractError("expected a response with either a result or a failure")
    return response


def _fields(message: Any) -> dict[str, Any]:
    return {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}


def _pack(values: Mapping[str, Any]) -> bytes:
    packed = msgpack.packb(values, use_bin_type=True)
    assert packed is not None
    return packed


def _unpack(payload: bytes, what: str) -> dict[str, Any]:
    try:
        values = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise ContractError(f"expected a {what} in msgpack, came {len(payload)} bytes that are none: {error}") from None
    if not isinstance(values, dict):
        raise ContractError(f"expected a {what} as a msgpack map, came {type(values).__name__}")
    if (contract := values.pop("contract", None)) != CONTRACT:
        raise ContractError(f"expected a {what} of contract {CONTRACT}, came {contract!r}: update the older side")
    return values


def _made(kind: type[Any], values: Mapping[str, Any], what: str) -> Any:
    try:
        return kind(**values)
    except TypeError as error:
        raise ContractError(f"not a {what}: {error}") from None
