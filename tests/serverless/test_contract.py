"""Messages to and from functions: what goes in comes out, and nothing else goes in or out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_server.cluster_address import slot_of
from replay_server.rl.function_contract import (
    CONTRACT,
    MESSAGE_BYTES,
    ActorRequest,
    ContractError,
    EvaluationRequest,
    Failure,
    LearnerRequest,
    Measured,
    Names,
    Request,
    Response,
    WarmRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

BASE: dict[str, Any] = {
    "request": "r-1",
    "server_url": "redis://127.0.0.1:1",
    "job": "job",
    "settings": {"env": "CartPole-v1", "hidden": 16, "reward_clip": None, "layers": [1, 2]},
    "algorithm": "ppo",
    "round": 3,
    "version": 2,
    "deadline": 1e9,
}
REQUESTS = [
    ActorRequest(**BASE, actor=2, environments=4, sequence=7, state="job:state:x", exact=False),
    LearnerRequest(**BASE, fragments=np.array([1, 2**63], "<u8").tobytes(), threads=2),
    LearnerRequest(**BASE, sample=8, updates=3),
    EvaluationRequest(**BASE, episodes=5, seed=9, greedy=True),
    WarmRequest(work=["actor", "learner"], hold_s=0.5),
]
MEASURED = Measured("instance", 2, 1.0, 2.0, 0.5, phases={"act": 0.25}, waited_s=0.1)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: each.kind)
def test_a_request_arrives_as_it_was_sent(request_: Request):
    assert decode_request(encode_request(request_)) == request_


def test_what_a_job_has_on_shards_is_in_one_slot_but_for_the_table_which_is_the_runs():
    request = ActorRequest(**BASE | {"server_url": "redis+cluster://h:1,h:2"}, run="first")
    names = request.names
    keys = [*names.weights, names.learner_token, names.gradients, names.done("r-1"), names.state("attempt")]
    assert {slot_of(key) for key in keys} == {slot_of("job")}
    assert names.policy == "{job}:policy"
    assert names.fragments == "{job}:fragments:first"
    on_one = dataclasses.replace(request, server_url="redis://h:1").names
    assert on_one == Names("job", "first")
    assert (on_one.policy, on_one.fragments) == ("job:policy", "job:fragments")


@pytest.mark.parametrize(
    "response",
    [
        Response("r", MEASURED, result={"scores": [1.5, math.inf], "fragments": b"\0" * 8, "more": {"a": None}}),
        Response("r", MEASURED, result={}, replayed=True),
        Response("", Measured(), failure=Failure("ValueError", "no", "Traceback …", retry=True)),
    ],
)
def test_a_response_arrives_as_it_was_sent(response: Response):
    assert decode_response(encode_response(response)) == response


def test_numpy_scalars_travel_as_python_numbers():
    values = {"int": np.int64(3), "float": np.float32(0.5), "bool": np.bool_(True), "double": np.float64(2.5)}
    sent = ActorRequest(**BASE | {"version": np.int64(4), "settings": values | {"deep": [np.uint8(7)]}})
    found = decode_request(encode_request(sent))
    assert found.settings == {"int": 3, "float": 0.5, "bool": True, "double": 2.5, "deep": [7]}
    assert [type(value) for value in found.settings.values()] == [int, float, bool, float, list]
    assert type(found.version) is int


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (ActorRequest, {"version": "2"}, r"request.version: expected int, got '2' \(str\)"),
        (ActorRequest, {"version": True}, "request.version: expected int"),
        (ActorRequest, {"version": 2.0}, "request.version: expected int"),
        (ActorRequest, {"version": -1}, "request.version: expected at least 0"),
        (ActorRequest, {"version": 2**70}, "request.version"),
        (ActorRequest, {"request": b"r"}, "request.request: expected str"),
        (ActorRequest, {"request": ""}, "request.request: expected 1 to 120 bytes"),
        (ActorRequest, {"request": "a b"}, "without blanks"),
        (ActorRequest, {"job": "a\nb"}, "request.job: .* without blanks"),
        (ActorRequest, {"job": "j" * 121}, "request.job: expected 1 to 120 bytes"),
        (ActorRequest, {"settings": [1]}, "request.settings: expected .*Mapping"),
        (ActorRequest, {"settings": {1: 2}}, r"request.settings: expected names as keys, got 1 \(int\)"),
        (ActorRequest, {"settings": {"w": np.zeros(3)}}, r"request.settings.w: expected plain data .* \(ndarray\)"),
        (ActorRequest, {"settings": {"w": {"v": {1, 2}}}}, r"request.settings.w.v: expected plain data"),
        (ActorRequest, {"deadline": math.nan}, "request.deadline: expected seconds since 1970"),
        (ActorRequest, {"deadline": math.inf}, "request.deadline"),
        (ActorRequest, {"deadline": -1.0}, "request.deadline"),
        (ActorRequest, {"environments": 0}, "request.environments: expected at least 1"),
        (ActorRequest, {"state": 3}, r"request.state: expected str \| None"),
        (ActorRequest, {"exact": 1}, "request.exact: expected bool"),
        (LearnerRequest, {"fragments": b"1234567"}, "ids of 8 bytes each, got 7 bytes"),
        (LearnerRequest, {"fragments": "12345678"}, "request.fragments: expected bytes"),
        (LearnerRequest, {}, "either fragments .* or sample .*, got both or neither"),
        (LearnerRequest, {"fragments": b"12345678", "sample": 1}, "got both or neither"),
        (LearnerRequest, {"sample": 1, "updates": 0}, "request.updates: expected at least 1"),
        (EvaluationRequest, {"episodes": 0}, "request.episodes: expected at least 1"),
        (WarmRequest, {"hold_s": math.nan}, "request.hold_s"),
        (WarmRequest, {"hold_s": 1e6}, "request.hold_s: expected 0 to 60 seconds"),
        (WarmRequest, {"work": ["cook"]}, "request.work: expected kinds of request"),
        (WarmRequest, {"work": "actor"}, "request.work: expected .*Sequence"),
    ],
)
def test_a_wrong_value_is_refused_by_both_sides(kind: type[Request], changes: dict[str, Any], message: str):
    with pytest.raises(ContractError, match=message):
        kind(**BASE | changes)
    packable = {"contract": CONTRACT, "kind": kind.kind, **BASE, **changes}
    try:
        payload = msgpack.packb(packable)
    except (TypeError, OverflowError):
        return  # It cannot even be sent.
    assert payload is not None
    with pytest.raises(ContractError):
        decode_request(payload)


def changed(payload: bytes, **changes: Any) -> bytes:
    packed = msgpack.packb(msgpack.unpackb(payload) | changes)
    assert packed is not None
    return packed


def test_unknown_and_missing_fields_are_named():
    payload = encode_request(REQUESTS[0])
    with pytest.raises(ContractError, match=r"request has no 'colour' \(str\): expected actor, algorithm, deadline"):
        decode_request(changed(payload, colour=1))
    values = msgpack.unpackb(payload)
    del values["job"], values["round"]
    with pytest.raises(ContractError, match="request lacks job, round"):
        decode_request(msgpack.packb(values) or b"")


def test_another_contract_and_another_kind_are_refused():
    payload = encode_request(REQUESTS[0])
    for other in (CONTRACT + 1, str(CONTRACT), True, None):
        with pytest.raises(ContractError, match=r"expected a request of contract 1.*update the older side"):
            decode_request(changed(payload, contract=other))
    for other in ("cook", 3, None, ["actor"]):
        with pytest.raises(ContractError, match="expected a request of kind actor, learner, gradient, parameter"):
            decode_request(changed(payload, kind=other))


def test_what_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(ContractError, match=r"request of at most .* put what is large on the replay server"):
        encode_request(ActorRequest(**BASE | {"settings": {"weights": b"\0" * MESSAGE_BYTES}}))
    with pytest.raises(ContractError, match="response of at most"):
        encode_response(Response("r", MEASURED, result={"weights": b"\0" * MESSAGE_BYTES}))
    with pytest.raises(ContractError, match="request of at most"):
        decode_request(b"\xc1" * (MESSAGE_BYTES + 1))


def test_a_deep_message_is_refused():
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(ContractError, match="at most 16 levels"):
        ActorRequest(**BASE | {"settings": deep})
    with pytest.raises(ContractError, match="in msgpack"):
        decode_request(b"\x91" * 5000)


@pytest.mark.parametrize("payload", [None, "text", 3, ["list"]])
def test_what_is_no_bytes_is_refused(payload: Any):
    with pytest.raises(ContractError, match="expected a request as bytes, got"):
        decode_request(payload)


def test_a_response_has_a_result_or_a_failure():
    with pytest.raises(ContractError, match="either a result or a failure"):
        Response("r", MEASURED)
    with pytest.raises(ContractError, match="either a result or a failure"):
        Response("r", MEASURED, result={}, failure=Failure("a", "b", "c"))
    payload = encode_response(Response("r", MEASURED, result={}))
    for changes in ({"measured": 3}, {"measured": {"cpu_s": "x"}}, {"measured": {"unknown": 1}}, {"failure": "no"}):
        with pytest.raises(ContractError):
            decode_response(changed(payload, **changes))


def test_the_contract_has_what_is_documented_of_cold_starts():
    assert Measured(invocation=1).cold
    assert not dataclasses.replace(MEASURED, invocation=2).cold


TEXT = st.text("ab \n\u00e9", max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | TEXT | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from(REQUESTS), st.dictionaries(st.sampled_from([*BASE, "actor", "work", "sample", "x"]), VALUES))
def test_any_message_is_understood_or_refused(request_: Request, changes: dict[str, Any]):
    payload = changed(encode_request(request_), **changes)
    try:
        found = decode_request(payload)
    except ContractError:
        return
    again = decode_request(encode_request(found))
    assert again == found or "nan" in repr(found)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused(payload: bytes):
    for decode in (decode_request, decode_response):
        with pytest.raises(ContractError):
            decode(payload)
