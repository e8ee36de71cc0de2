"""Makes deliberate mistakes in the code, one at a time, and says which tests notice each.

    python tests/mistakes/mistakes.py                     all of tests/mistakes/*.toml: hours
    python tests/mistakes/mistakes.py --only "SPOP|lease" those whose text matches
    python tests/mistakes/mistakes.py --list              only checks that each still fits the code

A mistake is one edit: `before` occurs once in `file` and becomes `after`. `tests` are the tests that ought to notice
(arguments of pytest). They must pass without the mistake, which is checked first, and one of them must fail with it. A
mistake that no test notices has survived: a test is missing.

The work is done in build/mistakes, a copy of HEAD with an environment of its own over this checkout's. The checkout is
never edited. The exit status is 0 if at most --survivors have survived and every mistake fits and compiles.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
COPY = REPOSITORY / "build" / "mistakes"
HANGS_AFTER_S = 900


@dataclass(frozen=True)
class Mistake:
    """One edit that makes the code wrong, and the tests that ought to notice."""

    about: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a mistake: "noticed", "survived", "does not fit", "does not compile" or "tests do not pass"."""

    about: str
    file: str
    result: str
    by: str
    seconds: float


def read_mistakes() -> list[Mistake]:
    """All mistakes, in the order of their files."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for each in tomllib.loads(path.read_text())["mistake"]:
            found.append(Mistake(each["about"], each["file"], each["before"], each["after"], tuple(each["tests"])))
    return found


def fits(mistake: Mistake, tree: Path) -> bool:
    """Whether the edit can be made, and changes something."""
    path = tree / mistake.file
    return path.exists() and path.read_text().count(mistake.before) == 1 and mistake.before != mistake.after


# ---- the copy --------------------------------------------------------------------------------------------------------


def make_copy() -> None:
    """A fresh copy of HEAD. Builds and environment of an earlier one are kept: only what changed is compiled."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=REPOSITORY, check=True, capture_output=True).stdout
    COPY.mkdir(parents=True, exist_ok=True)
    for each in COPY.iterdir():
        if each.name not in ("build", ".venv"):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(COPY)
    if not (COPY / ".venv").exists():
        _make_environment()


def _make_environment() -> None:
    """An environment that finds this checkout's packages, and in which the copy is installed over them."""
    base = REPOSITORY / ".venv"
    subprocess.run([base / "bin" / "python", "-m", "venv", "--without-pip", COPY / ".venv"], check=True)
    packages = next((COPY / ".venv" / "lib").glob("python3*/site-packages"))
    own = next((base / "lib").glob("python3*/site-packages"))
    further = [line for path in own.glob("*.pth") for line in path.read_text().split() if Path(line).is_dir()]
    (packages / "checkout.pth").write_text("\n".join([str(own), *further]) + "\n")
    for program in (base / "bin").iterdir():
        beside = COPY / ".venv" / "bin" / program.name
        if not beside.exists() and program.name != "replay-server":
            beside.symlink_to(program)
    stamps = COPY / ".venv" / ".setup"
    stamps.mkdir()
    if (REPOSITORY / "build" / "lwip").exists():
        shutil.copytree(REPOSITORY / "build" / "lwip", COPY / "build" / "lwip", symlinks=True)
        (COPY / "build" / "lwip" / ".fetched").touch()
    for stamp in ("system", "environment", "ff_path"):
        (stamps / stamp).touch()


def compile_copy() -> str:
    """Installs the copy as it stands; what the compiler said where it failed."""
    for stamp in ("system", "environment"):  # They are this checkout's: never older than the files just written.
        (COPY / ".venv" / ".setup" / stamp).touch()
    done = subprocess.run(["make", "setup"], cwd=COPY, capture_output=True, text=True, errors="replace")
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


# ---- one mistake -----------------------------------------------------------------------------------------------------


def run_tests(tests: Sequence[str]) -> tuple[str, str]:
    """What became of them, and the first that failed: "passed", "failed", "hung", or "broken" where no test ran."""
    # The C tests compile what they need; all others run on what is installed. Only what changed is compiled.
    if not tests[0].startswith("tests/native") and (said := compile_copy()):
        return "broken", said
    process = subprocess.Popen(
        [str(COPY / ".venv" / "bin" / "python"), "-m", "pytest", "-x", "-q", "-rfE", "-m", "not slow", *tests],
        cwd=COPY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=HANGS_AFTER_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "hung", f"no end in {HANGS_AFTER_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if process.returncode == 0:
        return "passed", ""
    if "+ Timeout +" in said:
        return "hung", "a test's time was over"
    if process.returncode != 1 or failed is None or ("test_native.py" in failed[1] and "ERROR " + failed[1] in said):
        return "broken", said[-2000:]
    return "failed", failed[1]


def make(mistake: Mistake) -> Outcome:
    """Makes one mistake in the copy, has it tested, and takes it back."""
    path = COPY / mistake.file
    right = path.read_text()
    began = time.monotonic()
    path.write_text(right.replace(mistake.before, mistake.after))
    try:
        result, by = run_tests(mistake.tests)
    finally:
        path.write_text(right)
    told = {"passed": "survived", "broken": "does not compile"}.get(result, "noticed")
    return Outcome(mistake.about, mistake.file, told, by, round(time.monotonic() - began, 1))


def main() -> int:
    """Makes the mistakes; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose text or file matches")
    parser.add_argument("--list", action="store_true", help="only check that each fits the code as it is")
    parser.add_argument("--survivors", type=int, default=0, metavar="N", help="how many may survive (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there")
    options = parser.parse_args()
    chosen = [each for each in read_mistakes() if re.search(options.only, f"{each.about} {each.file}")]
    if options.list:
        stale = [each for each in chosen if not fits(each, REPOSITORY)]
        for each in stale:
            print(f"does not fit: {each.about} ({each.file})")
        print(f"{len(chosen) - len(stale)} of {len(chosen)} mistakes fit the code")
        return 1 if stale else 0
    make_copy()
    outcomes: list[Outcome] = []
    passed: dict[tuple[str, ...], tuple[str, str]] = {}  # what became of tests without a mistake
    for each in chosen:
        if not fits(each, COPY):
            outcomes.append(Outcome(each.about, each.file, "does not fit", "", 0.0))
        else:
            if each.tests not in passed:
                passed[each.tests] = run_tests(each.tests)
            result, by = passed[each.tests]
            outcomes.append(
                make(each) if result == "passed" else Outcome(each.about, each.file, "tests do not pass", by, 0.0)
            )
        last = outcomes[-1]
        print(
            f"{last.result:16} {last.seconds:6.1f} s  {last.about}  [{last.by.splitlines()[-1] if last.by else ''}]",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    counts = {result: sum(each.result == result for each in outcomes) for result in {each.result for each in outcomes}}
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 0 if set(counts) <= {"noticed", "survived"} and counts.get("survived", 0) <= options.survivors else 1


if __name__ == "__main__":
    sys.exit(main())
