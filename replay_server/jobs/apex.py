"""`replay-server apex`: a whole Ape-X run on one machine, from the server to the final score."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.connection import PASSWORD_VARIABLE
from replay_server.jobs.arguments import (
    add_settings,
    check_actors_for_shards,
    check_environment,
    check_host,
    check_settings,
    given_settings,
    is_loopback,
    resolve_settings,
    resumed_settings,
)
from replay_server.jobs.fork_server import ChildFailed, ask, warm_up
from replay_server.jobs.giving_way import GivingWay
from replay_server.jobs.hung_parts import Silence
from replay_server.jobs.job_cluster import JobCluster
from replay_server.jobs.job_replicas import JobReplicas
from replay_server.jobs.job_server import ADDRESS_IN_USE, JobReplay, JobServer, ReplaySaver, saves_replay
from replay_server.jobs.plan import Plan, make_plan
from replay_server.jobs.progress import View, make_view
from replay_server.jobs.record import STOP_CONDITIONS, JobRecord
from replay_server.jobs.replay_memory import fit_replay
from replay_server.jobs.supervisor import (
    EXIT_FAILED,
    EXIT_SERVER_LOST,
    ChildProcess,
    Launch,
    Part,
    PartDiverged,
    PartFailed,
    stop_parts,
)
from replay_server.learner.wandb_mirror import WandbMirror, start_wandb
from replay_server.rl.connection import LOST
from replay_server.rl.dashboard_process import DashboardProcess, start_dashboard
from replay_server.rl.environment_spec import environment_spec, told_without_limit
from replay_server.rl.interrupts import heed_interrupts, ignore_interrupts
from replay_server.rl.part_ids import hold_for_job, joined_actors
from replay_server.rl.run_directory import NOT_WRITTEN, RunDirectory, new_run_path
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import join, settings_key
from replay_server.rl.tables import apex_table

if TYPE_CHECKING:
    from replay_server.jobs.ray_part import RayActors

EXIT_ADDRESS_IN_USE = 3
EXIT_INTERRUPTED = 130
RUN_DIVERGED = "diverged"
LOOK_EVERY_S = 0.5
ANSWER_WITHIN_S = 10.0
"""A server that takes longer to answer is said to be silent."""
SOCKET_FOLDERS = "replay-server-"
LEFT_AFTER_S = 60.0
"""An empty folder for sockets that is older belongs to a job that was killed."""
STOP_GRACE_S = 2.5
"""What parts have to end in after Ctrl-C; with the server's stop it stays under 5 s."""
KILLED_AFTER_S = 600.0
"""A part that runs and has been silent for so long is killed, and started again."""
FINISH_GRACE_S = 30.0
"""What parts have to end in when nobody is waiting for the prompt."""
SAVE_WITHIN_S = 600.0
"""And what saving the replay may take."""


def main_apex(argv: list[str] | None = None) -> int:
    """Runs the job described by the command line; returns its exit code (see `ApexJob.run`), 2 for wrong usage."""
    parser = Parser(
        prog="replay-server apex",
        usage="%(prog)s [options]",
        description="Ape-X on one machine: server, actors, learner and evaluator. Ends at --minutes, --max-updates, "
        "--max-transitions or --target-score, whichever is first; without any of them, at Ctrl-C.",
    )
    add_settings(parser)
    given = given_settings(parser.parse_args(argv))
    alone = contextlib.ExitStack()
    try:
        settings, why = _settings(given)
        check_settings(settings)
        check_host(settings)
        warm_up()
        table = check_environment(settings)
        run_directory = RunDirectory(new_run_path(settings))
        run_directory.check(settings)
        memory = fit_replay(settings, table, "capacity" in given)
        # Of a resumed run, as it was begun; of one from before that was noted, the number that it had.
        actors_given = "actors" in given or (settings.resume and run_directory.measured().get("actors_given", True))
        if actors_given:
            check_actors_for_shards(settings)
        plan = make_plan(settings, actors_given)
        settings.actors = plan.actors
        run_directory.create(settings, alone)
        measured = {"actors": plan.actors, "actors_given": actors_given, "acting_ms": plan.acting_ms}
        run_directory.add_measured({**plan.execution, **measured, "gives_way": plan.gives_way})
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        return _interrupted()
    with alone:
        print(f"{settings.env} · {why} · {settings.actors} actor{'s' * (settings.actors > 1)} × "
              f"{settings.envs_per_actor} environments · "
              f"seed {settings.seed} · sticky actions {settings.sticky_actions:g}", flush=True)  # fmt: skip
        print(f"run directory {run_directory.path}", flush=True)
        for words in filter(None, (memory, plan.told())):
            print(words, flush=True)
        try:
            job = ApexJob(settings, run_directory, plan)  # takes a second
        except KeyboardInterrupt:
            return _interrupted()
        return job.run()


