"""Malformed requests of every kind: answered as Redis answers them and closed, with everyone else unharmed."""

from __future__ import annotations

import random

import pytest

import replay_server as rs

MALFORMED = {
    "no number of arguments": (b"*x\r\n", "invalid multibulk length"),
    "too many arguments": (b"*2147483647\r\n", "invalid multibulk length"),
    "arguments beyond 64 bits": (b"*99999999999999999999\r\n", "invalid multibulk length"),
    "no bulk": (b"*1\r\n:1\r\n", "expected '$', got ':'"),
    "no bulk length": (b"*1\r\n$x\r\n", "invalid bulk length"),
    "negative bulk": (b"*1\r\n$-1\r\n", "invalid bulk length"),
    "bulk above the limit": (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    "bulk beyond 64 bits": (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
    "endless length line": (b"*1" + b"1" * 70_000, ""),
    "endless inline command": (b"x" * 70_000, "too big inline request"),
    "unbalanced quotes": (b'SET a "b\r\n', "unbalanced quotes"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_answered_and_closed(client, raw, case):
    request, said = MALFORMED[case]
    raw.send(request)
    reply = raw.reply()
    assert isinstance(reply, rs.ServerError)
    assert "Protocol error" in str(reply)
    assert said in str(reply)
    assert raw.closed()
    assert client.redis.ping()


def test_requests_before_the_malformed_one_are_answered(raw):
    raw.send(b"*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$x\r\n*1\r\n$4\r\nPING\r\n")
    assert [raw.reply(), raw.reply()] == ["PONG", "PONG"]
    assert "Protocol error" in str(raw.reply())
    assert raw.closed()


def test_empty_requests_are_passed_over(raw):
    raw.send(b"\r\n*0\r\n*-1\r\n\r\nPING\r\n")
    assert raw.reply() == "PONG"


def test_a_request_may_come_byte_by_byte(raw, client, table, items):
    from replay_server.codec import encode_command

    batch = items(1, 2)
    arguments = ("REPLAY.ADD", table, 2, b"", "COLUMNS", 2, "x", batch["x"].tobytes(), "k", batch["k"].tobytes())
    for byte in b"".join(bytes(part) for part in encode_command(arguments)):
        raw.send(bytes([byte]))
    assert len(raw.reply()) == 16
    assert client.info(table)["size"] == 2


def test_an_oversized_request_is_refused_before_its_bytes_come(client, raw):
    raw.send(b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000000\r\n")
    assert "invalid bulk length" in str(raw.reply())
    assert raw.closed()


def test_a_request_above_the_limit_of_all_its_arguments_is_refused(client, raw):
    # Three arguments of just under the single limit together exceed a request's.
    raw.send(b"*4\r\n$4\r\nMSET\r\n$1\r\na\r\n")
    refused = False
    try:
        for _ in range(3):
            raw.send(b"$500000000\r\n")
            for _ in range(500):
                raw.send(bytes(1_000_000))
            raw.send(b"\r\n")
    except OSError:
        refused = True
    try:
        refused = refused or isinstance(raw.reply(), rs.ReplayError)
    except OSError:
        refused = True
    assert refused
    assert client.redis.ping()


@pytest.mark.parametrize("seed", range(20))
def test_noise_never_harms_the_server(client, server, open_raw, seed):
    generator = random.Random(seed)
    pieces = [
        b"*3\r\n",
        b"$3\r\nSET\r\n",
        b"$1\r\na\r\n",
        b"\r\n",
        b"PING\r\n",
        b"*1\r\n",
        b"$4\r\nPING\r\n",
        b"REPLAY.ADD t ",
    ]
    raw = open_raw(server.url)
    for _ in range(200):
        piece = generator.choice(pieces) if generator.random() < 0.8 else generator.randbytes(generator.randrange(20))
        try:
            raw.send(piece)
        except OSError:
            break
    assert client.redis.ping()


def test_large_pipelines_are_answered_in_order(raw):
    count = 5_000
    raw.send(b"".join(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%d\r\n" % (len(str(i)), i) for i in range(count)))
    assert [int(raw.reply()) for _ in range(count)] == list(range(count))
