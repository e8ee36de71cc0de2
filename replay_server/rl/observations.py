"""Observations as trees: one array, or a dict of arrays by path, such as {"image": …, "hand/position": …}.

A table has a column for each leaf, a network a part of its input. One array is the tree of a single leaf, whose path is
"". What is done leaf by leaf does for both, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from replay_server.tree import name_of_key

T = TypeVar("T")
S = TypeVar("S")
Tree: TypeAlias = T | dict[str, T]
Observations: TypeAlias = Any
"""Of N environments or items: an array (N, *shape), or a dict of these by path."""

SMALLEST_SIDE = 4
"""Of an image, in pixels: what is smaller is a vector."""
LARGEST_BOUND = 65_535
"""Bounds beyond it are as good as none: nothing is divided by them."""
MAX_LEAVES = 80
"""Of an observation. A table has at most 256 columns, three for each leaf."""


# ---- trees -----------------------------------------------------------------------------------------------------------


def map_tree(function: Callable[[T], S], tree: Tree[T]) -> Tree[S]:
    """The tree of what `function` makes of each leaf."""
    return {path: function(leaf) for path, leaf in tree.items()} if isinstance(tree, dict) else function(tree)


def leaves(tree: Tree[T]) -> dict[str, T]:
    """The leaves by their paths; a single one by ""."""
    return tree if isinstance(tree, dict) else {"": tree}


def column(name: str, path: str) -> str:
    """What the column of a leaf is called: name/path; name for a single one."""
    return f"{name}/{path}" if path else name


def columns(name: str, tree: Tree[T]) -> dict[str, T]:
    """The leaves by the names of their columns."""
    return {column(name, path): leaf for path, leaf in leaves(tree).items()}


def from_columns(name: str, data: Mapping[str, T]) -> Tree[T]:
    """The tree whose leaves are the columns of that name: what `columns` took apart."""
    if name in data:
        return data[name]
    return {each.removeprefix(f"{name}/"): leaf for each, leaf in data.items() if each.startswith(f"{name}/")}


def joined(parts: Sequence[Observations]) -> Observations:
    """Those of all parts, one after the other; of trees with the same paths."""
    if not isinstance(parts[0], dict):
        return np.concatenate(parts)
    return {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}


# ---- leaves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, as tables and networks have it.

    Attributes:
        shape: of one observation, as the environment gives it.
        dtype: uint8, or float32.
        is_image: whether convolutions see it; everything else is a vector to a network, whatever its shape.
        is_stack: whether the first axis holds the newest frames, each of which a table keeps once.
        scale: what images are multiplied by before the first convolution.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    is_image: bool = False
    is_stack: bool = False
    scale: float = 1.0

    @property
    def size(self) -> int:
        """Numbers of one observation."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def picture(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return _picture(self.shape)

    def random(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """`count` observations of no meaning: bytes, or normal numbers."""
        shape = (count, *self.shape)
        if self.dtype == "uint8":
            return generator.integers(0, 256 if self.is_image else 2, shape, np.uint8)
        return generator.normal(size=shape).astype(self.dtype)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Of an image of three axes: whether the first one holds its channels, being no longer than the last."""
    return shape[0] <= shape[2]


def _picture(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width); of four axes the first is a stack, whose images are channels, too."""
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 4:
        channels, height, width = _picture(shape[1:])
        return shape[0] * channels, height, width
    first, middle, last = shape
    return (first, middle, last) if channels_first(shape) else (last, first, middle)


def atari_screens(stack: int, side: int) -> Leaf:
    """The newest screens of an Atari game."""
    return Leaf((stack, side, side), "uint8", is_image=True, is_stack=True, scale=1.0 / 255.0)


# ---- spaces ----------------------------------------------------------------------------------------------------------


class ObservationReader:
    """Takes the observations of an environment apart into leaves. ValueError for a space whose size is not fixed.

    A Box is a leaf as it is: an image where it has three axes, or two of bytes, or four, the first of which is a stack
    of such; and where no side has fewer than 4 pixels. Bytes stay bytes, other numbers become float32. What
    `gymnasium.spaces.flatten` makes vectors of is such a vector: numbers of one hot bit for Discrete and MultiDiscrete.

    Args:
        space: of observations; Dict and Tuple in any depth. The path of a leaf is made of keys and positions.
    """

    def __init__(self, space: Any) -> None:
        self._parts = [(path, keys, part, _leaf(part)) for path, keys, part in _parts(space)]
        if not 1 <= len(self._parts) <= MAX_LEAVES:
            raise ValueError(
                f"expected an observation of 1 to {MAX_LEAVES} arrays, got {len(self._parts)}; join some of them, as "
                "gymnasium.wrappers.FlattenObservation does with all"
            )
        self._is_tree = bool(self._parts[0][1])
        paths = {path for path, *_ in self._parts}
        if len(paths) < len(self._parts) or (self._is_tree and not all(all(path.split("/")) for path in paths)):
            raise ValueError(f"expected keys of an observation that differ, none of them empty, got {space}")
        for path, _, part, leaf in self._parts:
            if 0 in leaf.shape:
                raise ValueError(f"{_named(path)}: expected a space with no side of 0, got {part}")

    @property
    def tree(self) -> Tree[Leaf]:
        """What observations are made of."""
        return {path: leaf for path, _, _, leaf in self._parts} if self._is_tree else self._parts[0][3]

    def empty(self, count: int) -> Observations:
        """Room for the observations of so many environments: zeros."""
        return map_tree(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), self.tree)

    def take(self, observations: Observations, row: int, observation: Any) -> None:
        """Writes what an environment gave to a row of `observations`."""
        arrays = leaves(observations)
        for path, keys, space, leaf in self._parts:
            value = observation
            for key in keys:
                value = value[key]
            arrays[path][row] = value if _is_box(space) else _flat(space, value).reshape(leaf.shape)


