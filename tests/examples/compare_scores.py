"""Scores of other libraries with their own buffer and with this project's, written to a file of results.

    .venv/bin/python tests/examples/compare_scores.py [--seeds 1 2 3] [--json FILE] [torchrl rllib …]

Each run is a whole example (`WHOLE`) in the library's environment, which example_environments.py makes. Original and
replacement run in turns, seed by seed. The file is written after each seed; libraries that are not named keep what it
has of them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_environments import CLEANRL, REPOSITORY, python_of

from replay_server.bench import result

FILE = REPOSITORY / "docs" / "benchmarks" / "examples" / "replaced-buffers.json"
BUFFERS = ("original", "replay-server")

WHOLE = {
    "stable_baselines3": [],
    "cleanrl": [str(CLEANRL / "cleanrl/dqn.py"), "--total-timesteps", "50000", "--learning-starts", "1000"],
    "tianshou": [],
    "rllib": [],
    "torchrl": [],
}
"""What follows --buffer for a whole run."""


@dataclass(frozen=True)
class Outcome:
    """Of one run: the score, and processor times of the learner's process."""

    score: float
    training_s: float
    buffer_s: float


def run(name: str, buffer: str, options: list[str], folder: Path, timeout_s: float) -> Outcome:
    """Runs an example with a buffer. AssertionError with the end of its output if it fails."""
    command = [str(python_of(name)), str(REPOSITORY / "examples" / f"with_{name}.py"), "--buffer", buffer, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    times = re.search(r"processor time ([\d.]+) s, of it ([\d.]+) s in \d+ calls", done.stdout)
    reached = re.search(r"^reached (-?[\d.]+) on \S+$", done.stdout, re.MULTILINE)
    assert times, done.stdout[-2000:]
    assert reached, done.stdout[-2000:]
    return Outcome(float(reached[1]), float(times[1]), float(times[2]))


def told(seeds: list[int], outcomes: dict[str, list[Outcome]]) -> dict[str, Any]:
    """What the file says of a library."""
    pairs = list(zip(*(outcomes[buffer] for buffer in BUFFERS), strict=True))
    return {
        "seeds": seeds,
        "score": {buffer: [each.score for each in outcomes[buffer]] for buffer in BUFFERS},
        "original_divided_by_ours": {
            "buffer": [original.buffer_s / ours.buffer_s for original, ours in pairs],
            "training": [original.training_s / ours.training_s for original, ours in pairs],
        },
        "share_of_the_buffer": {
            buffer: [each.buffer_s / each.training_s for each in outcomes[buffer]] for buffer in BUFFERS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"libraries, of {', '.join(WHOLE)}; all unless named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    if unknown := set(options.names) - set(WHOLE):
        parser.error(f"expected libraries of {', '.join(WHOLE)}, got {', '.join(sorted(unknown))}")
    libraries = json.loads(options.json.read_text())["libraries"] if options.json.exists() else {}
    machine = result.machine()
    outcomes = {name: {buffer: [] for buffer in BUFFERS} for name in options.names or WHOLE}
    for number, seed in enumerate(options.seeds, 1):
        for name in outcomes:
            for buffer in BUFFERS:
                with tempfile.TemporaryDirectory() as folder:
                    outcome = run(name, buffer, [*WHOLE[name], "--seed", str(seed)], Path(folder), 3000)
                print(f"{name}, {buffer}, seed {seed}: {outcome}", flush=True)
                outcomes[name][buffer].append(outcome)
            libraries[name] = told(options.seeds[:number], outcomes[name])
            content = {
                "name": "replaced-buffers",
                "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "machine": machine,
                "command": f"python tests/examples/compare_scores.py --seeds {' '.join(map(str, options.seeds))}",
                "libraries": libraries,
            }
            result.write(options.json, content)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
