"""Imports point down only: the floors of the C core and of the Python package, and what they keep out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = REPOSITORY / "native"

# Which folders of native/ a folder may include, beside itself.
C_FLOORS: dict[str, set[str]] = {
    "base": set(),
    "net": {"base"},
    "net/dpdk": {"base", "net"},
    "net/lwip": {"base", "net", "net/dpdk"},
    "net/fstack": {"base", "net", "net/dpdk"},
    "replay": {"base"},
    "store": {"base"},
    "resp": {"base"},
    "persist": {"base", "replay", "store", "resp"},
    "tools": {"base", "net", "resp"},
}
# Within the server: the core includes no part; replay, redis and cluster do not know each other; then what needs both.
SERVER_LIBRARIES = {"base", "net", "replay", "store", "resp", "persist"}
SERVER_FLOORS: dict[str, set[str]] = {
    "core": set(),
    "replay": {"core"},
    "redis": {"core"},
    "cluster": {"core"},
    "durability": {"core", "replay", "redis"},
    "replication": {"core", "replay", "redis", "durability"},
    "admin": {"core", "replay", "redis", "durability", "replication"},
    "metrics": {"core", "replay", "redis", "cluster", "durability", "replication", "admin"},
    "process": {"core", "replay", "redis", "cluster", "durability", "replication", "admin", "metrics"},
}
for _floor, _below in SERVER_FLOORS.items():
    C_FLOORS[f"server/{_floor}"] = SERVER_LIBRARIES | {f"server/{name}" for name in _below}

# Python: a part may import itself and what stands lower.
PYTHON_FLOORS = {
    "replay_server._native": 0,
    "replay_server._dpdk": 0,
    "replay_server": 1,
    "replay_server.rl": 2,
    "replay_server.actors": 3,
    "replay_server.learner": 3,
    "replay_server.jobs": 4,
    "replay_server.serverless": 4,
    "replay_server.dashboard": 5,
    "replay_server.bench": 5,
    "replay_server.bench.papers": 6,
}
FOLDERS = {
    "replay_server": "replay_server",
    "actors": "replay_server.actors",
    "learner": "replay_server.learner",
    "serverless": "replay_server.serverless",
    "bench": "replay_server.bench",
}
# The command, and what it is made of: it may reach any floor, where a function asks for it; nobody reaches it.
ROOF = {
    "replay_server.cli",
    "replay_server.cluster_command",
    "replay_server.__main__",
    "replay_server.completion",
    "replay_server.reload",
}


# ---- C --------------------------------------------------------------------------------------------------------------


def c_floor(path: Path) -> str:
    """The folder that a file belongs to; folders inside one of the floors that are none themselves belong to it."""
    folder = path.parent.relative_to(NATIVE)
    while folder.as_posix() not in C_FLOORS and folder != folder.parent:
        folder = folder.parent
    return folder.as_posix()


def c_files() -> list[Path]:
    return sorted(path for path in NATIVE.rglob("*.[ch]") if c_floor(path) in C_FLOORS)


def c_includes(path: Path) -> list[str]:
    """Paths below native/ that a file includes."""
    found = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)
    here = path.parent.relative_to(NATIVE).as_posix()
    return [name if "/" in name else f"{here}/{name}" for name in found]


def test_c_includes_point_down() -> None:
    wrong = []
    for path in c_files():
        floor = c_floor(path)
        for included in c_includes(path):
            target = c_floor(NATIVE / included)
            if target != floor and target not in C_FLOORS[floor]:
                wrong.append(f"{path.relative_to(REPOSITORY)} includes {included}")
    assert not wrong, "\n".join(wrong)


def test_the_server_knows_transports_only_through_their_interface() -> None:
    wrong = [
        f"{path.name} includes {included}"
        for path in c_files()
        if c_floor(path).startswith("server/")
        for included in c_includes(path)
        if included.startswith("net/") and included not in ("net/transport.h", "net/http.h")  # pages, not clients
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_calls_no_subsystem_by_name() -> None:
    """Whatever a header of the core declares is defined there. What it asks of subsystems stands in two tables."""
    core = NATIVE / "server/core"
    defined = {
        name
        for path in core.glob("*.c")
        for name in re.findall(r"^\w[\w *]*?\b(\w+)\([^;{]*\)\s*\{", path.read_text(), re.MULTILINE)
    }
    declared = re.compile(r"^(?!static|typedef|#|\s)\w[\w *]*?\b(\w+)\([^;{]*\)[^;{]*;", re.MULTILINE)
    headers = {path.name: re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL) for path in core.glob("*.h")}
    names = {(file, name) for file, text in headers.items() for name in declared.findall(text)}
    assert len(names) > 150
    assert not {(file, name) for file, name in names if name not in defined and name != "__attribute__"}
    outside = {
        (file, name) for file, text in headers.items() for name in re.findall(r"extern const [^;]*?(\w+)[;[]", text)
    }
    assert {name for file, name in outside if file in ("subsystem.h", "upcalls.h")} == {"server_subsystems", "upcalls"}


def test_every_file_of_the_server_belongs_to_one_of_its_floors() -> None:
    folders = {path.relative_to(NATIVE / "server").parts[0] for path in (NATIVE / "server").rglob("*.[ch]")}
    assert folders == set(SERVER_FLOORS)


def test_the_server_itself_has_few_fields() -> None:
    """What belongs to a part is in a struct of that part's own."""
    header = (NATIVE / "server/core/server.h").read_text()
    body = re.sub(r"/\*.*?\*/", "", header.split("\nstruct server {\n")[1].split("\n};")[0], flags=re.DOTALL)
    body = re.sub(r"\{[^{}]*\}", "", body)  # a struct inside is one field
    body = re.sub(r"struct \w+_subsystem \*\w+;", "", body)  # one for each subsystem
    fields = [name for declaration in body.split(";") if declaration.strip() for name in declaration.split(",")]
    assert 30 <= len(fields) <= 40, len(fields)


