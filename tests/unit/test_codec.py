"""RESP and named arrays, apart from any socket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import replay_server as rs
from replay_server.codec import Blob, decode_arrays, encode_arrays, encode_command, read_value
from replay_server.connection import Address, url_with_password
from replay_server.socket_buffers import ReadBuffer


def joined(buffers) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def receive(reading, stream: bytes, step: int = 1 << 20):
    """Feeds a reading from bytes that come `step` at a time; the result, and what it left."""
    buffer = ReadBuffer()
    position = 0

    def more() -> None:
        nonlocal position
        space = buffer.space()
        chunk = stream[position : position + min(step, len(space))]
        if not chunk:
            raise EOFError
        space[: len(chunk)] = chunk
        buffer.end += len(chunk)
        position += len(chunk)

    wanted = next(reading)
    try:
        while True:
            if wanted is None:
                while (line := buffer.line()) is None:
                    more()
                wanted = reading.send(line)
            else:
                filled = buffer.take(wanted)
                while filled < len(wanted):
                    more()
                    filled += buffer.take(wanted[filled:])
                while not buffer.skip_line_end():
                    more()
                wanted = reading.send(b"")
    except StopIteration as stop:
        return stop.value, bytes(buffer.view[buffer.start : buffer.end]) + stream[position:]


def test_a_command_is_an_array_of_bulk_strings():
    assert joined(encode_command(["GET", b"key", 12, 0.5])) == (
        b"*4\r\n$3\r\nGET\r\n$3\r\nkey\r\n$2\r\n12\r\n$3\r\n0.5\r\n"
    )


def test_large_arguments_are_sent_from_where_they_lie():
    array = np.zeros(100_000, np.uint8)
    buffers = encode_command(["X", array.data, Blob([b"ab", array.data, b""])])
    assert sum(np.shares_memory(np.frombuffer(buffer, np.uint8), array) for buffer in buffers if len(buffer)) == 2
    assert b"$100002\r\nab" in joined(buffers)
    assert joined(buffers).endswith(bytes(100_000) + b"\r\n")


@pytest.mark.parametrize(
    ("stream", "value"),
    [
        (b"+OK\r\n", "OK"),
        (b":-42\r\n", -42),
        (b"$5\r\nhe\r\no\r\n", b"he\r\no"),
        (b"$0\r\n\r\n", b""),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"_\r\n", None),
        (b"#t\r\n", True),
        (b",1.5\r\n", 1.5),
        (b",inf\r\n", float("inf")),
        (b"(12345678901234567890\r\n", 12345678901234567890),
        (b"=8\r\ntxt:text\r\n", b"text"),
        (b"*3\r\n:1\r\n*1\r\n+a\r\n$1\r\nb\r\n", [1, ["a"], b"b"]),
        (b"%1\r\n+a\r\n:1\r\n", {"a": 1}),
        (b"~2\r\n:1\r\n:2\r\n", [1, 2]),
        (b"|1\r\n+a\r\n:1\r\n:7\r\n", 7),
        (b">2\r\n+invalidate\r\n:1\r\n+OK\r\n", "OK"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_every_reply_type_however_it_is_cut(stream, value, step):
    assert receive(read_value(), stream + b"+next\r\n", step) == (value, b"+next\r\n")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NOTABLE no table 'x'", rs.TableNotFound),
        ("EXISTS a table of that name exists", rs.SchemaError),
        ("BADSCHEMA unknown key", rs.SchemaError),
        ("BADSHAPE expected 3 bytes", rs.SchemaError),
        ("BADPRIORITY got nan", rs.PriorityError),
        ("TIMEOUT too few items", rs.Timeout),
        ("LIMIT too many", rs.LimitExceeded),
        ("STALEVERSION 3 is published", rs.StaleVersion),
        ("LEASEEXPIRED the lease was given back", rs.LeaseExpired),
        ("NOTTAKEN the batch of policy version 3 is next", rs.BatchNotTaken),
        ("READONLY You can't write against a read only replica.", rs.NotPrimary),
        ("MOVED 3999 127.0.0.1:7001", rs.NotPrimary),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", rs.NotPrimary),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", rs.ServerError),
        ("ERR max number of clients reached", rs.LimitExceeded),
        ("OOM command not allowed", rs.LimitExceeded),
        ("NOAUTH Authentication required.", rs.ServerError),
        ("ERR unknown command", rs.ServerError),
    ],
)
def test_error_codes_become_the_contracts_exceptions(line, kind):
    value, _ = receive(read_value(), f"-{line}\r\n".encode())
    assert type(value) is kind
    assert isinstance(value, rs.ReplayError)
    assert line.split(" ", 1)[1] in str(value)


def test_a_timeout_carries_its_reason():
    value, _ = receive(read_value(), b"-TIMEOUT all priorities are zero\r\n")
    assert value.reason == "all priorities are zero"


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b":x\r\n",
        b",x\r\n",
        b"$-7\r\n",
        b"$3\r\nabcd\r\n",
        b"*1\r\n" * 50,
        b"?" * 70_000,
    ],
)
def test_what_is_no_resp_is_an_error_and_never_waits_for_more(stream):
    with pytest.raises(rs.ServerError, match="RESP"):
        receive(read_value(), stream)


def test_arrays_come_back_equal_and_aligned():
    arrays = {
        "layer.weight": np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(3, np.int64),
        "flags": np.array([True, False]),
        "half": np.arange(3, dtype=np.float16),
        "strided": np.arange(12).reshape(3, 4)[:, ::2],
        "big-endian": np.arange(3, dtype=">i4"),
    }
    blob = bytearray(joined(encode_arrays(arrays).buffers))
    decoded = decode_arrays(blob)
    assert list(decoded) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(decoded[name], array)
        assert decoded[name].shape == array.shape
        assert decoded[name].dtype == array.dtype.newbyteorder("<")
    assert decoded["layer.weight"].flags.writeable
    assert encode_arrays(arrays).size_bytes == len(blob)


def test_what_is_no_array_is_refused():
    for value in ("text", [object()], np.array(["a"]), np.zeros(2, complex)):
        with pytest.raises(rs.SchemaError, match="'x'"):
            encode_arrays({"x": value})


@given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 255))
@example(b"", 13, ord(","))  # NumPy takes the name of a dtype with a comma apart, and raises a SyntaxError
def test_damaged_arrays_are_refused_and_never_read_past_their_end(noise, at, value):
    good = bytearray(joined(encode_arrays({"a": np.arange(5), "b": np.ones((2, 2))}).buffers))
    good[at % len(good)] = value
    for blob in (noise, b"RSA1" + noise, bytes(good), bytes(good[:at])):
        try:
            decoded = decode_arrays(blob)
        except rs.SchemaError:
            continue
        assert sum(array.nbytes for array in decoded.values()) <= len(blob) * max(1, len(decoded))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", ("localhost", 6379, None, None, None)),
        ("redis://10.0.0.1:7000/0", ("10.0.0.1", 7000, None, None, None)),
        ("redis://:se%2Fcret@h:1", ("h", 1, None, None, "se/cret")),
        ("redis://me:pw@h:1", ("h", 1, None, "me", "pw")),
        ("redis://[::1]:7", ("::1", 7, None, None, None)),
        ("unix:///run/replay.sock", ("127.0.0.1", 6379, "/run/replay.sock", None, None)),
        ("unix://:pw@/run/replay.sock", ("127.0.0.1", 6379, "/run/replay.sock", None, "pw")),
    ],
)
def test_urls(url, expected):
    address = Address.parse(url)
    assert (address.host, address.port, address.path, address.username, address.password) == expected
    assert "pw" not in repr(address) + str(address)


@pytest.mark.parametrize("url", ["http://h", "redis://", "redisx://h", "unix://", "h:6379", "redis://h/3"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(ValueError, match="expected redis"):
        Address.parse(url)


def test_a_wrong_url_is_refused_without_showing_its_password():
    with pytest.raises(ValueError) as caught:
        Address.parse("redisx://:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_a_password_goes_into_a_url_and_comes_out_again():
    url = url_with_password("unix:///tmp/s", "p@ss/word: %")
    assert Address.parse(url).password == "p@ss/word: %"
