"""How a process that computes with torch treats memory that it has freed."""

from __future__ import annotations

import ctypes
import functools
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, from malloc.h."""
KEPT_BYTES = 1 << 30
MOST_OF_OLD_VERSIONS = 32 << 20
"""What older versions of glibc take for M_MMAP_THRESHOLD at most: they refuse more, and keep their own."""


@functools.cache
def keep_freed_memory() -> None:
    """Has the C library keep what is freed for the next tensors, up to 1 GiB, instead of giving it back to the kernel.

    A forward pass over screens makes tensors of megabytes and frees them again. By default each is mapped and unmapped,
    and the kernel clears every page of it once more. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        if not library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES):
            library.mallopt(M_MMAP_THRESHOLD, MOST_OF_OLD_VERSIONS)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
