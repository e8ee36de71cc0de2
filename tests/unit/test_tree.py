"""Trees of columns, and the paths that stand for them in a spec and on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replay_server as rs
from replay_server.tree import leaves_of, shaped, taken_apart, tree_from, tree_of

_KEYS = st.text(
    st.characters(codec="utf-8", exclude_characters="/", categories=["L", "N", "P"]), min_size=1, max_size=3
)
_LEAF = st.integers()


def _is_tuple_like(parts: dict) -> bool:
    return list(parts) == [str(place) for place in range(len(parts))]


def _nodes(children):
    dicts = st.dictionaries(_KEYS, children, min_size=1, max_size=4).filter(lambda parts: not _is_tuple_like(parts))
    return dicts | st.lists(children, min_size=1, max_size=4).map(tuple)


TREES = st.dictionaries(_KEYS, st.recursive(_LEAF, _nodes, max_leaves=12), min_size=1, max_size=5)


@given(TREES)
def test_paths_lead_back_to_their_tree(tree):
    leaves = leaves_of(tree_from(tree))
    assert tree_of(leaves) == tree
    assert list(leaves_of(tree_of(leaves))) == list(leaves)
    assert taken_apart(tree, tree) == leaves
    assert shaped(tree, leaves) == tree


@given(TREES, st.randoms(use_true_random=False))
def test_chosen_leaves_keep_their_places(tree, random):
    leaves = leaves_of(tree)
    some = {path: leaf for path, leaf in leaves.items() if random.random() < 0.5}
    assert leaves_of(shaped(tree, some)) == some


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ({"a/b": rs.Column("int8")}, r"no slash, got 'a/b'.*\{'a': \{'b': …\}\}"),
        ({"a": {"b/c": rs.Column("int8")}}, "no slash, got 'b/c'"),
        ({"a": {}}, "'a', got an empty dict"),
        ({"a": {"b": ()}}, "'a/b', got an empty tuple"),
        ({"a": {"0": rs.Column("int8"), "1": rs.Column("int8")}}, "'a' has the keys 0, 1, which are places of a tuple"),
        ({"a": {1: rs.Column("int8")}}, "must be a string of at least one letter, got 1"),
        ({"a": {"": rs.Column("int8")}}, "must be a string of at least one letter, got ''"),
        ({"a": {"b": 3}}, "column 'a/b' must be an rs.Column or an rs.Window, or a dict or tuple of them, got 3"),
        ({"a": [rs.Column("int8"), None]}, "column 'a/1' must be .* got None"),
        ({"a": {"b c": rs.Column("int8")}}, "without blanks or control characters, got 'a/b c'"),
        ({"a": {"b" * 255: rs.Column("int8")}}, "must be 1 to 255 bytes"),
        ({"a": tuple(rs.Column("int8") for _ in range(300))}, "got 300"),
        ({"a": {"b": rs.Window("c/x")}, "c": {"d": rs.Column("int8")}}, "window 'a/b' looks at 'c/x'"),
        ({"a": rs.Window("c"), "c": {"d": rs.Window("e")}, "e": rs.Column("int8")}, "looks at 'c/d'"),
    ],
)
def test_a_signature_whose_paths_would_lie_is_refused(signature, words):
    with pytest.raises(rs.SchemaError, match=words):
        rs.Table("t", 10, signature)


def test_a_spec_with_a_column_within_a_column_is_refused():
    for names in (("a", "a/b"), ("a/b", "a")):
        with pytest.raises(rs.SchemaError, match=r"'a' is also|'a' is a column"):
            rs.Table.from_spec({"name": "t", "capacity": 1, "signature": {name: ["int8", []] for name in names}})


def test_a_spec_may_name_paths_or_nest_them():
    nested = {
        "obs": {"image": {"dtype": "uint8", "shape": [8, 8]}, "parts": [["int8", []], {"dtype": "int16"}]},
        "next": {"window": "obs/image", "offset": 1},
    }
    paths = {
        "obs/image": ["uint8", [8, 8]],
        "obs/parts/0": ["int8", []],
        "obs/parts/1": ["int16", []],
        "next": {"window": "obs/image", "offset": 1},
    }
    tables = [rs.Table.from_spec({"name": "t", "capacity": 1, "signature": spec}) for spec in (nested, paths)]
    assert tables[0] == tables[1]
    assert tables[0].signature["obs"]["parts"] == (rs.Column("int8"), rs.Column("int16"))
    assert list(tables[0].leaves) == list(paths)


def test_a_window_over_a_dict_of_columns_stands_for_one_over_each():
    signature = {
        "seen": {"image": rs.Column("uint8", (4,), step_only=True), "state": (rs.Column("int8"), rs.Column("float32"))},
        "obs": rs.Window("seen", length=2),
        "one": rs.Window("seen/state/1"),
    }
    table = rs.Table("t", 10, signature)
    assert table.signature["obs"]["state"] == (
        rs.Window("seen/state/0", length=2),
        rs.Window("seen/state/1", length=2),
    )
    assert rs.Table.unpack(table.pack()) == table
    assert table.columns["obs/image"] == rs.Column("uint8", (2, 4))


def test_the_columns_of_a_tree_are_chosen_by_path_or_by_what_they_lie_in():
    table = rs.Table(
        "t",
        10,
        {"obs": {"a": rs.Column("int8"), "b": (rs.Column("int8"), rs.Column("int8"))}, "obsolete": rs.Column("int8")},
    )
    assert table.chosen(["obs"]) == ("obs/a", "obs/b/0", "obs/b/1")
    assert table.chosen(["obsolete", "obs/b/1"]) == ("obs/b/1", "obsolete")
    assert table.chosen(None) == tuple(table.leaves)
    with pytest.raises(rs.SchemaError, match="no column 'obs/c'"):
        table.chosen(["obs/c"])
    with pytest.raises(rs.SchemaError, match="each column once"):
        table.chosen(["obs", "obs/a"])


def test_batches_of_a_table_without_nesting_are_as_they_were():
    buffer = rs.Buffer(rs.Table("t", 4, {"b": rs.Column("int8"), "a": rs.Column("int8")}))
    buffer.add({"b": np.int8([1]), "a": np.int8([2])})
    assert list(buffer.sample(1, columns=["a", "b"]).data) == ["a", "b"]
    assert list(buffer.sample(1).data) == ["b", "a"]
