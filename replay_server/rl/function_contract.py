"""What an invocation of a function is told and what it answers: msgpack maps, the same on every platform.

A function is one ``bytes → bytes`` handler (`replay_server.serverless.function.handle`). It shares nothing with who
calls it: weights, trajectories and states of environments travel by reference through the replay server, as names and
versions in these messages. A request has a name, and the same name is the same work: done twice it counts once. Nothing
in here needs torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgpack

from replay_server.cluster_address import is_cluster_url
from replay_server.rl.field_types import check_names, check_types, plain

CONTRACT = 1
"""Version of these messages; another one is refused."""
MESSAGE_BYTES = 6 * 2**20
"""Most that a message may have; what is larger travels by reference. (AWS Lambda takes no more, and less in base64.)"""
HISTORY = 32
"""Versions of the policy that are kept for asynchronous learners, which need more than the newest."""
NAME_BYTES = 120
"""Most of a job's or a request's name: together they are part of a key."""


class ContractError(ValueError):
    """A message that is not one of these: what was expected, what was got."""


@dataclass(frozen=True)
class Names:
    """Where on the server the parts of one job are; another job's are elsewhere."""

    job: str
    run: str = ""
    """As in `Request.run`: what was done for one run is not done for another."""
    shards: bool = False
    """Whether the server is several shards: all keys of the job are then in one slot, by a hash tag, and each run has a
    table of its own."""

    @property
    def prefix(self) -> str:
        """What the names of all keys begin with, before a colon."""
        return f"{{{self.job}}}" if self.shards else self.job

    @property
    def policy(self) -> str:
        """Weights that actors act with, by version."""
        return f"{self.prefix}:policy"

    @property
    def learner(self) -> str:
        """All of a learner's state, as weights by the same version: network, optimiser, counters."""
        return f"{self.prefix}:learner"

    @property
    def learner_token(self) -> str:
        """Version and token of the newest learner's state (a string), by which a warm learner knows its own again."""
        return f"{self.prefix}:learner:token"

    @property
    def tables(self) -> str:
        """What the names of all runs' tables begin with."""
        return f"{self.prefix}:fragments"

    @property
    def fragments(self) -> str:
        """The table of fragments."""
        return f"{self.tables}:{self.run}" if self.shards and self.run else self.tables

    def done(self, request: str) -> str:
        """The response to a request that is done (a string with an expiry)."""
        return f"{self.prefix}:done:{self.run}:{request}" if self.run else f"{self.prefix}:done:{request}"

    @property
    def gradients(self) -> str:
        """What the keys of this run's gradient queue begin with (`replay_server.rl.gradient_queue`)."""
        return f"{self.prefix}:gradients:{self.run}"

    def history(self, version: int) -> str:
        """Weights: the policy of a version, until `HISTORY` later ones have been published."""
        return f"{self.policy}:{version % HISTORY}"

    @property
    def weights(self) -> list[str]:
        """All keys of weights that a job may have."""
        return [self.policy, self.learner, *(self.history(version) for version in range(HISTORY))]

    def state(self, attempt: str) -> str:
        """The states of an actor's environments after an attempt of its own name (a string with an expiry)."""
        return f"{self.prefix}:state:{attempt}"


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
    """"ppo", "impact" or "impala"."""
    round: int
    version: int
    """Of the policy to act with, or of the learner's state to go on from."""
    deadline: float = 0.0
    """Seconds since 1970, by the caller's clock: what is not done then is given up. 0 = none."""
    run: str = ""
    """Names this run of the job: another run of the same name publishes other weights of the same versions and asks for
    other work by the same names, and what was kept or done for one is not for the other."""

    @property
    def names(self) -> Names:
        return Names(self.job, self.run, is_cluster_url(self.server_url))

    @property
    def name_in_job(self) -> str:
        """Names the work within the job, over all its runs."""
        return f"{self.run}:{self.request}" if self.run else self.request

    def __post_init__(self) -> None:
        """ContractError for a value of a wrong type, or one that no request may have."""
        _checked(self)
        if not (self.deadline >= 0 and math.isfinite(self.deadline)):
            raise ContractError(f"request.deadline: expected seconds since 1970, or 0 = none, got {self.deadline}")
        _at_least(self, 0, "round", "version")
        _check_name(self, "request", 1)
        _check_name(self, "run", 0)
        _check_name(self, "job", 1 if self.server_url else 0)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 0, "actor", "sequence")
        _at_least(self, 1, "environments")


