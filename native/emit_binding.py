"""Writes the C source of a cffi extension (API mode): emit_binding.py MODULE DECLARATIONS_H OUTPUT_C HEADER…"""

import re
import sys
from pathlib import Path

import cffi


def declarations(text: str) -> str:
    """What cffi reads of a header. It has no preprocessor; "..." stands for what the C compiler is to find out."""
    lines = (line for line in text.splitlines() if not line.startswith("#") or line.endswith("..."))
    return re.sub(r"\[[A-Z_]+\]", "[...]", "\n".join(lines))


def main() -> None:
    module, declarations_path, output_path, *headers = sys.argv[1:]
    builder = cffi.FFI()
    builder.cdef(declarations(Path(declarations_path).read_text()))
    builder.set_source(module, "".join(f'#include "{header}"\n' for header in headers))
    builder.emit_c_code(output_path)


if __name__ == "__main__":
    main()
