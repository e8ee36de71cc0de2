"""Frames without copies: bursts of DPDK's mbufs that NumPy sees, the pools that they come from, and rings of them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from .library import DpdkError, binding, bounded, call, no_calls

BURST_FRAMES_MOST = 1024
POOL_FRAMES_MOST = 1 << 24
_HEADER_BYTES = 14
_BUFFER_BYTES = 65_535
_FRAME_BYTES_MOST = _BUFFER_BYTES - 128
"""DPDK keeps room before each frame."""


class _Hold:
    """One hold on a frame. Arrays on its bytes keep this object, which gives the frame back when they have gone."""

    __slots__ = ("__array_interface__", "_frame", "_release")

    def __init__(self, release: Callable[[Any, int], None], frame: Any, address: int, length: int) -> None:
        self._release, self._frame = release, frame
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, False)}

    def __del__(self) -> None:
        self._release(self._frame, 1)


class Burst:
    """Frames that came together: a sequence of arrays on their bytes, and a context manager that releases them.

    `burst[i]` is uint8 (length,), writable, and not a copy. It shows its frame also after the burst was released or
    sent, because a frame's memory is used again only when its arrays have gone. A frame that is kept so is missing in
    its pool.

    Made by `Port.rx_burst`, `Mempool.allocate` and `Ring.dequeue`. What `Port.tx_burst` or `Ring.enqueue` took has left
    the burst, and the frames behind it move up.
    """

    def __init__(self, limit: int) -> None:
        ffi, lib = binding()
        self._frames = ffi.new("void *[]", limit)
        self._lengths = np.zeros(limit, np.uint32)
        self._first = self._end = 0
        self._is_released = False
        self._give_back = lib.dpdk_frames_release

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, index: int) -> np.ndarray:
        ffi, lib = binding()
        frame, address = ffi.new("void *[1]"), ffi.new("uint8_t **")

        def hold(_: Any, lib: Any) -> int:
            frames, count = self._held()
            frame[0] = frames[range(count)[index]]
            length = lib.dpdk_frame_hold(frame[0], address)
            if length == -errno.EMSGSIZE:
                message = f"frame {index} lies in several buffers, and no array can show them: use copy()"
                raise DpdkError(message, errno.EMSGSIZE)
            return length

        length = call("looking at a frame", hold)
        return np.asarray(_Hold(lib.dpdk_frames_release, frame, int(ffi.cast("uintptr_t", address[0])), length))

    def __iter__(self) -> Iterator[np.ndarray]:
        self._held()
        return (self[index] for index in range(len(self)))

    def __enter__(self) -> Burst:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self._let_go()

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of each frame, uint32 (n,)."""
        self._held()
        return self._lengths[self._first : self._end].copy()

    def copy(self, frame_bytes: int) -> np.ndarray:
        """The first bytes of each frame, uint8 (n, frame_bytes), zeros behind shorter ones: an array of your own."""
        bounded("frame_bytes", frame_bytes, 1, _BUFFER_BYTES)
        copied = np.zeros((len(self), frame_bytes), np.uint8)

        def copy(ffi: Any, lib: Any) -> int:
            frames, count = self._held()
            lib.dpdk_frames_copy(frames, min(count, len(copied)), ffi.from_buffer("uint8_t[]", copied), frame_bytes)
            return 0

        call("copying frames", copy)
        return copied

    def release(self) -> None:
        """Gives the frames back, but for those that arrays still show. A second call does nothing."""
        with no_calls():  # another thread may be sending them
            self._let_go()

    def _let_go(self) -> None:
        frames, count = self._frames + self._first, len(self)
        self._first, self._is_released = self._end, True
        if count:
            self._give_back(frames, count)

    def _held(self) -> tuple[Any, int]:
        if self._is_released:
            raise DpdkError("the burst was released: use its frames before that", errno.EBADF)
        return self._frames + self._first, len(self)

    def _fill(self, doing: str, take: Callable[[Any, Any, Any, int], int]) -> Burst:
        """For the maker: `take(lib, frames, lengths, limit)` hands frames over and returns how many."""

        def receive(ffi: Any, lib: Any) -> int:
            count = take(lib, self._frames, ffi.from_buffer("uint32_t[]", self._lengths), len(self._lengths))
            self._end = max(0, count)
            return count

        call(doing, receive)
        return self

    def _give(self, doing: str, take: Callable[[Any, Any, int], int]) -> int:
        """For the taker: `take(lib, frames, count)` takes the first frames and returns how many. It raises nothing."""

        def send(_: Any, lib: Any) -> int:
            frames, count = self._held()
            # An interrupt behind `take` may lose frames, but has none freed that was taken.
            first, self._first = self._first, self._end
            taken = take(lib, frames, count)
            self._first = first + max(0, taken)
            return taken

        return call(doing, send)