def test_only_the_table_of_commands_knows_them_by_name() -> None:
    """All that is known of a command stands in its row: who asks for its name has a fact that the row lacks."""
    compared = re.compile(
        r"\b(?:str\w*cmp|str\w*str|bsearch|memcmp|argument_is)\s*\([^;{]*\bcommand->(?:name|group->name)\b"
    )
    named = re.compile(r'"(?:(?:replay|weights|grad)\.[a-z]+|[a-z-]+\|[a-z-]+)"')
    rows_apart = re.compile(r'^    \{"[^"]+",', re.MULTILINE)
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {found.group()}"
        for path in sorted((NATIVE / "server").rglob("*.c"))
        if path.name != "command_table.c"
        for pattern in (compared, named)
        for found in pattern.finditer(rows_apart.sub("", path.read_text()))
    ]
    assert not wrong, "give the row a field for it:\n" + "\n".join(wrong)


def test_c_headers_do_not_include_each_other_in_a_circle() -> None:
    graph = {str(path.relative_to(NATIVE)): c_includes(path) for path in c_files() if path.suffix == ".h"}
    assert circle(graph) is None


def test_the_core_never_meets_python() -> None:
    wrong = [str(path) for path in c_files() if "Python.h" in path.read_text()]
    assert not wrong


def test_the_core_allocates_only_where_it_is_counted() -> None:
    allocation = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|strdup|strndup|mmap)\s*\(")
    wrong = []
    for path in c_files():
        if path.name in ("memory.c", "memory.h") and path.parent.name == "base":
            continue
        code = re.sub(
            r"/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), path.read_text(), flags=re.DOTALL
        )
        for number, line in enumerate(code.splitlines(), 1):
            if allocation.search(line):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}")
    assert not wrong, "use base/memory.h or base/blob.h:\n" + "\n".join(wrong)


# ---- Python ---------------------------------------------------------------------------------------------------------


def python_modules() -> dict[str, Path]:
    """Module name as installed → file, for all folders that make up the package."""
    modules = {}
    for folder, package in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            modules[name] = path
    return modules


def imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, bool]]:
    """Every import in a file as (module, whether it runs at import of the file); TYPE_CHECKING blocks are left out."""
    tree = ast.parse(path.read_text(), str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, at_import: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                yield from visit(child, at_import)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, at_import
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in modules or PYTHON_FLOORS.get(full) == 0 else base, at_import
        deeper = at_import and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, deeper)

    yield from visit(tree, True)


def floor_of(module: str) -> tuple[str, int] | None:
    """The part that a module belongs to, and its floor; None for other people's modules."""
    name = module
    while name:
        if name in PYTHON_FLOORS:
            return name, PYTHON_FLOORS[name]
        name = name.rpartition(".")[0]
    return None


def test_python_imports_point_down() -> None:
    modules = python_modules()
    wrong = []
    for module, path in modules.items():
        here = floor_of(module)
        assert here is not None
        for imported, at_import in imports(module, path, modules):
            there = floor_of(imported)
            if there is None or (module in ROOF and not at_import):
                continue
            if imported in ROOF:
                if module not in ROOF:
                    wrong.append(f"{module} imports {imported}, which is the roof")
            elif there[1] > here[1] or (there[1] == here[1] and there[0] != here[0]):
                wrong.append(f"{module} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_python_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = python_modules()
    graph = {
        module: sorted({name for name, at_import in imports(module, path, modules) if at_import and name in modules})
        for module, path in modules.items()
    }
    # `from . import x` inside a package names the package too; that alone is no circle.
    graph = {module: [name for name in names if not module.startswith(name + ".")] for module, names in graph.items()}
    assert circle(graph) is None


def test_nothing_is_pickled() -> None:
    modules = python_modules()
    refused = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    wrong = [
        f"{module} imports {name}"
        for module, path in modules.items()
        for name, _ in imports(module, path, modules)
        if name.split(".")[0] in refused
    ]
    wrong += [f"{module} calls torch.load" for module, path in modules.items() if "torch.load(" in path.read_text()]
    assert not wrong, "\n".join(wrong)


def circle(graph: dict[str, list[str]]) -> list[str] | None:
    """One circle in a graph of name → names, or None."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in graph:
            return None
        for following in graph[name]:
            found = walk(following, [*path, name])
            if found:
                return found
        done.add(name)
        return None

    return next((found for name in graph if (found := walk(name, []))), None)


# ---- what is loaded -------------------------------------------------------------------------------------------------


def run_python(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


HEAVY = ("torch", "gymnasium", "ale_py", "cv2", "tensorboard", "matplotlib", "rich", "safetensors")


@pytest.mark.parametrize("module", ["replay_server", "replay_server.cli", "replay_server.aio"])
def test_the_base_install_needs_nothing_of_training(module: str, tmp_path: Path) -> None:
    """The import works where none of the training packages can be imported."""
    code = (
        f"import sys\nfor name in {HEAVY!r}: sys.modules[name] = None\n"
        f"import {module}\nassert {module}.__name__ == {module!r}"
    )
    result = run_python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_command_line_loads_a_subcommand_only_when_it_is_called(tmp_path: Path) -> None:
    code = (
        "import sys, replay_server.cli\n"
        "loaded = [name for name in sys.modules if name.startswith(('replay_server.jobs', 'replay_server.learner', "
        "'replay_server.actors', 'replay_server.bench', 'torch'))]\nassert not loaded, loaded"
    )
    result = run_python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("folder", ["actors", "learner", "serverless", "bench"])
def test_a_part_is_where_editors_and_type_checkers_look_for_it(folder: str) -> None:
    """They know no import hooks: replay_server.learner is found as the folder replay_server/learner, or not at all."""
    link = REPOSITORY / "replay_server" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


@pytest.mark.parametrize("folder", ["actors", "learner", "serverless", "bench"])
def test_a_part_refuses_to_be_imported_as_a_top_level_package(folder: str) -> None:
    """From the root of a checkout, `import learner` would load a second copy beside replay_server.learner."""
    result = run_python(f"import {folder}", cwd=REPOSITORY)
    assert result.returncode != 0
    assert "ImportError" in result.stderr
    assert f"replay_server.{folder}" in result.stderr