@dataclass(frozen=True)
class LearnerRequest(Request):
    """Learn from fragments: from the learner's state of `version` make that of version + updates."""

    kind: ClassVar[str] = "learner"
    fragments: bytes = b""
    """Ids of the items to learn from, uint64 little-endian; empty = `sample` of them, as the table hands them out."""
    sample: int = 0
    updates: int = 1
    """Rounds of PPO, passes of IMPACT and IMPALA; each draws its own sample where `sample` is set."""
    threads: int = 0
    """Of torch; 0 = OMP_NUM_THREADS of the function's environment, else 1. Results are the same for the same number."""
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is to be measured of the new policy, and how: name → options (`replay_server.learner.policy_probes`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 0, "sample", "threads")
        _at_least(self, 1, "updates")
        if len(self.fragments) % 8:
            raise ContractError(f"request.fragments: expected ids of 8 bytes each, got {len(self.fragments)} bytes")
        if bool(self.fragments) == bool(self.sample):
            raise ContractError("request: expected either fragments (ids) or sample (how many), got both or neither")


@dataclass(frozen=True)
class GradientRequest(Request):
    """Compute gradients of fragments, each of the newest policy, and push them: an asynchronous learner's share."""

    kind: ClassVar[str] = "gradient"
    fragments: bytes = b""
    """Ids of the items to learn from, uint64 little-endian."""
    learner: int = 0
    """Number of this learner within its round."""
    learning: Mapping[str, Any] = field(default_factory=dict)
    """`replay_server.rl.asynchronous_learning.AsynchronousLearning`, its fields; what is not there is its default."""
    threads: int = 0
    """As of `LearnerRequest`."""
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """As of `LearnerRequest`; measured of the newest policy when the last gradient has been applied."""
    device: str = "cpu"
    """What it computes on: "cpu"; "auto" = the accelerator, of those that its host has, that falls to its number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 0, "learner", "threads")
        if not self.fragments or len(self.fragments) % 8:
            raise ContractError(f"request.fragments: expected ids of 8 bytes each, got {len(self.fragments)} bytes")


@dataclass(frozen=True)
class ParameterRequest(Request):
    """Apply the gradients of a round as they come, publish what becomes of them, and close the round when it is over.

    `replay_server.rl.gradient_queue.GradientQueue.end_round` says that it is.
    """

    kind: ClassVar[str] = "parameter"
    learning: Mapping[str, Any] = field(default_factory=dict)
    """As of `GradientRequest`."""
    serve_s: float = 300.0
    """Longest time; when it has passed, the result says that the round is not over and another request goes on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 1, "round")
        if not 0 < self.serve_s <= 86_400:
            raise ContractError(f"request.serve_s: expected above 0 and up to 86,400 seconds, got {self.serve_s}")


@dataclass(frozen=True)
class EvaluationRequest(Request):
    """Play whole fresh games with the policy of `version`."""

    kind: ClassVar[str] = "evaluation"
    episodes: int = 20
    seed: int = 1
    greedy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, 0, "seed")
        _at_least(self, 1, "episodes")


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.hold_s <= HOLD_S:
            raise ContractError(f"request.hold_s: expected 0 to {HOLD_S:g} seconds, got {self.hold_s}")
        if unknown := [kind for kind in self.work if kind not in WORK]:
            raise ContractError(f"request.work: expected kinds of request ({', '.join(WORK)}), got {unknown[0]!r}")