def observation_tree(space: Any) -> Tree[Leaf]:
    """What the observations of a space are made of. ValueError as `ObservationReader`."""
    return ObservationReader(space).tree


def _parts(space: Any, path: str = "", keys: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """(path, keys that lead there, space) of each part of a space that is neither Dict nor Tuple."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Dict):
        inner: Any = space.spaces.items()
    elif isinstance(space, gymnasium.spaces.Tuple):
        inner = enumerate(space.spaces)
    else:
        if not getattr(space, "is_np_flattenable", False):
            raise ValueError(
                f"{_named(path)}: expected a space of one fixed size, got {space}; make a Box of it in a "
                "gymnasium.ObservationWrapper"
            )
        yield path, keys, space
        return
    for key, part in inner:
        name = name_of_key(key)
        yield from _parts(part, f"{path}/{name}" if path else name, (*keys, key))


def _named(path: str) -> str:
    return f"observation {path!r}" if path else "the observation"


def _is_box(space: Any) -> bool:
    import gymnasium

    return isinstance(space, gymnasium.spaces.Box)


def _flat(space: Any, value: Any) -> np.ndarray:
    import gymnasium

    return np.asarray(gymnasium.spaces.flatten(space, value))


def _leaf(space: Any) -> Leaf:
    import gymnasium

    if not _is_box(space):
        bits = isinstance(
            space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete | gymnasium.spaces.MultiBinary
        )
        return Leaf((gymnasium.spaces.flatdim(space),), "uint8" if bits else "float32")
    shape = tuple(int(size) for size in space.shape)
    if not _is_image(shape, space.dtype):
        return Leaf(shape)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    are_bytes = np.issubdtype(space.dtype, np.integer) and low >= 0 and high <= 255
    largest = max(abs(low), abs(high))
    scale = 1.0 / largest if 1.0 < largest <= LARGEST_BOUND else 1.0
    return Leaf(shape, "uint8" if are_bytes else "float32", is_image=True, scale=scale)


def _is_image(shape: tuple[int, ...], dtype: Any) -> bool:
    if len(shape) == 2:
        return dtype == np.uint8 and min(shape) >= SMALLEST_SIDE
    return len(shape) in (3, 4) and min(_picture(shape)[1:]) >= SMALLEST_SIDE
