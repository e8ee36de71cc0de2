"""Writes the C source of a cffi extension (API mode): emit_binding.py MODULE CDEF_H OUTPUT_C HEADER…"""

import sys
from pathlib import Path

import cffi


def main() -> None:
    module, cdef_path, output_path, *headers = sys.argv[1:]
    builder = cffi.FFI()
    builder.cdef(Path(cdef_path).read_text())
    builder.set_source(module, "".join(f'#include "{header}"\n' for header in headers))
    builder.emit_c_code(output_path)


if __name__ == "__main__":
    main()
