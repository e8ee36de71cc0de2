"""The cffi extension over DPDK, where it was built: `lib` holds the functions of native/net/dpdk/binding.h."""

from typing import Any

ffi: Any
lib: Any