def new_burst(limit: int) -> Burst:
    """An empty burst for up to `limit` frames."""
    return Burst(bounded("limit", limit, 1, BURST_FRAMES_MOST))


def allocate(doing: str, pool: str, lengths: Sequence[int] | np.ndarray) -> Burst:
    """Frames of the pool of that name, filled with zeros: all or none."""
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not 1 <= len(sizes) <= BURST_FRAMES_MOST:
        got = f"{sizes.dtype} of shape {sizes.shape}"
        raise DpdkError(f"{doing}: expected 1 to {BURST_FRAMES_MOST} lengths in bytes, got {got}", errno.EINVAL)
    if sizes.min() < _HEADER_BYTES:
        message = f"{doing}: expected frames of at least {_HEADER_BYTES} bytes, got {sizes.min()}"
        raise DpdkError(message, errno.EINVAL)
    burst, name = Burst(len(sizes)), pool.encode()
    burst._lengths[:] = np.minimum(sizes, _BUFFER_BYTES)
    return burst._fill(doing, lambda lib, frames, room, limit: lib.dpdk_allocate(name, frames, room, limit))


class Mempool:
    """A pool of buffers for frames, of `Eal.mempool`. It lasts until the EAL stops.

    Attributes:
        name: as in `Eal.memory_pools`.
    """

    def __init__(self, frames: int, frame_bytes: int) -> None:
        bounded("frames", frames, 1, POOL_FRAMES_MOST)
        bounded("frame_bytes", frame_bytes, 64, _FRAME_BYTES_MOST)
        ffi, _ = binding()
        name = ffi.new("char[128]")
        call(f"making a pool of {frames} frames", lambda _, lib: lib.dpdk_pool_create(frames, frame_bytes, name))
        self.name = ffi.string(name).decode()

    def __repr__(self) -> str:
        return f"Mempool({self.name!r})"

    def allocate(self, lengths: Sequence[int] | np.ndarray) -> Burst:
        """Frames to write and send, one of each length, filled with zeros.

        Args:
            lengths: bytes of 1 to 1,024 frames, each from 14 (Ethernet's header) to the pool's `frame_bytes`.

        Raises:
            DpdkError: a frame is too long (EMSGSIZE), or the pool has too few free buffers (ENOBUFS). Then none is
                taken.
        """
        return allocate(f"allocating frames of {self.name}", self.name, lengths)


class Ring:
    """A ring of frames, of `Eal.ring`, for any thread, and for any process on the same memory.

    Attributes:
        name: by which other processes find it.
        capacity: frames.
    """

    def __init__(self, name: str, size: int) -> None:
        bounded("size", size, 0, 1 << 20)
        self.name, self._encoded = name, name.encode()
        doing = f"making the ring {name!r}" if size else f"finding the ring {name!r}"
        self.capacity = call(doing, lambda _, lib: lib.dpdk_ring_open(self._encoded, size))

    def __repr__(self) -> str:
        return f"Ring({self.name!r})"

    def __len__(self) -> int:
        return call(f"counting {self.name!r}", lambda _, lib: lib.dpdk_ring_count(self._encoded))

    def enqueue(self, burst: Burst) -> int:
        """Puts the burst's frames in, the first ones, as far as there is room; returns how many."""
        doing = f"enqueueing to {self.name!r}"
        return burst._give(doing, lambda lib, frames, count: lib.dpdk_ring_enqueue(self._encoded, frames, count))

    def dequeue(self, limit: int = 64) -> Burst:
        """Takes the oldest frames out, at most `limit` (1 to 1,024)."""
        return new_burst(limit)._fill(
            f"dequeueing from {self.name!r}",
            lambda lib, frames, lengths, room: lib.dpdk_ring_dequeue(self._encoded, frames, lengths, room),
        )