WORK = (ActorRequest.kind, LearnerRequest.kind, GradientRequest.kind, ParameterRequest.kind, EvaluationRequest.kind)
"""Kinds of request that work is done for."""
HOLD_S = 60.0
"""Longest time that a request may keep an instance busy for nothing."""
REQUESTS: dict[str, type[Request]] = {
    each.kind: each
    for each in (ActorRequest, LearnerRequest, GradientRequest, ParameterRequest, EvaluationRequest, WarmRequest)
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
    waited_s: float = 0.0
    """Before it started: for another invocation of the same instance, which does one at a time."""

    def __post_init__(self) -> None:
        _checked(self)

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

    def __post_init__(self) -> None:
        _checked(self)


@dataclass(frozen=True)
class Response:
    """What an invocation answers. Exactly one of `result` and `failure` is there."""

    request: str
    measured: Measured
    result: Mapping[str, Any] | None = None
    """Actor: fragments (ids, uint64 little-endian), version (acted with), scores, steps, state (key).
    Learner: version (made), statistics (of each update, a map of numbers), samples (agent steps of all updates).
    Gradient: version (newest that it saw), gradients (pushed), again (pushed before), samples, kl, moments, statistics.
    Parameter: version (made), over, statistics.
    Evaluation: scores."""
    failure: Failure | None = None
    replayed: bool = False
    """The work had been done before: this is what was answered then, with this invocation's own measurements."""

    def __post_init__(self) -> None:
        _checked(self)
        if (self.result is None) == (self.failure is None):
            raise ContractError("response: expected either a result or a failure, got both or neither")


def encode_request(request: Request) -> bytes:
    """A request as bytes. ContractError where it is too large: what it carries belongs on the server."""
    return _pack({"contract": CONTRACT, "kind": request.kind, **_fields(request)}, "request")


def decode_request(payload: bytes) -> Request:
    """The request that `encode_request` made. ContractError for anything else."""
    values = _unpack(payload, "request")
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in REQUESTS:
        raise ContractError(f"expected a request of kind {', '.join(REQUESTS)}, got {kind!r:.80}")
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
    """A response as bytes. ContractError where it is too large."""
    values = _fields(response)
    for name in ("measured", "failure"):
        values[name] = None if values[name] is None else _fields(values[name])
    return _pack({"contract": CONTRACT, **values}, "response")


def decode_response(payload: bytes) -> Response:
    """The response that `encode_response` made. ContractError for anything else."""
    values = _unpack(payload, "response")
    for name, kind in (("measured", Measured), ("failure", Failure)):
        if isinstance(part := values.get(name), dict):
            values[name] = _made(kind, part, f"response.{name}")
    return _made(Response, values, "response")


# ---- packing and checking --------------------------------------------------------------------------------------------


def _fields(message: Any) -> dict[str, Any]:
    return {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}


def _pack(values: Mapping[str, Any], what: str) -> bytes:
    try:
        packed = msgpack.packb(values, use_bin_type=True)
    except (ValueError, OverflowError) as error:  # a string that is no Unicode, a whole number beyond 64 bits
        raise ContractError(f"{what}: cannot be packed: {error}") from None
    assert packed is not None
    _check_size(packed, what)
    return packed


def _unpack(payload: bytes, what: str) -> dict[str, Any]:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise ContractError(f"expected a {what} as bytes, got {type(payload).__name__}")
    _check_size(payload, what)
    try:
        values = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, OverflowError, RecursionError) as error:
        reason = f"{error or type(error).__name__}"
        raise ContractError(f"expected a {what} in msgpack, got {len(payload)} bytes that are none: {reason}") from None
    if not isinstance(values, dict):
        raise ContractError(f"expected a {what} as a msgpack map, got {type(values).__name__}")
    if type(contract := values.pop("contract", None)) is not int or contract != CONTRACT:
        raise ContractError(f"expected a {what} of contract {CONTRACT}, got {contract!r:.80}: update the older side")
    return values


def _check_size(message: bytes | bytearray | memoryview, what: str) -> None:
    if len(message) > MESSAGE_BYTES:
        raise ContractError(
            f"expected a {what} of at most {MESSAGE_BYTES} bytes, got {len(message)}: put what is large on the replay "
            "server and send its name"
        )


def _made(kind: type[Any], values: Mapping[str, Any], what: str) -> Any:
    try:
        check_names(kind, values, what)
    except ValueError as error:
        raise ContractError(str(error)) from None
    return kind(**values)


def _checked(message: Any) -> None:
    """Makes the values of a message plain, in place, and checks their types."""
    what = "request" if isinstance(message, Request) else type(message).__name__.lower()
    try:
        for name, value in _fields(message).items():
            if not isinstance(value, Measured | Failure):
                object.__setattr__(message, name, plain(value, f"{what}.{name}"))
        check_types(type(message), _fields(message), what)
    except ValueError as error:
        raise ContractError(str(error)) from None


def _at_least(request: Request, least: int, *names: str) -> None:
    for name in names:
        if not least <= getattr(request, name) < 2**63:
            raise ContractError(f"request.{name}: expected at least {least}, got {getattr(request, name)}")


def _check_name(request: Request, name: str, least: int) -> None:
    """Names become keys and names of tables on the server, where blanks and control characters are refused."""
    text = getattr(request, name)
    size = len(text.encode(errors="replace"))
    if not least <= size <= NAME_BYTES or not (text.isprintable() and " " not in text):
        raise ContractError(f"request.{name}: expected {least} to {NAME_BYTES} bytes without blanks, got {text!r:.80}")