def _interrupted() -> int:
    print("interrupted: nothing was started", flush=True)
    return EXIT_INTERRUPTED


def _settings(given: dict[str, Any]) -> tuple[ApexSettings, str]:
    if not given.get("resume"):
        return resolve_settings(given, one_machine=True)
    settings = resumed_settings(given)
    return settings, f"profile {settings.profile} (resumed)"


class ApexJob:
    """One run: owns the server, the child processes and the run directory's summary.

    What dies is started again: parts, and the server, with the replay as it was saved last, or, where it has replicas,
    as one of them. The run directory's numbers go on over --resume: frames, transitions, restarts and minutes are of
    all sessions.
    """

    def __init__(self, settings: ApexSettings, run_directory: RunDirectory, plan: Plan) -> None:
        self.settings = settings
        self.run_directory = run_directory
        self.plan = plan
        self.parts: list[Part] = []
        self.actors: list[Part] = []
        self.ended_by = ""
        self._server: JobReplay | None = None
        self._saver: ReplaySaver | None = None
        self._client: rs.Client | None = None
        self._ray: RayActors | None = None
        self._dashboard: DashboardProcess | None = None
        self._wandb: WandbMirror | None = None
        self._record = JobRecord(settings, run_directory)
        self._server_restarts = 0
        self._giving_way: GivingWay | None = None
        self._saver_said = self._not_written = ""

    def run(self) -> int:
        """Runs until a stop condition.

        Returns 0, 1 (a part failed for good), 3 (another process has the server's address), 5 (the server failed for
        good), 130 (interrupted).
        """
        settings = self.settings
        heed_interrupts()
        title = f"{settings.env} seed {settings.seed}"
        code, final, written = 0, None, True
        sockets = _socket_folder()
        try:
            with make_view(title) as view:
                try:
                    self._start(sockets, view)
                    self._watch(view)
                except rs.ConnectionLost as error:
                    code, self.ended_by = EXIT_SERVER_LOST, "server lost"
                    view.message(f"replay server lost ({error}): stopping the run")
                except (PartFailed, rs.ReplayError, OSError) as error:
                    in_use = isinstance(error, rs.ServerError) and ADDRESS_IN_USE in str(error)
                    code = EXIT_ADDRESS_IN_USE if in_use else EXIT_FAILED
                    self.ended_by = RUN_DIVERGED if isinstance(error, PartDiverged) else "failure"
                    view.message(f"the run failed: {error}")
            print(f"ending ({self.ended_by})", flush=True)
            self._stop(FINISH_GRACE_S, SAVE_WITHIN_S)
            if code == 0:
                try:
                    final = self._final_evaluation()
                except (ChildFailed, OSError) as error:
                    code = EXIT_FAILED
                    print(f"the final games were not played to the end: {error}", flush=True)
        except KeyboardInterrupt:
            code, self.ended_by = EXIT_INTERRUPTED, "interrupted"
            print("interrupted: ending the run", flush=True)
        finally:
            ignore_interrupts()
            self.ended_by = self.ended_by or "failure"
            self._stop(STOP_GRACE_S, STOP_GRACE_S)
            shutil.rmtree(sockets, ignore_errors=True)
            self._count_restarts()
            try:
                self._record.close(self.ended_by, final)
            except OSError as error:
                code, written = code or EXIT_FAILED, False
                print(f"{NOT_WRITTEN}: {error}", flush=True)
            if self._dashboard is not None:
                self._dashboard.close()
            if self._wandb is not None:
                self._wandb.close()
        self._say_goodbye(code, written)
        return code

    # -- starting and stopping

    def _start(self, sockets: Path, view: View) -> None:
        settings = self.settings
        spec = environment_spec(settings)
        table = apex_table(settings, spec)
        host, password, launch = settings.host, os.environ.get(PASSWORD_VARIABLE) or None, ChildProcess
        if settings.actors_on != "processes":
            from replay_server.jobs.ray_part import RayActors

            self._ray = RayActors(settings.actors_on.removeprefix("ray").removeprefix(":") or None)
            launch = self._ray.launch
            if is_loopback(host):
                host, password = self._ray.host, password or self._ray.password
        options = {"host": host, "password": password}
        folder = self.run_directory.replay
        begins = (folder, settings.port, settings.checkpoint_replay != "off", settings.resume)
        if settings.shards_on != "processes":
            from replay_server.jobs.job_placed import JobPlaced

            places = (settings.shards_on, table, settings.replay_shards)
            self._server = JobPlaced(*places, *begins, options, view.message)
        elif settings.replicas:
            self._server = JobReplicas(table, settings.replicas, *begins, options, view.message)
        elif settings.replay_shards == 1:
            self._server = JobServer(table, *begins, {**options, "unix": sockets / "server.sock"}, view.message)
        else:
            self._server = JobCluster(table, settings.replay_shards, *begins, options, view.message)
        url = self._server.local_url
        self._client = rs.Client(url, connect_timeout=1.0, socket_timeout=ANSWER_WITHIN_S, reconnect_timeout=1.0)
        if settings.resume:
            self._begin_after_earlier_sessions()
        self._welcome_server(view)
        if limit := told_without_limit(settings):
            view.message(limit)
        if not is_loopback(settings.host):
            where = self._server.address_elsewhere
            view.message(f"to join from another host: {PASSWORD_VARIABLE}=… replay-server actor --server {where}")
        saves, why = saves_replay(settings, table, folder)
        view.message(why)
        if saves:
            self._saver = ReplaySaver(self._server, settings.checkpoint_replay_every_s)
        self._make_parts(launch)
        for part in self.parts:
            part.start()
        self._write_job()
        self._dashboard = start_dashboard(settings.dashboard, self.run_directory.path, self._server.url, view.message)
        self._wandb = start_wandb(settings.wandb, self.run_directory.path, view.message)

    def _make_parts(self, launch: Launch) -> None:
        """The learner, the actors and the evaluator, and what watches them. `launch` starts an actor's process."""
        assert self._server is not None
        settings = self.settings
        common = {
            "settings": dataclasses.asdict(settings),
            "server_url": self._server.local_url,
            "run_directory": str(self.run_directory.path),
        }
        logs = self.run_directory.logs
        to_learn = {**common, "part": "learner", "execution": self.plan.execution}
        to_act = {**common, "part": "actor", "gives_way": self.plan.gives_way}
        if self._ray:
            to_act["server_url"] = self._server.url
        learner = Part("learner", to_learn, logs / "learner.log", ends=True)
        self.actors = [
            Part(
                f"actor {index}",
                {**to_act, "actor_id": index},
                logs / f"actor-{index}.log",
                launch=launch,
            )
            for index in range(settings.actors)
        ]
        # An actor reports once it plays: its environments may take long to make.
        self._record.silences |= {"evaluator": Silence(), **{a.name: Silence(from_start=False) for a in self.actors}}
        if self.plan.gives_way:
            self._giving_way = GivingWay(self.actors)
        evaluator = Part("evaluator", {**common, "part": "evaluator"}, logs / "evaluator.log")
        self.parts = [learner, *self.actors, evaluator]

    def _begin_after_earlier_sessions(self) -> None:
        """Keeps of what the server brought back the table alone: reports, messages and weights are of earlier parts."""
        assert self._client is not None
        table = self.settings.table
        self._client.redis.flushall()
        self._client.redis.execute_command("WEIGHTS.DEL", table)
        self._record.observer.begin_after(self._client)

    def _welcome_server(self, view: View) -> None:
        """Joins a server that has begun, and says where it is and what it holds."""
        assert self._server is not None
        assert self._client is not None
        settings = self.settings
        hold_for_job(self._client, settings.table, settings.actors)
        # A server that died before it saved comes back with the settings of an earlier session.
        self._client.redis.delete(settings_key(settings.table))
        join(self._client, settings, environment_spec(settings), self.run_directory.session)
        self._client.open_table(settings.table)
        size = int(self._client.info(settings.table)["size"])
        held = f" with a replay of {size} transitions" if size else ""
        view.message(f"server {self._server.address} ({self._server.processes}){held}")

    def _write_job(self) -> None:
        """Says where the job runs and how its processes are, where that has changed."""
        assert self._server is not None
        parts = [{"name": part.name, "running": part.running, "restarts": part.restarts} for part in self.parts]
        self.run_directory.write_job("apex", self._server.primary_url, parts)

    def _stop(self, grace_s: float, save_within_s: float) -> None:
        """Ends parts, then the server; a second call ends what an interrupt of the first left, or nothing.

        Meanwhile the replay is saved, if that can be done in time.
        """
        began = time.monotonic()
        if self._saver is not None:
            self._saver.save_last()
        if self._giving_way is not None:
            self._giving_way.end()  # they have little time
        killed = stop_parts(self.parts, grace_s)
        if killed:
            print(f"did not end in time, and were killed: {', '.join(killed)}", flush=True)
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._write_job()
        if self._saver is not None:
            self._saver.wait(max(0.0, began + save_within_s - time.monotonic()))
            self._saver.close()
            self._saver_said = self._saver.told()
            self._saver = None
        if self._client is not None:
            if self._server is not None and self._server.running:
                with contextlib.suppress(rs.ReplayError, RedisError, *LOST):
                    self._end_joined(self._client, began + grace_s)
            if self.ended_by in (*STOP_CONDITIONS, RUN_DIVERGED):
                # What the parts reported last. Nobody waits for the prompt, and the server is well.
                with contextlib.suppress(rs.ReplayError, RedisError, OSError, *LOST):
                    self._look(print)
            self._client.close()
            self._client = None
        if self._server is not None:
            self._server.stop(1.5)
            self._server = None
        if self._ray is not None:
            self._ray.close()
            self._ray = None

    def _end_joined(self, client: rs.Client, deadline: float) -> None:
        """Tells actors that have joined from elsewhere that the job is over, and waits for them until `deadline`."""
        table, own = self.settings.table, self.settings.actors
        client.close_table(table, f"the job ended ({self.ended_by or 'interrupted'})")
        while joined_actors(client, table, own) and time.monotonic() < deadline:
            time.sleep(0.05)

    # -- watching

    def _watch(self, view: View) -> None:
        """Returns when a stop condition is met, with `ended_by` naming it.

        Raises PartFailed, and ConnectionLost where the server ends too often.
        """
        assert self._server is not None
        is_new = False
        while not self.ended_by:
            time.sleep(LOOK_EVERY_S)
            if self._server.watch():
                self._server_restarts += 1
                is_new = True
            if is_new:
                with self._server.look(LOST):
                    self._welcome_server(view)
                    is_new = False
            for part in self.parts:
                code = part.watch()
                if code == 0 and part.ends:
                    self.ended_by = "max_updates"
                elif code:
                    view.message(f"{part.name} ended ({code}): starting it again; log in {part.log}")
            if self._giving_way is not None and (news := self._giving_way.look()):
                view.message(news)
            self._look_and_write(view.message)
            while self._saver is not None and self._saver.news:
                view.message(self._saver.news.popleft())
            view.show(self._record.snapshot)
            self.ended_by = self._record.met_condition() or self.ended_by

    def _look_and_write(self, say: Callable[[str], None]) -> None:
        """A full disk, which may have room again, is said once, and does not end the run."""
        assert self._server is not None
        try:
            with self._server.look(LOST):
                self._look(say)
            self._write_job()
            if self._record.write_row_if_due():
                self._not_written = ""
                if self._wandb is not None:
                    self._wandb.poll()
        except OSError as error:
            if str(error) != self._not_written:
                self._not_written = str(error)
                say(f"{NOT_WRITTEN}: {error}")

    def _look(self, say: Callable[[str], None]) -> None:
        """Brings the record up to date: what the server knows, and how the job's own processes are."""
        assert self._client is not None
        self._count_restarts()
        self._record.look(self._client, say, {part.name: part.running for part in self.parts})
        for index, part in enumerate(self.actors):
            actor = self._record.snapshot.actors[index]
            actor.restarts, actor.alive = part.restarts, actor.alive and part.running
        for part in self.parts:
            silence = self._record.silences[part.name]
            if silence.silent_s >= KILLED_AFTER_S:
                say(f"{part.name} {silence.told()}: killing it; log in {part.log}")
                silence.silent_s = 0.0
                part.kill()

    def _count_restarts(self) -> None:
        """The job knows them by itself, also while no server answers."""
        earlier = int(self._record.observer.earlier["restarts"])
        own = self._server_restarts + sum(part.restarts for part in self.parts)
        self._record.snapshot.restarts = earlier + own

    # -- what stays

    def _final_evaluation(self) -> dict[str, Any] | None:
        if self.settings.final_episodes < 1:
            return None
        print(self._record.final_games(), flush=True)
        question = {"settings": dataclasses.asdict(self.settings), "run_directory": str(self.run_directory.path)}
        log = self.run_directory.logs / "final-games.log"
        try:
            return ask("final games", "replay_server.jobs.evaluation", question, log)
        except ChildFailed as error:
            raise ChildFailed(f"{error}; log in {log}") from None

    def _say_goodbye(self, code: int, written: bool) -> None:
        summary = json.loads(self.run_directory.summary.read_text()) if written else None
        if summary and summary["eval_mean"] is not None:
            print(
                f"score {summary['eval_mean']:.1f} ± {summary['eval_std']:.1f} over {summary['eval_episodes']} games "
                f"({summary['checkpoint']}, step {summary['checkpoint_step']})"
            )
        saved = self.run_directory.saved_steps()
        newest = self.run_directory.checkpoints / f"step_{saved[-1]}" if saved else None
        where = f"newest checkpoint {newest}" if newest else "no checkpoint yet"
        what = f"summary {self.run_directory.summary}" if written else ""
        for words in filter(None, (what, where, self._saver_said)):
            print(words, flush=True)
        go_on = f"replay-server apex --resume --logdir {self.run_directory.path}"
        if self.ended_by == RUN_DIVERGED:
            rate = self.settings.learning_rate
            print(
                "With the same settings it would diverge again. Look for NaN and very large numbers in rewards and "
                f"observations; then go on with a lower learning rate than {rate:g}, or with bounded rewards: "
                f"{go_on} --learning-rate {rate / 4:g} --reward-clip 1",
                flush=True,
            )
        elif code and saved:
            print(f"go on with: {go_on}", flush=True)


def _socket_folder() -> Path:
    """A folder of mode 700 for the server's socket. Removes empty ones that jobs left which were killed.

    A socket's path has at most 107 bytes, and its name in here takes 35 of them.
    """
    parent = Path("/tmp" if len(os.fsencode(tempfile.gettempdir())) > 107 - 35 else tempfile.gettempdir())
    for left in parent.glob(f"{SOCKET_FOLDERS}*"):
        # A job that is starting has an empty one, too, for a moment.
        with contextlib.suppress(OSError):
            if left.stat().st_uid == os.getuid() and time.time() - left.stat().st_mtime > LEFT_AFTER_S:
                left.rmdir()
    return Path(tempfile.mkdtemp(prefix=SOCKET_FOLDERS, dir=parent))


if __name__ == "__main__":
    sys.exit(main_apex())
