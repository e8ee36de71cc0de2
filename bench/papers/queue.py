"""`replay-server bench queue`: the runs that the papers' claims still lack, one after the other, at low priority.

    replay-server bench queue --folder runs/queue --list
    replay-server bench queue --folder runs/queue --only nitro-figure-7 minions-7

A run is done when FOLDER/NAME.json is there; it is written under another name and moved when the run has ended well.
What a run keeps on its way (cells, seeds, panels) is in FOLDER/cells/NAME, so that whoever is interrupted, also by
kill -9, goes on with the same command. A run that fails is told, and the next one begins. No timings are here: they
want a quiet machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay_server.arguments import Parser
from replay_server.bench import main as bench
from replay_server.rl.folder_lock import alone_in

FIVE = "--seeds 1 2 3 4 5"
TEN = f"{FIVE} 6 7 8 9 10"
CONTROLS = "--schemes fixed nitro decay shuffled constant --even-load"
WHOLE = 'nitro:curvature={"subset":1.0}'
ATARI = "--steps 16 --eval-every 5 --eval-episodes 10"


@dataclass(frozen=True)
class Run:
    """`words` follow `replay-server bench`; {cells} is where the run keeps what it has."""

    name: str
    claim: str
    words: str

    def command(self, folder: Path) -> list[str]:
        """The words, without --json."""
        return [word.format(cells=folder / "cells" / self.name) if "{cells}" in word else word
                for word in self.words.split()]  # fmt: skip


RUNS = (
    Run("nitro-hopper-whole", "Nitro, Figure 10: the score of all samples",
        f"scalers --folder {{cells}} --env Hopper-v5 {TEN} --even-load --schemes fixed {WHOLE}"),
    Run("nitro-figure-7", "Nitro, Figures 2 and 7: the score of all samples",
        f"scalers --figure 7 --folder {{cells}} {TEN} --subset 1"),
    Run("nitro-hopper-paper", "Nitro, Figure 10: the paper's learning rate",
        f"scalers --folder {{cells}} --env Hopper-v5 {TEN} --profile paper {CONTROLS}"),
    Run("stellaris-impact", "Stellaris: which part of it gains with IMPACT",
        f"stellaris --folder {{cells}} --env Hopper-v5 --algo impact {TEN} --learning-rates 3e-4 --other-policy-s 0 "
        "--methods stellaris no-truncation no-staleness synchronous-late"),
    *(
        Run(f"stellaris-gradient-{gradient}-step-{step}", "Stellaris: time and cost by gradient and acting time",
            f"stellaris --folder {{cells}} --env Hopper-v5 {FIVE} --learning-rates 1e-3 --gradient-s {gradient} "
            f"--agent-step-s {step} --methods stellaris no-truncation soft-sync synchronous-ahead")
        for gradient in ("0.002", "0.007", "0.02") for step in ("0.0007", "0.007")
    ),
    Run("stellaris-actors", "Stellaris: when actors begin",
        f"stellaris --folder {{cells}} --env Hopper-v5 {FIVE} --learning-rates 3e-4 --methods synchronous-ahead "
        "synchronous-late early-actors no-truncation+early-actors no-actors-ahead stellaris"),
    Run("stellaris-cartpole-delays", "Stellaris: delays on purpose",
        f"stellaris --folder {{cells}} --env CartPole-v1 --actors 8 --steps 128 --rounds 15 --setting hidden=64 {FIVE} "
        "--other-policy-s 0 --delays 0 1 3 8 --methods stellaris no-truncation no-staleness stale-synchronous"),
    Run("nitro-humanoid", "Nitro, Figure 10",
        f"scalers --folder {{cells}} --env Humanoid-v5 {FIVE} {CONTROLS}"),
    *(
        Run(f"nitro-{game.lower()}", "Nitro, Figure 10",
            f"scalers --folder {{cells}} --env ALE/{game}-v5 {FIVE} {ATARI} {CONTROLS}")
        for game in ("Qbert", "SpaceInvaders", "Gravitar")
    ),
    Run("nitro-figure-3", "Nitro, Figure 3", "scalers --figure 3 --folder {cells}"),
    Run("nitro-figure-8", "Nitro, Figure 8", "scalers --figure 8 --folder {cells}"),
    Run("nitro-figure-9", "Nitro, Figure 9", "scalers --figure 9 --folder {cells}"),
    Run("nitro-figure-11", "Nitro, Figure 11", f"scalers --figure 11 --folder {{cells}} --env Hopper-v5 {FIVE}"),
    Run("nitro-figure-16", "Nitro, Figure 16", f"scalers --figure 16 --folder {{cells}} --env Hopper-v5 {FIVE}"),
    Run("nitro-figure-18", "Nitro, Figure 18", "scalers --figure 18"),
    Run("nitro-figure-19", "Nitro, Figure 19", f"scalers --figure 19 --folder {{cells}} --env Hopper-v5 {FIVE}"),
    Run("minions-7", "MinionsRL, Figure 7", "scalers --figure minions-7"),
)  # fmt: skip


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench queue", description=__doc__)
    parser.add_argument("--folder", required=True, metavar="DIR", help="results, and what runs keep on their way")
    parser.add_argument("--list", action="store_true", help="run nothing: what there is, and what is done")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[run.name for run in RUNS], help="these alone")
    options = parser.parse_args(argv)
    runs = [run for run in RUNS if options.only is None or run.name in options.only]
    path = Path(options.folder)
    if options.list:
        for run in runs:
            done = "done" if result_of(run, path).exists() else "missing"
            say(f"{done:8} {run.name:36} {run.claim}: replay-server bench {' '.join(run.command(path))}")
        return 0
    path.mkdir(parents=True, exist_ok=True)
    with alone_in(path):
        os.nice(19)
        failed = [run.name for run in runs if not play(run, path, say)]
    if failed:
        say(f"failed: {', '.join(failed)}; the same command tries them again")
    return 1 if failed else 0


def result_of(run: Run, folder: Path) -> Path:
    return folder / f"{run.name}.json"


def play(
    run: Run, folder: Path, say: Callable[[str], None], start: Callable[[Sequence[str]], int] = bench.main
) -> bool:
    """Whether its result is there afterwards."""
    done = result_of(run, folder)
    if done.exists():
        return True
    say(f"{run.name}: {run.claim}")
    part = done.with_suffix(".part")
    try:
        status = start([*run.command(folder), "--json", str(part)])
    except SystemExit as error:  # Usage of a command that has changed.
        status = error.code
    except Exception as error:
        say(f"{run.name}: {type(error).__name__}: {error}")
        status = 1
    if status == 0 and part.exists():
        part.replace(done)
    return done.exists()
