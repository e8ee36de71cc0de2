"""Bad input of every kind: a clear error, nothing changed, and the connection still in step."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

import replay_server as rs

X = np.zeros((2, 2), np.float32).tobytes()
K = np.zeros(2, np.int64).tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, np.float64).tobytes()


BAD_ADDS = {
    "no such table": (("NOPE", 2, b"", "COLUMNS", 2, "x", X, "k", K), rs.TableNotFound, "NOPE"),
    "short column": ((None, 2, b"", "COLUMNS", 2, "x", X[:-1], "k", K), rs.SchemaError, "16 bytes in all, got 15"),
    "long column": ((None, 2, b"", "COLUMNS", 2, "x", X + b"\0", "k", K), rs.SchemaError, "got 17"),
    "wrong dtype": ((None, 2, b"", "COLUMNS", 2, "x", X * 2, "k", K), rs.SchemaError, "float32"),
    "large wrong column": ((None, 2, b"", "COLUMNS", 2, "x", bytes(1 << 20), "k", K), rs.SchemaError, "1048576"),
    "unknown column": ((None, 2, b"", "COLUMNS", 2, "y", X, "k", K), rs.SchemaError, "'y'"),
    "empty column name": ((None, 2, b"", "COLUMNS", 2, "", X, "k", K), rs.SchemaError, "column"),
    "column twice": ((None, 2, b"", "COLUMNS", 2, "x", X, "x", X), rs.SchemaError, "twice"),
    "column missing": ((None, 2, b"", "COLUMNS", 1, "x", X), rs.SchemaError, "2 columns"),
    "column too many": ((None, 2, b"", "COLUMNS", 3, "x", X, "k", K, "k", K), rs.SchemaError, "2 columns"),
    "columns and no count": ((None, 2, b"", "COLUMNS", "x", X, "k"), rs.ReplayError, "syntax"),
    "fewer columns than said": ((None, 2, b"", "COLUMNS", 2, "x", X, "k"), rs.ServerError, "syntax"),
    "no COLUMNS": ((None, 2, b"", "BLOCK", 5, "x", X, "k", K), rs.ServerError, "syntax"),
    "zero items": ((None, 0, b"", "COLUMNS", 2, "x", b"", "k", b""), rs.ServerError, "at least 1"),
    "negative items": ((None, -2, b"", "COLUMNS", 2, "x", X, "k", K), rs.ServerError, "at least 1"),
    "no number of items": ((None, "two", b"", "COLUMNS", 2, "x", X, "k", K), rs.ServerError, "integer"),
    "too many items": ((None, 1 << 40, b"", "COLUMNS", 2, "x", X, "k", K), rs.LimitExceeded, "at most"),
    "more than capacity": (
        (None, 101, b"", "COLUMNS", 2, "x", bytes(8 * 101), "k", bytes(8 * 101)),
        rs.LimitExceeded,
        "never fit",
    ),
    "NaN priority": ((None, 2, floats(1, np.nan), "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "nan"),
    "infinite priority": ((None, 2, floats(np.inf, 1), "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "inf"),
    "negative priority": ((None, 2, floats(1, -0.5), "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "-0.5"),
    "huge priority": ((None, 2, floats(1, 1e308), "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "1e"),
    "too few priorities": ((None, 2, floats(1), "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "16 bytes"),
    "ragged priorities": ((None, 2, b"1.0", "COLUMNS", 2, "x", X, "k", K), rs.PriorityError, "16 bytes"),
    "negative BLOCK": ((None, 2, b"", "BLOCK", -1, "COLUMNS", 2, "x", X, "k", K), rs.ServerError, "BLOCK"),
    "wordy BLOCK": ((None, 2, b"", "BLOCK", "soon", "COLUMNS", 2, "x", X, "k", K), rs.ServerError, "BLOCK"),
    "endless BLOCK": ((None, 2, b"", "BLOCK", 2**63 - 1, "COLUMNS", 2, "x", X, "k", K), rs.ServerError, "BLOCK"),
}


@pytest.mark.parametrize("case", BAD_ADDS)
def test_a_bad_add_is_refused_whole(client, raw, table, items, case):
    arguments, kind, said = BAD_ADDS[case]
    client.add(table, items(1))
    before = client.info(table)
    reply = raw.command("REPLAY.ADD", *(table if argument is None else argument for argument in arguments))
    assert isinstance(reply, kind)
    assert said in str(reply)
    assert client.info(table) == before
    assert raw.command("PING") == "PONG"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("REPLAY.ADD",), "number of arguments"),
        (("REPLAY.SAMPLE", None), "number of arguments"),
        (("REPLAY.SAMPLE", None, 0), "at least 1"),
        (("REPLAY.SAMPLE", None, "x"), "integer"),
        (("REPLAY.SAMPLE", None, 1 << 40), "at most"),
        (("REPLAY.SAMPLE", None, 1, "BETA"), "syntax"),
        (("REPLAY.SAMPLE", None, 1, "BETA", "nan"), "BETA"),
        (("REPLAY.SAMPLE", None, 1, "BETA", -1), "BETA"),
        (("REPLAY.SAMPLE", None, 1, "REPLACE"), "syntax"),
        (("REPLAY.SAMPLE", None, 1, "REPLACE", 2), "REPLACE"),
        (("REPLAY.SAMPLE", None, 2, "REPLACE", 0), "without replacement waits"),
        (("REPLAY.SAMPLE", None, 1, "BLOCK", -1), "BLOCK"),
        (("REPLAY.SAMPLE", None, 1, "COLUMNS", 1, "nope"), "'nope'"),
        (("REPLAY.SAMPLE", None, 1, "COLUMNS", 2, "x"), "syntax"),
        (("REPLAY.SAMPLE", None, 1, "EXTRA", 2), "syntax"),
        (("REPLAY.SAMPLE", "NOPE", 1), "NOPE"),
        (("REPLAY.UPDATE", None, b"1234567", b""), "8 bytes"),
        (("REPLAY.UPDATE", None, bytes(8), b""), "8 bytes"),
        (("REPLAY.UPDATE", None, bytes(8), floats(np.nan)), "nan"),
        (("REPLAY.UPDATE", None, bytes(8), floats(-1)), "-1"),
        (("REPLAY.GET", None, b"123"), "8 bytes"),
        (("REPLAY.GET", None, bytes(8)), "is not in table"),
        (("REPLAY.GET", None, b"", "OTHER"), "syntax"),
        (("REPLAY.DEL", None, b"123"), "8 bytes"),
        (("REPLAY.CONFIG", None, b"\xc1"), ""),
        (("REPLAY.CONFIG", None, msgpack.packb({"capacity": 5})), "capacity"),
        (("REPLAY.CONFIG", None, msgpack.packb({"max_times_sampled": -1})), "max_times_sampled"),
        (("REPLAY.CONFIG", None, msgpack.packb({"rate_limiter": {"kind": "queue", "size": 0}})), "size"),
        (("REPLAY.INFO", "NOPE"), "NOPE"),
        (("REPLAY.RESET", "NOPE"), "NOPE"),
        (("REPLAY.DROP", "NOPE"), "NOPE"),
        (("REPLAY.SPEC", "NOPE"), "NOPE"),
        (("REPLAY.SAVE", "/etc/passwd"), "name of a file"),
        (("REPLAY.SAVE", "a", "b"), "wrong number of arguments"),
        (("REPLAY.NOPE",), "unknown command"),
        (("WEIGHTS.PUBLISH", "w", "x", b""), "version"),
        (("WEIGHTS.PUBLISH", "w", -1, b""), "version"),
        (("WEIGHTS.PUBLISH", "", 1, b""), "key"),
        (("WEIGHTS.GET", "w", "OLDER", 1), "syntax"),
        (("WEIGHTS.GET", "w", "NEWER", "x"), "NEWER"),
    ],
)
def test_other_bad_commands_change_nothing(client, raw, table, items, arguments, said):
    client.add(table, items(1))
    before = client.info(table)
    reply = raw.command(*(table if argument is None else argument for argument in arguments))
    assert isinstance(reply, rs.ReplayError)
    assert said in str(reply)
    assert {**client.info(table), "stale_updates": 0} == {**before, "stale_updates": 0}
    assert raw.command("PING") == "PONG"


GOOD_SPEC = {"capacity": 10, "signature": {"x": {"dtype": "float32", "shape": [2]}}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"colour": 1}, "colour"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": "ten"}, "capacity"),
        ({"capacity": 2**63}, "capacity"),
        ({"signature": {}}, "signature"),
        ({"signature": {"x": {"dtype": "float33", "shape": []}}}, "dtype"),
        ({"signature": {"x": {"dtype": "float32", "shape": [-1]}}}, "x"),
        ({"signature": {"x": {"dtype": "float32", "shape": [2**40, 2**40]}}}, "x"),
        ({"signature": {"x": {"dtype": "float32", "shape": [1] * 9}}}, "x"),
        ({"signature": {f"c{i}": {"dtype": "int8", "shape": []} for i in range(257)}}, "256"),
        ({"signature": {"x" * 300: {"dtype": "int8", "shape": []}}}, "255"),
        ({"sampler": {"kind": "best"}}, "sampler"),
        ({"sampler": {"kind": "prioritized", "priority_exponent": -1.0}}, "priority_exponent"),
        ({"sampler": {"kind": "prioritized", "priority_exponent": float("nan")}}, "priority_exponent"),
        ({"remover": {"kind": "oldest"}}, "remover"),
        ({"remover": {"kind": "prioritized", "stratified": False}}, "stratified"),
        ({"max_staleness": 3}, "policy_version"),
        ({"max_staleness": 1.5}, "max_staleness"),
        ({"rate_limiter": {"kind": "min_size", "min_size": 1}}, "min_size"),
        ({"rate_limiter": {"kind": "sample_to_insert_ratio", "samples_per_insert": 0.0}}, "samples_per_insert"),
        ({"max_times_sampled": -1}, "max_times_sampled"),
        ({"max_bytes": "many"}, "max_bytes"),
    ],
)
def test_a_bad_spec_is_refused_by_the_name_of_what_is_wrong(client, raw, changes, said):
    reply = raw.command("REPLAY.CREATE", "bad", msgpack.packb({**GOOD_SPEC, **changes}))
    assert isinstance(reply, rs.SchemaError | rs.LimitExceeded)
    assert said in str(reply)
    assert "bad" not in client.tables()


@pytest.mark.parametrize(("name", "came"), [(b"n" * 256, "got 256 bytes"), (b"a\0b", "got 3 bytes, one of them zero")])
def test_a_name_that_no_table_can_have_is_refused_saying_what_came(client, raw, name, came):
    before = client.tables()
    reply = raw.command("REPLAY.CREATE", name, msgpack.packb(GOOD_SPEC))
    assert isinstance(reply, rs.SchemaError)
    assert came in str(reply)
    assert client.tables() == before


@pytest.mark.parametrize("spec", [b"", b"\xc1", b"\x80", b"\x81", b"\xdf\xff\xff\xff\xff", b"\x91" * 1000, b"[1]"])
def test_a_spec_that_is_no_map_is_refused(client, raw, spec):
    assert isinstance(raw.command("REPLAY.CREATE", "bad", spec), rs.SchemaError)
    assert "bad" not in client.tables()


def test_a_spec_cut_short_anywhere_is_refused(client, raw):
    spec = msgpack.packb(GOOD_SPEC)
    for end in range(len(spec)):
        assert isinstance(raw.command("REPLAY.CREATE", "bad", spec[:end]), rs.SchemaError)
    assert isinstance(raw.command("REPLAY.CREATE", "bad", spec + b"\0"), rs.SchemaError)
    assert "bad" not in client.tables()


def test_the_client_refuses_before_sending(client, table, items):
    client.add(table, items(1))
    before = client.info(table)
    for data, priorities, kind in [
        ({**items(1, 2), "x": np.zeros((2, 3), np.float32)}, None, rs.SchemaError),
        ({**items(1, 2), "x": np.zeros((2, 2))}, None, rs.SchemaError),
        ({"x": items(1)["x"]}, None, rs.SchemaError),
        ({**items(1), "y": 1}, None, rs.SchemaError),
        (items(1, 2), [1.0, float("nan")], rs.PriorityError),
        (items(1, 2), [1.0, -1.0], rs.PriorityError),
        (items(1, 2), [1.0], rs.PriorityError),
    ]:
        with pytest.raises(kind):
            client.add(table, data, priorities)
    with pytest.raises(rs.SchemaError):
        client.sample(table, 1, columns=["y"])
    with pytest.raises(rs.PriorityError):
        client.update_priorities(table, [1], [float("inf")])
    with pytest.raises(rs.TableNotFound):
        client.add("nope", items(1))
    assert client.info(table) == before
