"""The cffi extension: `lib` holds the functions of native/cdef.h."""

from typing import Any

ffi: Any
lib: Any
