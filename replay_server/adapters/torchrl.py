"""TorchRL's replay buffers over a table of this project: a storage, a sampler and a writer, to be used together.

    buffer = TensorDictReplayBuffer(**table_parts(100_000, alpha=0.6, beta=0.4), batch_size=32)

or, made one by one, `storage=TableStorage(…), sampler=TableSampler(storage), writer=TableWriter()`. The table lies in
this process (`replay_server.Buffer`) or on a server (`url=`). It draws by its own sum tree, and gives the data of a
draw with the draw: TorchRL's trees are not used, and its C++ extension need not load.

An index is an item's id, not a position: it is never that of another item. Priorities for an item that has left are
left out, and counted (`TableSampler.stale`); reading such an item is an error. TorchRL's own storages give both to the
successor at that position.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, cast

import numpy as np

from replay_server import Batch, Buffer, Client, Prioritized, Table, TableNotFound
from replay_server.client import TableHandle
from replay_server.extras import needed_by

from .tables import restore, snapshot_of

with needed_by(__name__):
    import torch
    from tensordict import TensorDictBase, is_tensor_collection, is_tensorclass
    from torch import Tensor
    from torchrl.data.replay_buffers import PrioritizedSampler, StoreStorage, Writer
    from torchrl.data.replay_buffers.storages import Storage

    from .tensordicts import columns_of, rows_of, signature_of, tensordict_of

MOST_BYTES = 64 << 20
"""Of the items that one call of the table adds."""
SNAPSHOT = "table.snapshot"
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda steps: steps.amax(1),
    "min": lambda steps: steps.amin(1),
    "mean": lambda steps: steps.mean(1),
    "median": lambda steps: steps.median(1).values,
}
"""(N, steps) → (N,)."""
_POSITIONS = 1 << 32
"""Below it are no ids: the first generation of a slot is 1."""


class TableStorage(StoreStorage):
    """A TorchRL storage that is a table.

    The table is made with the first TensorDict that is added, whose entries become its columns. A server's table of
    that name is used as it is. What is added later must have the same entries, shapes and dtypes.

    It is a `StoreStorage` for TorchRL's sake, which asks for the class to decide how batches are collated.

    Args:
        max_size: items; None where there is a table already.
        table: its name, or the table itself: a `replay_server.Buffer`, or a handle `client["name"]`.
        url: of a server; None: in this process.
        device: where TensorDicts are returned.
        settings: other arguments of `replay_server.Table`, for a table that is made: `sampler` (`Prioritized()` unless
            it is given), `rate_limiter`, `remover`, `max_times_sampled`, `max_bytes`, `seed` and so on.

    Raises:
        ValueError: arguments contradict each other, or the table that there is has another capacity.
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        table: str | Buffer | TableHandle = "torchrl",
        url: str | None = None,
        device: torch.device | str = "cpu",
        **settings: Any,
    ) -> None:
        given = not isinstance(table, str)
        if given and (url is not None or settings):
            raise ValueError(f"expected either a table or what to make one of, got {table!r} and {url or settings}")
        if not given and url is None and max_size is None:
            raise ValueError("expected max_size, the items of the table that is made in this process, got none")
        # Not the original's, which would ask for a store.
        Storage.__init__(self, max_size or 0)
        self.device = torch.device(device)
        self._name: str = table if isinstance(table, str) else table.name
        self._settings = settings
        self._client = None if url is None else Client(url)
        self._table: Buffer | TableHandle | None = None if isinstance(table, str) else table
        self._form: tuple[tuple[int, ...], type | None] = (), None
        """Batch dimensions of an item, and the tensorclass of what was added."""
        if self._look_up():
            self._check_capacity(max_size)

    def _check_capacity(self, max_size: int | None) -> None:
        if max_size not in (None, self.max_size):
            raise ValueError(f"expected max_size={self.max_size}, the capacity of {self._name!r}, got {max_size}")

    def _look_up(self) -> bool:
        """Whether there is a table by now."""
        if self._table is None and self._client is not None:
            handle = self._client[self._name]
            try:
                self.max_size = handle.table.capacity
            except TableNotFound:
                return False
            self._table = handle
        elif self._table is not None:
            self.max_size = self._table.table.capacity
        return self._table is not None

    @property
    def table(self) -> Buffer | TableHandle:
        """The table that the items are in.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._table is None and not self._look_up():
            raise RuntimeError(
                f"Cannot sample from an empty storage: the table {self._name!r} is made with the first data that is "
                "added"
            )
        return cast(Any, self._table)

    @property
    def initialized(self) -> bool:
        """Whether there is a table."""
        return self._table is not None or self._look_up()

    def _make(self, signature: dict[str, Any]) -> Buffer | TableHandle:
        """Makes the table."""
        # In this process the draws follow from NumPy's seed, as those of TorchRL's own sampler do.
        seed = {"seed": int(np.random.randint(1, 2**31))} if self._client is None else {}
        if not self.max_size:
            raise ValueError(f"expected max_size, since the server has no table {self._name!r} yet, got none")
        made = Table(self._name, self.max_size, signature, **{**seed, **self._settings})
        if self._client is None:
            self._table = Buffer(made)
        else:
            self._client.create_table(made)
            self._table = self._client[self._name]
        return self._table

    def append(self, data: Any) -> Tensor:
        """Adds items; their ids, int64 (N,). For `TableWriter`.

        Args:
            data: a TensorDict, or a tensorclass, of batch size (N, …).

        Raises:
            TypeError: it is something else.
            SchemaError: the table has other columns. Of what is added in several parts, since it is larger than the
                table or than 64 MiB, earlier parts are stored.
        """
        if not is_tensor_collection(data):
            raise TypeError(
                f"expected a TensorDict, whose entries are the table's columns, got {type(data).__name__}; other data "
                "is for TorchRL's own storages"
            )
        kind = type(data) if is_tensorclass(data) else None
        plain: TensorDictBase = data.to_tensordict() if kind else data
        columns, count = columns_of(plain), plain.shape[0]
        table = self.table if self.initialized else self._make(signature_of(columns))
        most = max(1, min(self.max_size, MOST_BYTES // max(1, plain.bytes() // max(1, count))))
        ids = []
        for first in range(0, count, most):
            ids.append(table.add(rows_of(columns, first, first + most)))
            self._form = tuple(plain.shape[1:]), kind  # now that the table has taken it
        self._bump_mutation_revision()
        return _index_of(np.concatenate(ids) if ids else np.empty(0, np.uint64), self.device)

    def drawn(self, batch: Batch) -> Any:
        """A batch of the table in the form of what was added. For `TableSampler`."""
        shape, kind = self._form
        data = tensordict_of(batch, (len(batch), *shape), self.device)
        return data if kind is None else cast(Any, kind).from_tensordict(data)

    def get(self, index: Any) -> Any:
        """The items of ids, (N,) or a single one.

        Raises:
            ServerError: one of them has left the table.
            TypeError: it is a slice or something else that means positions.
        """
        data = getattr(index, "drawn", None)
        if data is not None:  # of the draw that this index is from
            del index.drawn  # which whoever keeps the index need not keep
            return data
        if isinstance(index, slice | range | tuple | type(None) | type(...)):
            raise TypeError(f"expected ids of items, which have no positions, got {index!r}; sample them instead")
        ids = _ids_of(index)
        data = self.drawn(self.table.get(ids.reshape(-1)))
        return data if ids.ndim else data[0]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refuses: what is stored does not change, and items have no positions to write at."""
        raise TypeError("expected a TableWriter as the buffer's writer; items that are stored cannot be changed")

    def __len__(self) -> int:
        return self.table.info()["size"] if self.initialized else 0

    def __iter__(self) -> Any:
        raise TypeError("items have no positions to go through; draw batches, or iterate over the buffer")

    def _rand_given_ndim(self, batch_size: int) -> Tensor:
        raise TypeError("expected a TableSampler as the buffer's sampler, got one that draws positions")

    def contains(self, item: Any) -> Any:
        """Whether the items of ids are in the table."""
        ids = _ids_of(item)
        found = [self.initialized and self._has(each) for each in ids.reshape(-1)]
        return torch.tensor(found, dtype=torch.bool).reshape(ids.shape) if isinstance(item, Tensor) else all(found)

    def _has(self, each: np.uint64) -> bool:
        try:
            self.table.get(np.array([each]))
        except RuntimeError:
            return False
        return True

    def _empty(self) -> None:
        if self.initialized:
            self.table.reset()
        self._bump_mutation_revision()

    # ---- saved by the library ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Of a table in this process, its spec and the bytes of a snapshot (docs/snapshot.md), as uint8 tensors. Of one
        on a server, its name: items stay there, and `replay_server.Client.checkpoint` saves them."""
        state = self._described()
        if isinstance(self._table, Buffer):
            state["snapshot"] = torch.frombuffer(bytearray(snapshot_of(self._table)), dtype=torch.uint8)
            state["spec"] = torch.frombuffer(bytearray(self._table.table.pack()), dtype=torch.uint8)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores items, ids and priorities of a table in this process. An error changes nothing.

        Raises:
            ValueError: the state is not of this class, is of another table, of one that lies elsewhere, or of one with
                another capacity.
            SchemaError: the table that there is has other columns, or another capacity.
            ServerError: the snapshot is damaged.
        """
        self._check_state(state_dict)
        if "snapshot" in state_dict:
            spec, snapshot = (state_dict[name].numpy().tobytes() for name in ("spec", "snapshot"))
            self._restore(spec, lambda table: restore(table, snapshot))
        self._take_form(state_dict)

    def _described(self) -> dict[str, Any]:
        on_server = self._client is not None or isinstance(self._table, TableHandle)
        return {"table": self._name, "on_server": on_server, "batch_dimensions": list(self._form[0])}

    def _check_state(self, state: dict[str, Any]) -> None:
        own = self._described()
        if not own.keys() <= state.keys():
            raise ValueError(f"expected the state of a TableStorage, with {', '.join(own)}, got one with {[*state]}")
        if any(state[name] != own[name] for name in ("table", "on_server")):
            told = [
                f"{each['table']!r} {'on a server' if each['on_server'] else 'in a process'}" for each in (own, state)
            ]
            raise ValueError(f"expected the state of table {told[0]}, got that of {told[1]}")

    def _restore(self, spec: bytes, into: Callable[[Buffer], Any]) -> None:
        """Restores the table, which is made of its spec where there is none."""
        table = self._table
        if table is None:
            table = Buffer(Table.unpack(spec))
            if self.max_size != table.table.capacity:
                raise ValueError(
                    f"expected the state of a table with the capacity {self.max_size}, got one with "
                    f"{table.table.capacity}"
                )
        into(cast(Buffer, table))
        self._table = table
        self._bump_mutation_revision()

    def _take_form(self, state: dict[str, Any]) -> None:
        self._form = tuple(state["batch_dimensions"]), self._form[1]
        if "snapshot" not in state and not state["on_server"]:
            self._empty()

    def dumps(self, path: Any) -> None:
        """Writes what `state_dict` has to a folder: storage.json, and of a table in this process its snapshot, whose
        name is in that file, and spec.msgpack."""
        folder = Path(path)
        folder.mkdir(exist_ok=True)
        state = self._described()
        if isinstance(self._table, Buffer):
            self._table.checkpoint(str(folder / SNAPSHOT))
            (folder / "spec.msgpack").write_bytes(self._table.table.pack())
            state["snapshot"] = SNAPSHOT
        (folder / "storage.json").write_text(json.dumps(state))

    def loads(self, path: Any) -> None:
        """Restores what `dumps` wrote; see `load_state_dict`."""
        folder = Path(path)
        state = json.loads((folder / "storage.json").read_text())
        self._check_state(state)
        if "snapshot" in state:
            spec, file = (folder / "spec.msgpack").read_bytes(), folder / state["snapshot"]
            self._restore(spec, lambda table: table.restore(str(file)))
        self._take_form(state)

    def __getstate__(self) -> dict[str, Any]:
        state = Storage.__getstate__(self)
        if isinstance(self._table, Buffer):
            if get_spawning_popen() is not None:
                raise TypeError(
                    "a table in this process cannot be shared with another one, which would get a copy: keep it on a "
                    "server, with url=…"
                )
            state["_table"] = None
            state["saved"] = self.state_dict()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("saved", None)
        Storage.__setstate__(self, state)
        if saved is not None:
            self.load_state_dict(saved)

    def __repr__(self) -> str:
        where = self._table if self._table is not None else f"{self._name!r}, not made yet"
        return f"{type(self).__name__}(table={where}, max_size={self.max_size})"


