"""DPDK's memory: heaps, the zones reserved in them, and the pools of buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .library import binding, call, listed, text


@dataclass(frozen=True)
class Heap:
    """DPDK's heap on one memory node, in bytes.

    Attributes:
        node: memory node.
        greatest_free_bytes: the largest piece that could be had.
        allocations: pieces in use.
    """

    node: int
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    greatest_free_bytes: int
    allocations: int


@dataclass(frozen=True)
class MemoryZone:
    """A named piece of memory.

    Attributes:
        address: in this process. io_address: as devices see it.
        size_bytes: of the zone. page_bytes: of the pages that it lies in.
        node: memory node, −1: any.
    """

    name: str
    address: int
    io_address: int
    size_bytes: int
    page_bytes: int
    node: int


@dataclass(frozen=True)
class MemoryPool:
    """A pool of buffers of one size.

    Attributes:
        size: buffers in all. available: of these, not in use.
        element_bytes: of one buffer with its header.
        cache: buffers that each lcore may keep at hand.
        node: memory node, −1: any.
    """

    name: str
    size: int
    available: int
    element_bytes: int
    cache: int
    node: int

    @property
    def in_use(self) -> int:
        """Buffers in use."""
        return self.size - self.available


def heaps() -> list[Heap]:
    """The heap of each memory node."""
    nodes = listed("listing memory nodes", "int32_t", lambda lib, array, room: lib.dpdk_nodes(array, room), int)
    heap = binding()[0].new("struct dpdk_heap *")
    found = []
    for node in nodes:
        call(f"reading the heap of node {node}", lambda _, lib, node=node: lib.dpdk_heap(node, heap))
        sizes = (heap.total_bytes, heap.free_bytes, heap.allocated_bytes, heap.greatest_free_bytes)
        found.append(Heap(node, *sizes, heap.allocations))
    return found


def _zone(raw: Any) -> MemoryZone:
    return MemoryZone(text(raw.name), raw.address, raw.io_address, raw.size_bytes, raw.page_bytes, raw.node)


def memory_zones() -> list[MemoryZone]:
    """All zones, in the order of their making."""
    kind = "struct dpdk_memory_zone"
    return listed("listing memory zones", kind, lambda lib, array, room: lib.dpdk_memory_zones(array, room), _zone)


def _pool(raw: Any) -> MemoryPool:
    return MemoryPool(text(raw.name), raw.size, raw.available, raw.element_bytes, raw.cache, raw.node)


def memory_pools() -> list[MemoryPool]:
    """All pools."""
    return listed("listing pools", "struct dpdk_pool", lambda lib, array, room: lib.dpdk_pools(array, room), _pool)
