"""Writes the C source of the cffi extension `replay_server._native` (API mode): emit_binding.py CDEF_H OUTPUT_C."""

import sys
from pathlib import Path

import cffi

SOURCE = """#include "base/error.h"
#include "replay/codec.h"
#include "replay/expand.h"
#include "replay/sum_tree_array.h"
#include "replay/table.h"
#include "replay/table_batch.h"
"""


def main() -> None:
    cdef_path, output_path = map(Path, sys.argv[1:])
    builder = cffi.FFI()
    builder.cdef(cdef_path.read_text())
    builder.set_source("replay_server._native", SOURCE)
    builder.emit_c_code(str(output_path))


if __name__ == "__main__":
    main()
