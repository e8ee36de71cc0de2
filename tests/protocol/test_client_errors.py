"""What the client's errors tell of passwords, names and values, and what a pickled client is."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import time
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

PASSWORD = "open sesame/%"
VARIABLE = "REPLAY_SERVER_PASSWORD"


@pytest.fixture(scope="module")
def guarded():
    with rs.Server([rs.Table("t", 10, {"k": rs.Column("int64")})], password=PASSWORD) as server:
        yield server


def without_password(server: rs.Server) -> str:
    return f"redis://{server.url.rpartition('@')[2]}"


def tables(url: str, *, twin: bool, reconnect_timeout: float = 0.1) -> list[str]:
    """Asked with the blocking client, or with its asyncio twin."""
    if not twin:
        with rs.Client(url, reconnect_timeout=reconnect_timeout) as client:
            return client.tables()

    async def ask() -> list[str]:
        async with aio.Client(url, reconnect_timeout=reconnect_timeout) as client:
            return await client.tables()

    return aio.run(ask())


# ---- passwords -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True])
def test_a_password_that_is_not_in_the_url_comes_from_the_variable(guarded, monkeypatch, twin):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    assert tables(without_password(guarded), twin=twin) == ["t"]
    monkeypatch.setenv(VARIABLE, "another")
    assert tables(guarded.url, twin=twin) == ["t"], "a password in the URL counts"


def test_the_variable_reaches_redis_py_samplers_and_writers_and_no_repr(guarded, monkeypatch):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    with rs.Client(without_password(guarded)) as client:
        assert client.redis.ping()
        client.add("t", {"k": [1]})
        with client.sampler("t", 1) as batches:
            assert next(batches).data["k"].tolist() == [1]
        assert "sesame" not in client.url + repr(client)


def test_the_variable_does_no_harm_where_no_password_is_needed(server, monkeypatch):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    with rs.Client(server.url) as client:
        assert isinstance(client.tables(), list)
        assert client.redis.ping()


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize(("in_url", "in_variable", "source"), [("wrong", None, "the URL"), (None, "wrong", VARIABLE)])
def test_a_wrong_password_is_told_with_the_address_and_where_it_is_from(
    guarded, monkeypatch, twin, in_url, in_variable, source
):
    monkeypatch.delenv(VARIABLE, raising=False)
    if in_variable:
        monkeypatch.setenv(VARIABLE, in_variable)
    plain = without_password(guarded)
    url = plain if in_url is None else plain.replace("//", f"//:{in_url}@")
    with pytest.raises(rs.ServerError) as refused:
        tables(url, twin=twin)
    message = str(refused.value)
    assert refused.value.code == "WRONGPASS"
    assert f"the server at {plain} refused the password of user 'default', which is from {source}" in message
    assert VARIABLE in message
    assert "wrong@" not in message


@pytest.mark.parametrize("twin", [False, True])
def test_a_missing_password_is_told_with_the_address_and_the_variable(guarded, monkeypatch, twin):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(rs.ServerError, match=f"at {without_password(guarded)} needs a password.*{VARIABLE}"):
        tables(without_password(guarded), twin=twin)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True])
def test_a_table_that_there_is_not_is_told_with_the_nearest_one(server, client, make_table, twin):
    name = make_table()
    wrong = name.replace("table", "tabel")

    async def ask() -> Any:
        async with aio.Client(server.url) as mine:
            return await mine.sample(wrong, 1)

    with pytest.raises(rs.TableNotFound) as missing:
        aio.run(ask()) if twin else client.sample(wrong, 1)
    message = str(missing.value)
    assert message.startswith(f"no table '{wrong}'")
    assert f"did you mean {name!r}?" in message
    assert "client.tables() lists" in message
    assert "REPLAY.LIST" not in message


def test_a_name_that_is_near_to_none_has_no_suggestion(client, table):
    with pytest.raises(rs.TableNotFound) as missing:
        client.info("§§§")
    assert "did you mean" not in str(missing.value)
    assert "client.tables() lists" in str(missing.value)


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_grad() -> Any:
    torch = pytest.importorskip("torch")
    return torch.ones(2, requires_grad=True)


def test_a_tensor_that_requires_grad_is_told_what_to_do(client, make_table, with_grad):
    name = make_table(signature={"x": rs.Column("float32")})
    ids = client.add(name, {"x": np.ones(2, np.float32)})
    buffer = rs.Buffer(rs.Table("t", 10, {"x": rs.Column("float32")}))
    steps = make_table(signature={"x": rs.Column("float32"), "seen": rs.Window("x", length=2)})
    way = r"pass tensor\.detach\(\)\.cpu\(\)\.numpy\(\)"
    refused = [
        (rs.SchemaError, lambda: client.add(name, {"x": with_grad})),
        (rs.PriorityError, lambda: client.add(name, {"x": np.ones(2, np.float32)}, with_grad)),
        (rs.PriorityError, lambda: client.update_priorities(name, ids, with_grad)),
        (rs.SchemaError, lambda: client.update_priorities(name, with_grad, np.ones(2))),
        (rs.SchemaError, lambda: buffer.add({"x": with_grad})),
        (rs.PriorityError, lambda: buffer.add({"x": np.ones(2, np.float32)}, with_grad)),
        (rs.SchemaError, lambda: client.vector_writer(steps, 2).append({"x": with_grad})),
        (rs.SchemaError, lambda: client.writer(steps).append({"x": with_grad[0]})),
    ]
    for error, call in refused:
        with pytest.raises(error, match=way):
            call()
    assert (client.info(name)["added"], len(buffer)) == (2, 0)


def test_a_tensor_that_requires_grad_can_be_published(client, with_grad):
    client.publish_weights("with-grad", {"w": with_grad})
    _, arrays = client.fetch_weights("with-grad") or (0, {})
    assert arrays["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("weights", [[1, 2], None, "w", np.ones(3)])
def test_weights_that_are_no_dict_are_refused(client, weights):
    with pytest.raises(rs.SchemaError, match=r"expected a dict of names and arrays or tensors.*got"):
        client.publish_weights("no-dict", weights)
    with pytest.raises(rs.SchemaError, match=r"expected a dict of names and arrays or tensors.*got"):
        client.publish_applied("no-dict", [], 1, {"no-dict": weights})
    with pytest.raises(rs.SchemaError, match="expected a dict of keys and their named arrays"):
        client.publish_applied("no-dict", [], 1, weights)
    assert client.fetch_weights("no-dict") is None


# ---- pickling --------------------------------------------------------------------------------------------------------


def add_one(client: rs.Client, name: str) -> None:
    client.add(name, {"x": np.ones((1, 2), np.float32), "k": [7]})


def test_a_client_can_be_given_to_a_spawned_process(client, table):
    client.info(table)
    process = multiprocessing.get_context("spawn").Process(target=add_one, args=(client, table))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert client.sample(table, 1).data["k"].tolist() == [7]


def test_a_copied_client_has_the_url_and_the_settings(server):
    settings = {"connect_timeout": 1.5, "socket_timeout": 2.5, "reconnect_timeout": 3.5, "shared_memory": False}
    for client in (rs.Client(server.url, **settings), aio.Client(server.url, **settings)):
        for again in (copy.copy(client), copy.deepcopy(client)):
            assert type(again) is type(client)
            assert again.url == server.url
            assert again.__reduce__()[0].keywords.items() >= settings.items()


def test_a_pickled_client_leaves_a_password_of_the_variable_behind(guarded, monkeypatch):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    sent = pickle.dumps(rs.Client(without_password(guarded))["t"])
    assert b"sesame" not in sent
    assert pickle.loads(sent).info()["capacity"] == 10  # noqa: S301


def add_seven(handle: Any) -> None:
    handle.add({"k": [7]})


@pytest.mark.parametrize("servers", ["one", "a cluster"])
def test_a_client_with_a_password_in_its_url_goes_to_spawned_processes_by_the_variable(monkeypatch, servers):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    tables = [rs.Table("t", 10, {"k": rs.Column("int64")})]
    made = rs.Server(tables, password=PASSWORD) if servers == "one" else rs.Cluster(tables, 2, password=PASSWORD)
    with made as running, rs.Client(running.url) as client:
        process = multiprocessing.get_context("spawn").Process(target=add_seven, args=(client["t"],))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert client.sample("t", 1).data["k"].tolist() == [7]


@pytest.mark.parametrize("kind", [rs.Client, aio.Client])
def test_a_password_in_the_url_is_left_out_of_a_pickle_and_missed_where_there_is_no_other(guarded, monkeypatch, kind):
    settings = {"socket_timeout": 2.5, "shared_memory": False}
    client = kind(guarded.url, **settings)
    for travels in (client, client["t"]):
        sent = pickle.dumps(travels)
        assert b"sesame" not in sent
        monkeypatch.delenv(VARIABLE, raising=False)
        with pytest.raises(ValueError, match=f"{without_password(guarded)} was pickled without.*{VARIABLE}"):
            pickle.loads(sent)  # noqa: S301
        monkeypatch.setenv(VARIABLE, PASSWORD)
        again = pickle.loads(sent)  # noqa: S301
    again = pickle.loads(pickle.dumps(client))  # noqa: S301
    assert again.url == without_password(guarded)
    assert again.__reduce__()[0].keywords.items() >= settings.items()


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("redis://:p@a:1", "redis://a:1"),
        ("redis://me:p@[::1]:1/0", "redis://me@[::1]:1/0"),
        ("rediss://me:p%40@a:1,b:2?ssl_ca_certs=/x", "rediss://me@a:1,b:2?ssl_ca_certs=/x"),
        ("redis+cluster://:p@a:1,b:2", "redis+cluster://a:1,b:2"),
        ("unix://me:p@/run/a@b", "unix://me@/run/a@b"),
        ("unix:///run/a@b?password=p", "unix:///run/a@b"),
        ("unix:///run/a?p%61ssword=p&db=0", "unix:///run/a?db=0"),
    ],
)
def test_a_url_loses_its_password_alone_in_a_pickle(monkeypatch, url, sent):
    monkeypatch.setenv(VARIABLE, PASSWORD)
    assert pickle.loads(pickle.dumps(rs.Client(url))).url == sent  # noqa: S301


@pytest.mark.parametrize("kind", [rs.Client, aio.Client])
def test_a_password_in_the_url_is_pickled_where_the_caller_asks(guarded, kind):
    client = kind(guarded.url)
    assert copy.deepcopy(client).url == client.url, "a copy in this process is no pickle"
    again = pickle.loads(pickle.dumps(kind(guarded.url, pickle_password=True)))  # noqa: S301
    assert again.url == guarded.url


@pytest.mark.parametrize("twin", [False, True])
def test_a_password_file_is_read_and_only_its_name_is_pickled(guarded, monkeypatch, tmp_path, twin):
    monkeypatch.setenv(VARIABLE, "another")
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    client = (aio.Client if twin else rs.Client)(without_password(guarded), password_file=file)
    sent = pickle.dumps(client)
    assert b"sesame" not in sent
    again = pickle.loads(sent)  # noqa: S301
    assert (aio.run(again.tables()) if twin else again.tables()) == ["t"]
    with rs.Client(without_password(guarded), password_file=file) as blocking:
        assert blocking.redis.ping()


def test_two_passwords_and_a_file_that_cannot_be_read_are_refused(guarded, tmp_path):
    with pytest.raises(ValueError, match="a password in the URL or in password_file, got both"):
        rs.Client(guarded.url, password_file="/dev/null")
    with pytest.raises(ValueError, match=r"password_file: .*nowhere"):
        rs.Client(without_password(guarded), password_file=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="expected the password on the first line"):
        rs.Client(without_password(guarded), password_file="/dev/null")


def test_what_cannot_be_sent_says_what_to_send_instead(client, make_table):
    name = make_table(10, {"number": rs.Column("int64"), "seen": rs.Window("number", length=2)})
    with client.sampler(name, 1) as sampler, client.writer(name) as writer, client.updater(name) as updater:
        for holder in (sampler, writer, updater, aio.Client(client.url).sampler(name, 1)):
            with pytest.raises(TypeError, match="stays in the process that made it: send the client or its handle"):
                pickle.dumps(holder)
    with pytest.raises(TypeError, match="processes share a table of a server"):
        pickle.dumps(rs.Buffer(rs.Table("t", 1, {"x": rs.Column("int64")})))


def test_a_closed_client_makes_no_samplers(client, make_table):
    name = make_table(10, {"number": rs.Column("int64")})
    client.add(name, {"number": [1]})
    for closed in (rs.Client(client.url), rs.Client(client.url.replace("redis://", "redis+cluster://"))):
        handle = closed[name]
        assert len(handle.sample(1)) == 1
        closed.close()
        for options in ({}, {"columns": ["number"]}):
            with pytest.raises(rs.ConnectionLost, match=r"the client of .* is closed"):
                handle.sampler(1, **options)

    async def of_twin() -> None:
        twin = aio.Client(client.url)
        await twin.close()
        with pytest.raises(rs.ConnectionLost, match=r"the client of .* is closed"):
            twin[name].sampler(1)

    aio.run(of_twin())


# ---- connecting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True])
def test_connecting_is_tried_for_the_whole_reconnect_timeout(free_port, twin):
    start = time.monotonic()
    with pytest.raises(rs.ConnectionLost):
        tables(f"redis://127.0.0.1:{free_port}", twin=twin, reconnect_timeout=1)
    assert time.monotonic() - start >= 1
