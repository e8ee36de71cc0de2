"""Compiles TorchRL's extension against the torch of this environment, from the sources that its wheel carries.

The wheel's own extension is built against one version of torch and does not load with another. Run by the interpreter
of TorchRL's environment.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    specification = importlib.util.find_spec("torchrl")
    if specification is None or specification.origin is None:
        print("torchrl is not installed in this environment", file=sys.stderr)
        return 1
    package = Path(specification.origin).parent
    check = [sys.executable, "-c", "import torch; from torchrl._torchrl import SumSegmentTreeFp64"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return 0
    from torch.utils.cpp_extension import include_paths, library_paths

    sources = [str(package / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]
    target = package / f"_torchrl{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [
        os.environ.get("CXX", "c++"),
        *(
            "-O3",
            "-std=c++20",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-DNDEBUG",
            "-DTORCH_EXTENSION_NAME=_torchrl",
        ),
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-I{sysconfig.get_paths()['include']}",
        f"-I{package / 'csrc'}",
        f"-I{package.parent}",
        *(f"-I{path}" for path in include_paths()),
        *sources,
        *(f"-L{path}" for path in library_paths()),
        *(f"-Wl,-rpath,{path}" for path in library_paths()),
        *("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
        *("-o", str(target)),
    ]
    done = subprocess.run(command)
    return done.returncode or subprocess.run(check).returncode


if __name__ == "__main__":
    sys.exit(main())
