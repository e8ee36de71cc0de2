"""Gradients that wait on the server: pushed once however often they are sent, summed up there, applied together with
what was made of them or not at all, and there again after a kill."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import replay_server as rs
from replay_server.gradients import narrow, widen

KEYS = itertools.count()


@pytest.fixture
def key(client: rs.Client) -> Iterator[str]:
    name = f"gradients-{next(KEYS)}"
    yield name
    client.delete_gradients(name)


def random_vectors(count: int, n: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(n).astype(np.float32) for _ in range(count)]


def weighted_sum(vectors: list[np.ndarray], weights: list[float]) -> np.ndarray:
    total = np.zeros(len(vectors[0]))
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector.astype(np.float64)
    return total.astype(np.float32)


def test_a_gradient_counts_once_and_waits_until_it_is_published(client, key):
    a, b = random_vectors(2, 5)
    assert client.push_gradient(key, 3, "0:3:0", a)
    assert not client.push_gradient(key, 3, "0:3:0", a)
    assert client.push_gradient(key, 5, "1:5:0", b)
    for _ in range(2):  # looking changes nothing
        taken = client.take_gradients(key, 8, timeout=0)
        assert taken.names == ["0:3:0", "1:5:0"]
        assert taken.versions.tolist() == [3, 5]
        np.testing.assert_array_equal(taken.vectors, [a, b])
        assert taken.staleness(6).tolist() == [3, 1]
        assert taken.staleness(4).tolist() == [1, 0]
    headers = client.gradient_headers(key, timeout=0)
    assert headers.names == taken.names
    assert headers.vectors == []
    assert headers.vector_bytes == 20
    policy = {"weight": np.arange(3.0)}
    assert client.publish_applied(key, ["0:3:0"], 6, {key: policy, f"{key}-optimiser": {"step": np.array([1])}}) == 6
    version, arrays = client.fetch_weights(key)
    assert version == 6
    assert arrays["weight"].tolist() == [0, 1, 2]
    assert client.fetch_weights(f"{key}-optimiser")[0] == 6
    assert client.gradient_states(key, ["0:3:0", "1:5:0", "2:0:0"]) == ["applied", "waiting", None]
    assert not client.push_gradient(key, 3, "0:3:0", a)  # also afterwards
    assert client.drop_gradients(key, ["1:5:0", "0:3:0"]) == 1
    assert not client.push_gradient(key, 5, "1:5:0", b)
    info = client.gradient_info(key)
    expected = {"waiting": 0, "pushed": 2, "duplicates": 3, "applied": 1, "dropped": 1, "remembered": 2}
    assert {name: info[name] for name in expected} == expected


def test_of_two_who_apply_the_same_gradients_one_publishes(client, key):
    (a,) = random_vectors(1, 4)
    client.push_gradient(key, 0, "a", a)
    client.publish_applied(key, ["a"], 1, {key: {"of": np.array([1])}})
    with pytest.raises(rs.StaleVersion):
        client.publish_applied(key, ["a"], 1, {key: {"of": np.array([2])}})
    with pytest.raises(rs.GradientNotWaiting, match="applied already"):
        client.publish_applied(key, ["a"], 2, {key: {"of": np.array([2])}})
    with pytest.raises(rs.GradientNotWaiting, match="not known"):
        client.publish_applied(key, ["b"], 2, {key: {"of": np.array([2])}})
    version, arrays = client.fetch_weights(key)
    assert version == 1
    assert arrays["of"].tolist() == [1]


@pytest.mark.parametrize("n", [1, 7, 4099, 300_001])
def test_a_sum_of_float32_is_numpys(client, key, n):
    vectors, weights = random_vectors(4, n), [0.5, -0.25, 1 / 3, 1e-3]
    for index, vector in enumerate(vectors):
        client.push_gradient(key, index, f"g{index}", vector)
    taken = client.take_gradients(key, 4, weights=weights, timeout=0)
    np.testing.assert_array_equal(taken.sum, weighted_sum(vectors, weights))
    assert taken.vectors == []
    assert taken.vector_bytes == 4 * n
    assert taken.dtype == "float32"
    fewer = client.take_gradients(key, 2, weights=weights[:2], timeout=0)
    np.testing.assert_array_equal(fewer.sum, weighted_sum(vectors[:2], weights[:2]))
    assert fewer.names == ["g0", "g1"]


def test_a_sum_of_bfloat16_is_rounded_to_nearest_even(client, key):
    torch = pytest.importorskip("torch")
    vectors, weights = random_vectors(3, 1000), [0.5, 0.3, 0.2]
    tensors = [torch.from_numpy(vector).to(torch.bfloat16) for vector in vectors]
    for index, vector in enumerate(vectors):
        sent = tensors[index] if index else vector  # rounded by torch, or here: the same
        client.push_gradient(key, index, f"g{index}", sent, dtype="bfloat16")
    widened = [tensor.float().numpy() for tensor in tensors]
    taken = client.take_gradients(key, 3, timeout=0)
    assert taken.dtype == "bfloat16"
    assert taken.vector_bytes == 2000
    np.testing.assert_array_equal(taken.vectors, widened)
    expected = torch.from_numpy(weighted_sum(widened, weights)).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(client.take_gradients(key, 3, weights=weights, timeout=0).sum, expected)


def test_bfloat16_by_hand():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -2.5, np.inf, 3.4e38, 0], np.float32)
    assert widen(narrow(values)).tolist() == [1, 1, 1 + 2**-6, -2.5, np.inf, np.inf, 0]
    assert np.isnan(widen(narrow(np.array([np.nan], np.float32)))).all()


def test_a_taker_waits_until_the_rule_holds(server, client, key, eventually):
    """Mean staleness at most β, or as many as n: versions 2 and 6, seen from 6, are stale by 4 and 0, in the mean 2."""
    (vector,) = random_vectors(1, 3)
    with pytest.raises(rs.Timeout, match="no gradient waits"):
        client.take_gradients(key, 4, until=(6, 1.0), timeout=0)
    client.push_gradient(key, 2, "a", vector)
    client.push_gradient(key, 6, "b", vector)
    with pytest.raises(rs.Timeout) as refused:
        client.gradient_headers(key, 4, until=(6, 1.5), timeout=0.02)
    assert refused.value.reason.startswith("2 gradients wait, of mean staleness 2; 4, or")
    assert client.gradient_headers(key, 4, until=(6, 2.0), timeout=0).names == ["a", "b"]
    assert client.gradient_headers(key, 2, until=(6, 0.0), timeout=0).names == ["a", "b"]  # as many as wanted
    assert client.gradient_headers(key, 4, until=(9, float("inf")), timeout=0).names == ["a", "b"]
    found: list[rs.Gradients] = []
    thread = threading.Thread(
        target=lambda: found.append(client.gradient_headers(key, 4, until=(6, 1.0), timeout=60)), daemon=True
    )
    thread.start()
    eventually(lambda: client.gradient_info(key)["takers"] == 1, "it waits")
    client.push_gradient(key, 6, "c", vector)  # (4 + 0 + 0) / 3 is above 1 still
    assert thread.is_alive()
    assert client.gradient_info(key)["takers"] == 1
    client.push_gradient(key, 7, "d", vector)  # of a newer version than the taker knows: stale by 0; and four wait
    thread.join(60)
    assert found[0].names == ["a", "b", "c", "d"]


def test_a_taker_is_woken_when_the_stale_ones_are_dropped(client, key, eventually):
    (vector,) = random_vectors(1, 3)
    client.push_gradient(key, 0, "late", vector)  # a hundred versions
    client.push_gradient(key, 100, "fresh", vector)
    found: list[rs.Gradients] = []
    thread = threading.Thread(
        target=lambda: found.append(client.take_gradients(key, 4, until=(100, 1.0), timeout=60)), daemon=True
    )
    thread.start()
    eventually(lambda: client.gradient_info(key)["takers"] == 1, "it waits")
    assert client.drop_gradients(key, ["late"]) == 1
    thread.join(60)
    assert found[0].names == ["fresh"]


def test_learners_wait_for_their_own(client, key, eventually):
    (vector,) = random_vectors(1, 3)
    for name in ("a", "b", "c"):
        client.push_gradient(key, 0, name, vector)
    with pytest.raises(rs.Timeout, match="2 of 2 gradients wait, at most 1"):
        client.await_gradients(key, ["a", "b"], 1, timeout=0.01)
    left: dict[str, int] = {}

    def wait(name: str, names: list[str], most: int) -> None:
        left[name] = client.await_gradients(key, names, most, timeout=60)

    threads = [
        threading.Thread(target=wait, args=("first", ["a", "b"], 0), daemon=True),
        threading.Thread(target=wait, args=("second", ["c", "never pushed"], 0), daemon=True),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: client.gradient_info(key)["takers"] == 2, "they wait")
    client.publish_applied(key, ["c"], 1, {key: {"w": vector}})
    threads[1].join(60)
    assert left == {"second": 0}  # the first, which came before it, waits still
    client.publish_applied(key, ["a"], 2, {key: {"w": vector}})
    client.drop_gradients(key, ["b"])
    threads[0].join(60)
    assert left == {"second": 0, "first": 0}


def rests(client: rs.Client) -> bool:
    """Whether the loop turns for what it is asked and for its timer, which ticks ten times a second, and no more."""
    turns = lambda: int(client.redis.info("stats")["loop_turns"])  # noqa: E731
    began, before = client.redis.time(), turns()
    for _ in range(20):
        time.sleep(0.02)
        client.redis.ping()
    after, ended = turns(), client.redis.time()
    passed_s = ended[0] - began[0] + (ended[1] - began[1]) / 1e6
    return after - before <= 20 + 4 + 11 * passed_s


def test_those_who_go_on_waiting_cost_nothing(key, eventually):
    """One wake tries each of many once, also where that takes longer than the loop has for it in one turn."""
    names = [f"g{index}" for index in range(1000)]
    with rs.Server([]) as server, rs.Client(server.url) as client, contextlib.ExitStack() as stack:
        with client.redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.execute_command("GRAD.PUSH", key, 0, name, "float32", b"1234")
            pipeline.execute()
        takers = [stack.enter_context(client.redis.client()) for _ in range(100)]
        for taker in takers:
            taker.connection.send_command("GRAD.AWAIT", key, 999, 1000, *names, "BLOCK", 0)
        eventually(lambda: client.gradient_info(key)["takers"] == len(takers), "all wait")
        client.push_gradient(key, 0, "one more", np.zeros(1, np.float32))  # wakes them for nothing
        with rs.Client(server.url) as looker:
            eventually(lambda: rests(looker), "the loop rests when each has been tried")
        client.drop_gradients(key, ["g500"])
        assert [taker.connection.read_response() for taker in takers] == [999] * len(takers)


def test_names_that_are_no_text_can_be_taken_out(client, key):
    client.redis.execute_command("GRAD.PUSH", key, 0, b"\xff\x00\r\n", "float32", b"1234")
    client.redis.execute_command("GRAD.PUSH", key, 0, b"\xfe", "float32", b"1234")
    names = client.gradient_headers(key, timeout=0).names
    assert client.gradient_states(key, names) == ["waiting", "waiting"]
    assert client.await_gradients(key, names, 2, timeout=0) == 2
    assert not client.push_gradient(key, 0, names[0], np.zeros(1, np.float32))
    assert client.drop_gradients(key, names[:1]) == 1
    client.publish_applied(key, names[1:], 1, {key: {"of": np.array([1])}})
    assert client.gradient_states(key, names) == ["dropped", "applied"]


def test_a_key_may_be_waited_for_before_it_is_there(client, key, eventually):
    (vector,) = random_vectors(1, 3)
    found: list[rs.Gradients] = []
    thread = threading.Thread(
        target=lambda: found.append(client.take_gradients(key, 2, weights=[1, 1], timeout=60)), daemon=True
    )
    thread.start()
    eventually(lambda: client.redis.info("gradients")["gradients_takers"] == 1, "it waits")
    client.push_gradient(key, 0, "a", vector)
    client.push_gradient(key, 0, "b", vector)
    thread.join(60)
    np.testing.assert_array_equal(found[0].sum, 2 * vector)


def test_transactions_and_scripts_see_and_apply_gradients(client, key):
    vectors = random_vectors(3, 30_000)
    for index, vector in enumerate(vectors):
        client.push_gradient(key, index, f"g{index}", vector)
    with client.redis.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("GRAD.TAKE", key, 3, "SUM", 1, 1, 1)
        pipeline.execute_command("GRAD.TAKE", key, 4, "UNTIL", 9, 0, "BLOCK", 0, "HEADERS")  # nothing waits in one
        pipeline.execute_command("GRAD.DROP", key, "g0")
        taken, waited, dropped = pipeline.execute(raise_on_error=False)
    np.testing.assert_array_equal(np.frombuffer(taken[3], np.float32), weighted_sum(vectors, [1, 1, 1]))
    assert str(waited).startswith("TIMEOUT 3 gradients wait, of mean staleness 8;")
    assert dropped == 1
    script = """
        local taken = redis.call('GRAD.TAKE', KEYS[1], 2, 'SUM', '0.5', '0.5')
        redis.call('GRAD.PUBLISH', KEYS[1], 4, 2, taken[1][1], taken[1][2], KEYS[2], taken[4])
        return taken[2]
    """
    assert client.redis.eval(script, 2, key, f"{key}-sum") == [1, 2]
    version, blob = client.redis.execute_command("WEIGHTS.GET", f"{key}-sum")
    assert version == 4
    np.testing.assert_array_equal(np.frombuffer(blob, np.float32), weighted_sum(vectors[1:], [0.5, 0.5]))
    assert client.gradient_states(key, ["g0", "g1", "g2"]) == ["dropped", "applied", "applied"]


WRONG = [
    (("GRAD.PUSH", "k", "x", "n", "float32", b"1234"), "ERR"),
    (("GRAD.PUSH", "k", "-1", "n", "float32", b"1234"), "ERR"),
    (("GRAD.PUSH", "k", "9223372036854775808", "n", "float32", b"1234"), "ERR"),
    (("GRAD.PUSH", "k", "1", "", "float32", b"1234"), "LIMIT"),
    (("GRAD.PUSH", "k", "1", "n" * 129, "float32", b"1234"), "LIMIT"),
    (("GRAD.PUSH", "k" * 256, "1", "n", "float32", b"1234"), "LIMIT"),
    (("GRAD.PUSH", "", "1", "n", "float32", b"1234"), "LIMIT"),
    (("GRAD.PUSH", "k", "1", "n", "float64", b"12345678"), "BADSHAPE"),
    (("GRAD.PUSH", "k", "1", "n", "float32", b""), "BADSHAPE"),
    (("GRAD.PUSH", "k", "1", "n", "float32", b"12345"), "BADSHAPE"),
    (("GRAD.PUSH", "k", "1", "n", "bfloat16", b"123"), "BADSHAPE"),
    (("GRAD.PUSH", "there", "1", "n", "float32", b"12345678"), "BADSHAPE"),
    (("GRAD.PUSH", "there", "1", "n", "bfloat16", b"1234"), "BADSHAPE"),
    (("GRAD.TAKE", "there", "0"), "ERR"),
    (("GRAD.TAKE", "there", "1025"), "LIMIT"),
    (("GRAD.TAKE", "there", "1", "SUM"), "ERR"),
    (("GRAD.TAKE", "there", "1", "SUM", "1", "1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "SUM", "nan"), "ERR"),
    (("GRAD.TAKE", "there", "1", "SUM", "inf"), "ERR"),
    (("GRAD.TAKE", "there", "1", "SUM", "1e999"), "ERR"),
    (("GRAD.TAKE", "there", "1", "SUM", b"\x00"), "ERR"),
    (("GRAD.TAKE", "there", "1", "UNTIL", "1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "UNTIL", "1", "-1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "UNTIL", "1", "nan"), "ERR"),
    (("GRAD.TAKE", "there", "1", "UNTIL", "1", "1", "SUM", "1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "BLOCK", "-1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "HEADERS", "SUM", "1"), "ERR"),
    (("GRAD.TAKE", "there", "1", "nonsense"), "ERR"),
    (("GRAD.AWAIT", "there", "-1", "1", "waits"), "ERR"),
    (("GRAD.AWAIT", "there", "0", "0", "waits"), "ERR"),
    (("GRAD.AWAIT", "there", "0", "4294967297", "waits"), "ERR"),
    (("GRAD.AWAIT", "there", "0", "1", "waits", "BLOCK"), "ERR"),
    (("GRAD.AWAIT", "there", "0", "1", "waits", "BLOCK", "-1"), "ERR"),
    (("GRAD.AWAIT", "there", "0", "1", "waits", "SINCE", "1"), "ERR"),
    (("GRAD.PUBLISH", "there", "1", "1", "n", "w"), "ERR"),
    (("GRAD.PUBLISH", "there", "1", "4294967296", "n", "w", "b"), "ERR"),
    (("GRAD.PUBLISH", "there", "1", "0", "w" * 256, "b"), "LIMIT"),
    (("GRAD.PUBLISH", "there", "1", "0", *["w", "b"] * 17), "LIMIT"),
    (("GRAD.PUBLISH", "there", "1", "1", "n" * 1000, "w", "b"), "NOGRADIENT"),
]


@pytest.mark.parametrize(("words", "code"), WRONG, ids=lambda value: None)
def test_what_makes_no_sense_is_refused_and_changes_nothing(client, words, code):
    client.redis.execute_command("GRAD.PUSH", "there", 1, "waits", "float32", b"1234")
    before = client.redis.execute_command("GRAD.INFO", "there")
    with pytest.raises(rs.ReplayError) as refused:
        client.command(*words)
    assert getattr(refused.value, "code", code) == code
    assert client.redis.execute_command("GRAD.INFO", "there") == before
    assert client.gradient_keys() == ["there"]
    assert client.fetch_weights("w") is None
    client.delete_gradients("there")


def test_vectors_of_another_kind_are_refused_before_they_are_sent(client, key):
    wrong = (np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(0, np.float32), [1.0, 2.0])
    for vector in wrong:
        with pytest.raises(rs.SchemaError, match="float32"):
            client.push_gradient(key, 0, "a", vector)
    with pytest.raises(rs.SchemaError, match="dtype"):
        client.push_gradient(key, 0, "a", np.zeros(3, np.float32), dtype="float16")


def test_rights_are_by_key(server, client, key):
    redis = client.redis
    users = {
        "learner": f"+grad.push %W~{key}",
        "parameters": f"+@gradients ~{key} %RW~{key}-policy",
        "looker": f"+@gradients %R~{key}",
    }
    clients = {}
    for name, rules in users.items():
        redis.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rules.split())
        clients[name] = rs.Client(server.url.replace("redis://", f"redis://{name}:secret@"))
    try:
        vector = np.ones(20_000, np.float32)  # large enough to land apart
        assert clients["learner"].push_gradient(key, 0, "a", vector)
        for refused in (
            lambda: clients["looker"].push_gradient(key, 0, "b", vector),
            lambda: clients["learner"].take_gradients(key, 1, timeout=0),
            lambda: clients["learner"].push_gradient(f"{key}-other", 0, "b", vector),
            lambda: clients["parameters"].publish_applied(key, ["a"], 1, {"elsewhere": {"a": vector}}),
            lambda: clients["looker"].publish_applied(key, ["a"], 1, {f"{key}-policy": {"a": vector}}),
        ):
            with pytest.raises(rs.ServerError) as error:
                refused()
            assert error.value.code == "NOPERM"
        assert clients["looker"].take_gradients(key, 1, weights=[2], timeout=0).sum[0] == 2
        clients["parameters"].publish_applied(key, ["a"], 1, {f"{key}-policy": {"a": vector}})
        # Of other keys nobody is told.
        client.push_gradient(f"{key}-other", 0, "a", vector)
        assert set(client.gradient_keys()) >= {key, f"{key}-other"}
        assert clients["parameters"].gradient_keys() == clients["looker"].gradient_keys() == [key]
        redis.execute_command("ACL", "SETUSER", "learner", "+grad.list")  # who may only write knows its own, too
        assert clients["learner"].gradient_keys() == [key]
        redis.execute_command("ACL", "SETUSER", "learner", "resetkeys", f"(+grad.list ~{key}-o*)")
        assert clients["learner"].gradient_keys() == [f"{key}-other"]
    finally:
        client.delete_gradients(f"{key}-other")
        for name, made in clients.items():
            made.close()
            redis.execute_command("ACL", "DELUSER", name)


def test_memory_is_counted_and_bounded(tmp_path):
    vector = np.zeros(250_000, np.float32)
    with rs.Server([], maxmemory=20_000_000) as server, rs.Client(server.url) as client:
        before = client.redis.info("memory")["used_memory"]
        with contextlib.suppress(rs.LimitExceeded):
            for index in range(40):
                client.push_gradient("k", 0, f"g{index}", vector)
        waiting = client.gradient_info("k")["waiting"]
        assert 10 <= waiting < 20
        assert client.redis.info("memory")["used_memory"] - before >= waiting * vector.nbytes
        section = client.redis.info("gradients")
        assert section["gradients_waiting"] == waiting
        assert section["gradients_bytes"] == waiting * vector.nbytes
        client.delete_gradients("k")
        assert client.push_gradient("k", 0, "g0", vector)


def test_gradients_that_fill_the_memory_can_be_applied():
    vector = np.zeros(250_000, np.float32)
    with rs.Server([], maxmemory=20_000_000) as server, rs.Client(server.url) as client:
        client.publish_applied("k", [], 1, {"policy": {"w": vector}})
        with contextlib.suppress(rs.LimitExceeded):
            for index in range(40):
                client.push_gradient("k", 0, f"g{index}", vector)
        for refused in ({"other": {"w": vector}}, {"policy": {"w": np.zeros(2_000_000, np.float32)}}):
            with pytest.raises(rs.LimitExceeded):  # more than they give back
                client.publish_applied("k", [], 2, refused)
        assert client.publish_applied("k", ["g0", "g1"], 2, {"policy": {"w": vector}}) == 2
        assert client.gradient_states("k", ["g0", "g1", "g2"]) == ["applied", "applied", "waiting"]
        assert client.push_gradient("k", 2, "another", vector)


def test_sums_that_wait_to_be_sent_are_bounded(client, key):
    """Within a transaction nothing is sent: many sums of 8 MB would each be held."""
    vector = np.ones(2_000_000, np.float32)
    client.push_gradient(key, 0, "a", vector)
    with client.redis.pipeline(transaction=True) as pipeline:
        for _ in range(60):
            pipeline.execute_command("GRAD.TAKE", key, 1, "SUM", 2)
        pipeline.execute_command("GRAD.TAKE", key, 1, "HEADERS")
        *replies, last = pipeline.execute(raise_on_error=False)
    refused = [str(reply) for reply in replies if isinstance(reply, Exception)]
    assert refused
    assert all(text.startswith("LIMIT") and "wait to be sent" in text for text in refused)
    taken = [reply[3] for reply in replies if not isinstance(reply, Exception)]
    assert len(taken) >= 8  # 64 MB
    assert all((np.frombuffer(each, np.float32) == 2).all() for each in taken)
    assert last[0] == [b"a"]


def test_one_vector_leaves_the_server_in_place_of_four(server, client, key):
    vectors = random_vectors(4, 100_000)
    for index, vector in enumerate(vectors):
        client.push_gradient(key, 0, f"{index}", vector)

    def sent() -> int:
        return client.redis.info("stats")["total_net_output_bytes"]

    def cost(**options) -> int:
        idle = sent()
        asking = sent() - idle
        begin = sent()
        client.take_gradients(key, 4, timeout=0, **options)
        return sent() - begin - asking

    assert cost() >= 3.9 * cost(weights=[0.25] * 4)


# ---- what is there after a kill ------------------------------------------------------------------------------------


def kill(server: rs.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def fill(client: rs.Client, vectors: list[np.ndarray]) -> None:
    for index, vector in enumerate(vectors):
        assert client.push_gradient("k", index, f"g{index}", vector, "bfloat16" if index > 9 else "float32")
    client.drop_gradients("k", ["g1"])
    client.publish_applied("k", ["g0"], 7, {"policy": {"w": np.ones(3)}, "optimiser": {"m": np.zeros(3)}})


def check(client: rs.Client, vectors: list[np.ndarray]) -> None:
    """Everything is as `fill` left it, and goes on from there."""
    assert client.gradient_states("k", ["g0", "g1", "g2", "g3", "g4"]) == ["applied", "dropped", *["waiting"] * 2, None]
    taken = client.take_gradients("k", 8, timeout=0)
    assert taken.names == ["g2", "g3"]
    assert taken.versions.tolist() == [2, 3]
    np.testing.assert_array_equal(taken.vectors, vectors[2:])
    assert client.fetch_weights("policy")[0] == client.fetch_weights("optimiser")[0] == 7
    assert not client.push_gradient("k", 0, "g0", vectors[0])  # delivered again, after the kill
    with pytest.raises(rs.StaleVersion):
        client.publish_applied("k", ["g2"], 7, {"policy": {"w": np.ones(3)}})
    client.publish_applied("k", ["g2"], 8, {"policy": {"w": np.ones(3)}})


@pytest.mark.parametrize("rewrite", [False, True], ids=["increments", "base"])
def test_the_append_only_file_brings_back_gradients_and_names(tmp_path, eventually, rewrite):
    vectors = random_vectors(4, 50_000)
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with rs.Server([], directory=str(tmp_path), config=settings) as server, rs.Client(server.url) as client:
        fill(client, vectors)
        if rewrite:
            client.redis.bgrewriteaof()
            eventually(lambda: not client.redis.info("persistence")["aof_rewrite_in_progress"], "it is written anew")
            assert client.redis.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        kill(server)
    with rs.Server([], directory=str(tmp_path), config=settings) as server, rs.Client(server.url) as client:
        check(client, vectors)
        kill(server)
    with rs.Server([], directory=str(tmp_path), config=settings) as server, rs.Client(server.url) as client:
        assert client.gradient_states("k", ["g2", "g3"]) == ["applied", "waiting"]
        assert client.fetch_weights("policy")[0] == 8


def test_a_snapshot_brings_back_gradients_and_names(tmp_path):
    vectors = random_vectors(4, 400_000)
    with rs.Server([], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        fill(client, vectors)
        path = client.checkpoint("all")
        client.delete_gradients("k")
        kill(server)
    with rs.Server([], directory=str(tmp_path), restore=path) as server, rs.Client(server.url) as client:
        check(client, vectors)


# ---- asyncio -------------------------------------------------------------------------------------------------------


def test_the_twin_does_what_the_client_does(server, key):
    a, b = random_vectors(2, 1000)

    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            assert await client.push_gradient(key, 1, "a", a)
            assert await client.push_gradient(key, 2, "b", b)
            headers = await client.gradient_headers(key, until=(2, 1.0))
            assert headers.names == ["a", "b"]
            taken = await client.take_gradients(key, 2, weights=[0.5, 0.5], timeout=1)
            np.testing.assert_array_equal(taken.sum, weighted_sum([a, b], [0.5, 0.5]))
            assert len((await client.take_gradients(key, 2, timeout=1)).vectors) == 2
            assert await client.publish_applied(key, ["a"], 3, {f"{key}-aio": {"w": a}}) == 3
            assert await client.await_gradients(key, ["a", "b"], 1) == 1
            assert await client.drop_gradients(key, ["b"]) == 1
            assert await client.gradient_states(key, ["a", "b"]) == ["applied", "dropped"]
            assert (await client.gradient_info(key))["applied"] == 1
            assert key in await client.gradient_keys()
            assert await client.delete_gradients(key) == 1

    rs.aio.run(main())