class TableSampler(PrioritizedSampler):
    """Has the table draw, as the table's sampler says: with `replay_server.Prioritized` in proportion to
    (priority + eps)^α, each part of a batch from its own part of the sum unless `stratified=False`.

    A sample's info has `index`, the ids, int64 (N,), and `priority_weight`, float32 (N,): (size · P)^−β divided by the
    batch's maximum. TorchRL's sampler divides by the maximum over the whole buffer.

    It is a `PrioritizedSampler` for TorchRL's sake, which passes priorities on to no other, and has no trees. The
    buffer's `generator` has no effect: a table has its own `seed`.

    Args:
        storage: a `TableStorage`, whose α is then also this object's `alpha`, for TorchRL's schedulers.
        beta: β, the importance-sampling exponent; can be set at any time.
        eps: what is added to each priority, so that none is zero, with which an item would never be drawn.
        reduction: how the priorities of an item's steps become one: "max", "min", "mean" or "median".
        timeout: seconds that a sample waits for the table's rate limiter, None = for ever; 0: it is refused at once,
            with `replay_server.Timeout`. While it waits, it holds the buffer's lock: another buffer, such as an
            actor's, has to add.

    Raises:
        TypeError: the storage is not a `TableStorage`.
        ValueError: beta or eps is negative, or the reduction is unknown.
    """

    def __init__(
        self,
        storage: TableStorage,
        beta: float = 0.4,
        *,
        eps: float = 1e-8,
        reduction: str = "max",
        timeout: float | None = 0,
    ) -> None:
        if beta < 0 or eps < 0:
            raise ValueError(f"expected beta and eps of at least 0, got {beta} and {eps}")
        if reduction not in REDUCTIONS:
            raise ValueError(f"expected one of {', '.join(REDUCTIONS)} as reduction, got {reduction!r}")
        # Not the original's, which would make trees.
        self._storage = _table_storage(storage)
        self._beta, self._eps, self.reduction, self._timeout = float(beta), float(eps), reduction, timeout
        self.stale = 0
        """Priorities so far that were for items that had left the table."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, beta={self._beta}, eps={self._eps})"

    @property
    def max_size(self) -> int:
        """Items that the table can hold."""
        return self._storage.max_size

    @property
    def device(self) -> torch.device:
        """Where the sums are: with the table."""
        return torch.device("cpu")

    @property
    def alpha(self) -> float:
        """α of the table, 0 if its sampler has none. Setting it changes the table, on a server for all its clients."""
        return float(getattr(self._table_sampler(), "priority_exponent", 0.0))

    @alpha.setter
    def alpha(self, value: float) -> None:
        stratified = getattr(self._table_sampler(), "stratified", True)
        chosen = Prioritized(float(value), stratified=stratified)
        if self._storage.initialized:
            self._storage.table.configure(sampler=chosen)
        else:
            self._storage._settings["sampler"] = chosen

    def _table_sampler(self) -> Any:
        storage = self._storage
        return storage.table.table.sampler if storage.initialized else storage._settings.get("sampler", Prioritized())

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws a batch: its index, and the info. The index carries the data to `TableStorage.get`.

        Raises:
            Timeout: the rate limiter does not admit it, such as while the table is empty.
            RuntimeError: there is no table yet.
        """
        source = _table_storage(storage)
        batch = source.table.sample(batch_size, beta=float(self._beta), timeout=self._timeout, writable=True)
        index = _index_of(batch.ids, source.device)
        cast(Any, index).drawn = source.drawn(batch)
        return index, {"priority_weight": torch.from_numpy(batch.weights).to(source.device)}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether the table would admit a draw now."""
        source = _table_storage(storage)
        return source.initialized and not source.table.info()["reason"]

    @property
    def default_priority(self) -> float:
        """The largest priority in the table, which items without one get; 1.0 if it is empty."""
        info = self._storage.table.info() if self._storage.initialized else {"size": 0}
        return max(0.0, info["max_priority"] - self._eps) if info["size"] else 1.0

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets the priorities of items.

        Positions instead of ids are left out: for a table that has items when a buffer is made, TorchRL passes them.

        Args:
            index: ids, int64 (N,) or one.
            priority: at least 0, (N,), or one for all; of items of several steps (N, …), which `reduction` makes (N,).

        Raises:
            ValueError: there are neither one priority nor N.
            PriorityError: one is negative or not finite; none was set.
        """
        ids = _ids_of(index).reshape(-1)
        given = torch.as_tensor(priority).detach().to("cpu", torch.float64)
        if given.ndim > 1 and len(given) == len(ids):
            given = REDUCTIONS[self.reduction](given.reshape(len(ids), -1))
        values = given.reshape(-1).numpy()
        if len(values) not in (1, len(ids)):
            raise ValueError(f"expected one priority or one for each of {len(ids)} items, got {len(values)}")
        known = ids >= _POSITIONS
        if known.any():
            table = (self._storage if storage is None else _table_storage(storage)).table
            self.stale += table.update_priorities(ids[known], np.broadcast_to(values, ids.shape)[known] + self._eps)[1]

    def add(self, index: Any) -> None:
        """Nothing: the table gives new items the largest priority."""

    def extend(self, index: Any) -> None:
        """Nothing, as `add`."""

    def _empty(self) -> None:
        """Nothing: the storage empties the table."""

    def state_dict(self) -> dict[str, Any]:
        """α, β and eps. The priorities are the table's."""
        return {"_alpha": self.alpha, "_beta": float(self._beta), "_eps": self._eps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes β and eps; and α where that is another than the table's."""
        self._beta, self._eps = state_dict["_beta"], state_dict["_eps"]
        if state_dict["_alpha"] != self.alpha:
            self.alpha = state_dict["_alpha"]

    def dumps(self, path: Any) -> None:
        """Writes what `state_dict` has to a folder."""
        folder = Path(path)
        folder.mkdir(exist_ok=True)
        (folder / "sampler.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: Any) -> None:
        """Reads what `dumps` wrote."""
        self.load_state_dict(json.loads((Path(path) / "sampler.json").read_text()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rng": None}


class TableWriter(Writer):
    """Adds to the table. A full table makes room as its `remover` says: the oldest items leave, unless it was given."""

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    def register_storage(self, storage: Storage) -> None:
        """Takes the buffer's storage. TypeError: it is not a `TableStorage`."""
        super().register_storage(_table_storage(storage))

    def add(self, data: Any) -> int:
        """Adds one item; its id."""
        index = self._append(data.unsqueeze(0) if is_tensor_collection(data) else data)
        return int(index[0])

    def extend(self, data: Any) -> Tensor:
        """Adds items; their ids, int64 (N,)."""
        return self._append(data)

    def _append(self, data: Any) -> Tensor:
        index = cast(TableStorage, self._storage).append(data)
        self._write_count += len(index)
        return index

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """How many items this writer added."""
        return {"_write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the count."""
        self._write_count = state_dict["_write_count"]

    def dumps(self, path: Any) -> None:
        """Writes what `state_dict` has to a folder."""
        folder = Path(path)
        folder.mkdir(exist_ok=True)
        (folder / "writer.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: Any) -> None:
        """Reads what `dumps` wrote."""
        self.load_state_dict(json.loads((Path(path) / "writer.json").read_text()))


def table_parts(
    max_size: int | None = None,
    *,
    alpha: float | None = None,
    beta: float = 0.4,
    timeout: float | None = 0,
    **options: Any,
) -> dict[str, Any]:
    """Storage, sampler and writer by the names that TorchRL's buffers take them by.

    Args:
        alpha: α of a table that is made; None: as the table's `sampler` has it.
        beta, timeout: see `TableSampler`.
        max_size, options: see `TableStorage`.
    """
    if alpha is not None:
        options["sampler"] = Prioritized(alpha)
    storage = TableStorage(max_size, **options)
    sampler = TableSampler(storage, beta, timeout=timeout)
    return {"storage": storage, "sampler": sampler, "writer": TableWriter()}


def _table_storage(storage: Any) -> TableStorage:
    if not isinstance(storage, TableStorage):
        raise TypeError(f"expected a TableStorage, beside which this works, got {type(storage).__name__}")
    return storage


def _index_of(ids: np.ndarray, device: torch.device) -> Tensor:
    """Ids, uint64 (N,), as TorchRL has them: int64, the same bits."""
    return torch.from_numpy(ids.view(np.int64)).to(device)


def _ids_of(index: Any) -> np.ndarray:
    """An index as ids, uint64, in its own shape."""
    return torch.as_tensor(index).to("cpu", torch.int64).numpy().view(np.uint64)
