"""Every dtype of a column: what goes in comes back bit for bit; other dtypes are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.dtypes import COLUMN_DTYPES, numpy_dtype

DTYPES = [*COLUMN_DTYPES, "S1", "S16"]


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits; but bools are 0 or 1, and bytes end in no zero, which NumPy would drop."""
    kind = numpy_dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    low, high = {"b": (0, 2), "S": (1, 256)}.get(kind.kind, (0, 256))
    return np.random.default_rng(3).integers(low, high, count, np.uint8).view(kind).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_come_back_bit_for_bit(dtype):
    table = rs.Table("t", 10, {"one": rs.Column(dtype), "many": rs.Column(dtype, (2, 3))}, sampler=rs.Fifo())
    assert rs.Table.unpack(table.pack()) == table
    buffer = rs.Buffer(table)
    given = {"one": values(dtype, (4,)), "many": values(dtype, (4, 2, 3))}
    ids = buffer.add(given)
    out = buffer.sample(4)
    for batch in (buffer.get(ids), buffer.sample(4), buffer.sample(4, out=out)):
        for name, array in given.items():
            assert batch.data[name].dtype == numpy_dtype(dtype)
            assert batch.data[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_show_every_dtype(dtype):
    buffer = rs.Buffer(rs.Table("t", 10, {"x": rs.Column(dtype, (3,)), "seen": rs.Window("x", length=2)}))
    given = values(dtype, (2, 3))
    with buffer.writer() as writer:
        for row in given:
            writer.append({"x": row})
        writer.create_item()
        assert buffer.get(writer.flush()).data["seen"].tobytes() == given.tobytes()


def test_python_values_are_converted_where_nothing_is_lost():
    signature = {"c": rs.Column("complex64"), "b": rs.Column("S4"), "h": rs.Column("float16")}
    buffer = rs.Buffer(rs.Table("t", 10, signature))
    data = buffer.get(buffer.add({"c": [1, 2.5j], "b": [b"ab", b"abcd"], "h": [1, 0.5]})).data
    assert data["c"].tolist() == [1, 2.5j]
    assert data["b"].tolist() == [b"ab", b"abcd"]
    buffer.add({"c": np.ones(1, np.complex64), "b": np.array([b"x"]), "h": np.ones(1, np.float16)})
    for wrong, words in (
        ({"b": [b"abcde"]}, "'b' expects at most 4 bytes, got 5"),
        ({"b": np.array([b"abcde"])}, r"'b' expects dtype \|S4, got \|S5"),
        ({"b": ["text"]}, "'b' expects"),
        ({"b": [1]}, "'b' expects"),
        ({"c": np.ones(1, np.complex128)}, "'c' expects dtype complex64, got complex128"),
        ({"h": [1j]}, "'h' expects float16, got a list of complex128"),
        ({"h": [1e6]}, "'h' expects float16, which cannot hold"),
    ):
        with pytest.raises(rs.SchemaError, match=words):
            buffer.add({"c": [1], "b": [b""], "h": [1], **wrong})
    assert len(buffer) == 3


@pytest.mark.parametrize(
    "given",
    [
        "object",
        "float128",
        "S0",
        "S65536",
        "U4",
        "datetime64[s]",
        ">f4",
        "void",
        None,
        "complex256",
        [("a", "i4"), ("b", "f4")],
    ],
)
def test_other_dtypes_are_refused(given: Any):
    words = (
        "got the fields a, b; use a dict of columns" if isinstance(given, list) else "dtype must be one of bool, int8"
    )
    with pytest.raises(rs.SchemaError, match=words):
        rs.Column(given)


def test_the_core_refuses_them_too():
    for given in ("S0", "S01", "S65536", "S", "S1x", "bfloat", "float128"):
        spec = rs.Table("t", 1, {"x": rs.Column("S1")}).to_spec()
        spec["signature"]["x"]["dtype"] = given
        table = rs.Table("t", 1, {"x": rs.Column("S1")})
        table.__dict__["to_spec"] = lambda spec=spec: spec
        with pytest.raises(rs.SchemaError, match="expected a dtype, one of"):
            rs.Buffer(table)


def test_torch_names_and_tensors_are_taken():
    torch = pytest.importorskip("torch")
    assert rs.Column(torch.float32, (2,)) == rs.Column("float32", (2,))
    buffer = rs.Buffer(rs.Table("t", 4, {"x": rs.Column(torch.bfloat16, (2,))}))
    given = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    data = buffer.get(buffer.add({"x": given})).data["x"]
    assert torch.equal(torch.from_numpy(data.view(np.int16)).view(torch.bfloat16), given)


def test_bfloat16_are_bits_without_ml_dtypes(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, replay_server as rs\n"
        "b = rs.Buffer(rs.Table('t', 4, {'x': rs.Column('bfloat16')}))\n"
        "b.add({'x': np.array([0x3FC0], np.uint16)})\n"
        "print(b.sample(1).data['x'].dtype, b.sample(1).data['x'][0])\n"
    )
    (tmp_path / "ml_dtypes.py").write_text("raise ImportError\n")
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["uint16", "16320"]


def test_bfloat16_are_numbers_with_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert rs.Column(ml_dtypes.bfloat16) == rs.Column("bfloat16")
    buffer = rs.Buffer(rs.Table("t", 4, {"x": rs.Column("bfloat16")}))
    assert buffer.get(buffer.add({"x": [1.5, 2]})).data["x"].tolist() == [1.5, 2.0]
    with pytest.raises(rs.SchemaError, match="got a list of complex128"):
        buffer.add({"x": [1j]})
