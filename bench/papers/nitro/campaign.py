"""All cells of a comparison, in an order in which each finds what it needs, and never one twice.

    fixed-16, all seeds → target and budget → Nitro → its controls, and the others, seed by seed

A folder holds one comparison: ``settings.json``, ``ENV/SCHEME/seed-N.json``, ``ENV/target.json``. Whatever ends it,
even a kill, leaves whole cells; the same command goes on with those that are missing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from replay_server.bench.papers.nitro.cell import (
    Cell,
    CellName,
    JobSettings,
    Target,
    lambda_clock,
    on_stage,
    run_cell,
    train_settings,
)
from replay_server.bench.papers.nitro.load import at_even_load, usual_acting_s
from replay_server.bench.papers.nitro.measures import target_of
from replay_server.bench.papers.nitro.scheme import BOOSTED, WORKERS, Scheme
from replay_server.rl.folder_lock import alone_in
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.run_directory import write_json
from replay_server.serverless.backends.backend import Platform
from replay_server.serverless.backends.process import ProcessPlatform
from replay_server.serverless.orchestrator import Progress
from replay_server.serverless.prices import PriceError
from replay_server.serverless.settings import algorithm_settings, check_settings

FIXED = Scheme("fixed")
"""What sets the target."""
USUAL_SHARE = 0.45
"""Of I_max, that a scheme whose counts are not known yet is reckoned to ask for."""
TELL_EVERY_S = 30.0
"""Between two lines of progress within cells."""


class Campaign:
    """The cells of some schemes on some environments with some seeds, in a folder.

    Schemes that others need are added: fixed for the target, Nitro for its controls.

    With `even_load` cells are told with the times they would have had on an evenly busy machine
    (`replay_server.bench.papers.nitro.load`); what is kept, the target and the budget stay as they are.

    Raises ValueError where the folder holds a comparison with other settings, or a scheme cannot be had.
    """

    def __init__(
        self,
        folder: Path,
        job: JobSettings,
        environments: Sequence[str],
        schemes: Sequence[Scheme],
        seeds: Sequence[int],
        even_load: bool = False,
    ) -> None:
        self.folder, self.job, self.even_load = folder, job, even_load
        self.environments, self.seeds = list(dict.fromkeys(environments)), list(dict.fromkeys(seeds))
        self._usual: dict[str, float] = {}
        self.schemes = list(dict.fromkeys(schemes))
        self._check_job()
        self._check_learner()
        self._check_schemes()
        self._check_settings()  # At last, since it leaves a file: nothing of what is refused is to stay.

    def cells(self) -> list[CellName]:
        """All that are to be trained, in their order."""
        trained = list(dict.fromkeys(each.trained for each in self.schemes))
        if any(each.needs_boosted for each in trained):
            trained.insert(0, Scheme(BOOSTED))
        trained = [each for each in dict.fromkeys(trained) if each != FIXED]
        return [
            *(CellName(env, FIXED, seed) for env in self.environments for seed in self.seeds),
            *(CellName(env, scheme, seed) for env in self.environments for seed in self.seeds for scheme in trained),
        ]

    def missing(self) -> list[CellName]:
        return [each for each in self.cells() if not each.path(self.folder).exists()]

    def read(self, env: str, scheme: Scheme, seed: int) -> Cell | None:
        """On the scheme's stage; None while it is missing."""
        path = CellName(env, scheme, seed).path(self.folder)
        if not path.exists():
            return None
        cell = Cell.read(path)
        if (cell.env, cell.scheme, cell.seed) != (env, scheme.trained_name, seed):
            # Names of files leave out what no file can be called by: policy=a/b and policy=a-b have the same.
            raise ValueError(
                f"{path} is of {cell.env} {cell.scheme} seed {cell.seed}, not of {env} {scheme.trained_name} seed "
                f"{seed}: give another --folder"
            )
        return on_stage(cell, scheme, self.job)

    def of(self, env: str, scheme: Scheme) -> list[Cell]:
        """Those that are there, in the order of the seeds."""
        if not self.even_load:
            return [cell for seed in self.seeds if (cell := self.read(env, scheme, seed)) is not None]
        usual_s = self._usual_acting_s(env)
        return [
            on_stage(at_even_load(cell, usual_s, self.job), scheme, self.job)
            for seed in self.seeds
            if (cell := self.read(env, scheme.trained, seed)) is not None
        ]

    def _usual_acting_s(self, env: str) -> float:
        if env not in self._usual:
            names = [each for each in self.cells() if each.env == env]
            found = [self.read(env, each.scheme, each.seed) for each in names]
            self._usual[env] = usual_acting_s([each for each in found if each is not None])
        return self._usual[env]

    def target(self, env: str) -> Target | None:
        """J and B; kept when all of fixed-16's cells are there, and from then on as they were. None before."""
        path = CellName(env, FIXED, 0).path(self.folder).parent.parent / "target.json"
        if path.exists():
            try:
                values = json.loads(path.read_text())
                return Target(values["score"], math.inf if values["budget"] is None else values["budget"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}: expected a target and a budget: {error!r}; delete it to make it anew"
                ) from None
        fixed = [cell for seed in self.seeds if (cell := self.read(env, FIXED, seed)) is not None]
        if len(fixed) < len(self.seeds):
            return None
        found = target_of(fixed)
        kept = {"score": found.score, "budget": found.budget if math.isfinite(found.budget) else None,
                "seeds": self.seeds}  # fmt: skip
        write_json(path, kept)
        return found

    def run(self, lanes: int = 1, say: Callable[[str], None] = print, platform: Platform | None = None) -> list[str]:
        """Trains what is missing, `lanes` cells at a time; the failures of cells, each in a sentence.

        A cell that fails leaves out those that need it; the others go on. RuntimeError where another process is at work
        in the folder.
        """
        with alone_in(self.folder):
            return _Run(self, lanes, say, platform).run()

    def _check_job(self) -> None:
        """ValueError for settings that no cell can have: now, and not in each cell."""
        job = self.job
        if job.actors > job.actors_max:
            raise ValueError(f"expected at most --actors-max {job.actors_max} actors of fixed, got {job.actors}")
        if job.final_episodes < 1 or job.memory_mb < 1:
            numbers = f"{job.final_episodes} and {job.memory_mb}"
            raise ValueError(f"expected at least 1 of --final-episodes and --memory-mb, got {numbers}")
        if min(self.seeds) < 0:
            raise ValueError(f"expected seeds of at least 0, got {min(self.seeds)}")
        settings = train_settings(CellName(self.environments[0], FIXED, self.seeds[0]), job, "")
        check_settings(settings)
        algorithm_settings(settings)
        try:
            lambda_clock(job)
        except PriceError as error:
            raise ValueError(str(error)) from None

    def _check_schemes(self) -> None:
        """ValueError for options that a scheme does not take: now, and not when its turn has come."""
        needed = [Scheme(BOOSTED)] if any(each.needs_boosted for each in self.schemes) else []
        for scheme in dict.fromkeys([*needed, *self.schemes]):
            name = CellName(self.environments[0], scheme, self.seeds[0])
            settings = dataclasses.replace(train_settings(name, self.job, ""), target_score=1.0, budget=1.0)
            try:
                scheme.scaler(settings, [max(1, self.job.actors_max // 2)] * self.job.rounds)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{scheme}: {error}") from error

    def _check_learner(self) -> None:
        """ValueError for a job that RLlib cannot learn, and for workers of RLlib's where it is not to."""
        for scheme in self.schemes:
            if scheme.name == WORKERS and (self.job.learner is None or scheme.stage):
                raise ValueError(f"{scheme}: RLlib's own workers need --learner rllib, and are on reserved machines")
            if scheme.name == WORKERS and self.even_load:
                raise ValueError(f"{scheme}: RLlib's own workers have another clock: leave --even-load away")
        if self.job.learner is not None:
            from replay_server.bench.papers.nitro.rllib.learner import check_rllib

            for env in self.environments:
                settings = algorithm_settings(train_settings(CellName(env, FIXED, self.seeds[0]), self.job, ""))
                check_rllib(settings, policy_spec(settings))

    def _check_settings(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "settings.json"
        values = json.loads(json.dumps(dataclasses.asdict(self.job)))
        if not path.exists():
            write_json(path, values)
            return
        try:
            kept = dict(json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected the settings of a comparison: {error}; give another --folder") from None
        other = sorted(name for name in {*kept, *values} if kept.get(name) != values.get(name))
        if other:
            raise ValueError(
                f"{path} has other settings ({', '.join(f'{name}={kept.get(name)}' for name in other)}): a comparison "
                "has the same for all its cells; give another --folder, or these"
            )


def own_platform(job: JobSettings) -> Platform:
    """Processes of this machine; where RLlib learns, its process is among them. RuntimeError where it is not there."""
    if job.learner is None:
        return ProcessPlatform()
    from replay_server.bench.papers.nitro.rllib.platform import RllibPlatform

    return RllibPlatform(ProcessPlatform())


class _Run:
    """One session at a campaign."""

    def __init__(self, campaign: Campaign, lanes: int, say: Callable[[str], None], platform: Platform | None) -> None:
        self._campaign, self._lanes, self._say = campaign, lanes, say
        self._given = platform
        self._pending = campaign.missing()
        self._all = len(campaign.cells())
        self._failures: list[str] = []
        self._began = self._told = time.monotonic()
        self._weight_done = 0.0
        self._progress: dict[CellName, int] = {}
        self._lock = threading.Lock()

    def run(self) -> list[str]:
        if not self._pending:
            return []
        self._say(f"{len(self._pending)} of {self._all} cells to train, {self._lanes} at a time")
        platform = self._given or own_platform(self._campaign.job)
        threads = ThreadPoolExecutor(self._lanes)
        running: dict[Future[Cell], CellName] = {}
        try:
            self._warm_up(threads, platform)
            while self._pending or running:
                while len(running) < self._lanes and (name := self._next()) is not None:
                    running[threads.submit(self._train, name, platform)] = name
                if not running:
                    break
                done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    self._finish(running.pop(future), future)
                self._tell_between()
        finally:
            # What still runs fails with its platform, and leaves nothing.
            if self._given is None:
                platform.close()
            threads.shutdown(wait=True, cancel_futures=True)
        for name in self._pending:
            self._failures.append(f"{name}: what it needs is missing")
        return self._failures

    def _warm_up(self, threads: ThreadPoolExecutor, platform: Platform) -> None:
        """One round on each lane that counts for nothing: its functions import and make what they need only once."""
        campaign = self._campaign
        job = dataclasses.replace(campaign.job, rounds=1, steps=16, actors=1, eval_every=0, final_episodes=1)
        name = CellName(self._pending[0].env, FIXED, 0)
        wait([threads.submit(run_cell, name, job, platform) for _ in range(self._lanes)])
        self._began = time.monotonic()

    def _next(self) -> CellName | None:
        """The first that has what it needs."""
        for name in self._pending:
            if self._ready(name):
                self._pending.remove(name)
                return name
        return None

    def _ready(self, name: CellName) -> bool:
        campaign, scheme = self._campaign, name.scheme
        if scheme == FIXED:
            return True
        if campaign.target(name.env) is None:
            return False
        return not scheme.needs_boosted or CellName(name.env, Scheme(BOOSTED), name.seed).path(campaign.folder).exists()

    def _train(self, name: CellName, platform: Platform) -> Cell:
        campaign, scheme = self._campaign, name.scheme
        target = campaign.target(name.env) if scheme.needs_target else None
        boosted = campaign.read(name.env, Scheme(BOOSTED), name.seed) if scheme.needs_boosted else None

        def told(number: int) -> None:
            with self._lock:
                self._progress[name] = number

        if scheme.name == WORKERS:
            from replay_server.bench.papers.nitro.rllib.workers import run_workers_cell

            cell = run_workers_cell(name, campaign.job, told)
            cell.write(name.path(campaign.folder))
            return cell

        def on_round(progress: Progress) -> None:
            told(progress.round)

        cell = run_cell(
            name, campaign.job, platform, target=target, boosted=boosted.counts if boosted else None, on_round=on_round
        )
        cell.write(name.path(campaign.folder))
        return cell

    def _finish(self, name: CellName, future: Future[Cell]) -> None:
        with self._lock:
            self._progress.pop(name, None)
        try:
            cell = future.result()
        except Exception as error:
            self._failures.append(f"{name}: {type(error).__name__}: {error}")
            self._say(self._failures[-1])
            return
        self._weight_done += cell.actors
        self._say(
            f"[{self._all - len(self._campaign.missing())}/{self._all}] {name}: reward {cell.final:.0f}, "
            f"{cell.actors} actors, {cell.elapsed_s[-1]:.1f} s and ${cell.cost[-1]:.5f} simulated, "
            f"{cell.wall_s:.0f} s here; {self._left()}"
        )

    def _tell_between(self) -> None:
        now = time.monotonic()
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        with self._lock:
            at = ", ".join(f"{name} round {number}" for name, number in self._progress.items())
        self._say(f"  {at or 'starting'}; {self._left()}")

    def _left(self) -> str:
        """How long the rest will take, by what actors have taken so far."""
        job = self._campaign.job
        with self._lock:
            under_way = {name: number / job.rounds for name, number in self._progress.items()}
        done = self._weight_done + sum(share * self._weight(name) for name, share in under_way.items())
        left = sum(self._weight(name) * (1.0 - under_way.get(name, 0.0)) for name in (*self._pending, *under_way))
        if not done:
            return "time left not known yet"
        seconds = (time.monotonic() - self._began) / done * left
        return f"{seconds / 3600:.1f} h left" if seconds > 5400 else f"{seconds / 60:.0f} min left"

    def _weight(self, name: CellName) -> float:
        """Actors that a cell is thought to have: what its time grows with."""
        job = self._campaign.job
        if name.scheme.name in ("fixed", "max", WORKERS):
            return float(job.rounds * (job.actors_max if name.scheme.name == "max" else job.actors))
        return USUAL_SHARE * job.rounds * job.actors_max
