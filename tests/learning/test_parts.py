"""`replay-server learner`, `actor` and `evaluator`: what each takes, what it says, and how they end together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_program import ForkedProgram

pytest.importorskip("torch")

import replay_server as rs
from replay_server.actors.envs import make_environments
from replay_server.actors.rollout import run_actor
from replay_server.jobs.evaluation import final_evaluation, run_evaluations
from replay_server.jobs.parts import main_actor, main_evaluator, main_learner
from replay_server.jobs.record import JobRecord
from replay_server.learner.loop import run_learner
from replay_server.learner.metrics import read_metrics
from replay_server.learner.replay_algorithms import make_learner
from replay_server.learner.replay_learner import choose_device
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.folder_lock import alone_in
from replay_server.rl.networks import make_network
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import OWN, SHARED, may_differ, settings_of_run

PARTS = {"learner": main_learner, "actor": main_actor, "evaluator": main_evaluator}

# Of each setting: L the learner, A the actor, E the evaluator reads it. All of them take, on their command lines, those
# that are the run's, and the learner all but the job's; the others are refused.
READ_BY = {
    "env": "LAE", "algo": "LAE", "profile": "L", "seed": "LAE", "actors": "LA", "actors_on": "", "envs_per_actor": "LA",
    "minutes": "L", "max_updates": "L", "max_transitions": "L", "target_score": "L", "target_evaluations": "L",
    "sticky_actions": "LAE", "frame_stack": "LAE", "noop_max": "AE", "episodic_life": "A", "fire_on_reset": "AE",
    "reward_clip": "A", "max_frames_per_episode": "A", "n_step": "LA", "discount": "LA", "epsilon_base": "A",
    "epsilon_exponent": "A", "priority_exponent": "LA", "importance_sampling_exponent": "L",
    "priority_epsilon": "LA", "prioritized": "LA", "loss": "LAE", "value_bins": "LAE",
    "value_limit": "LAE", "hidden": "LAE", "network": "LAE", "table": "LAE",
    "convolutions": "LAE", "initial_temperature": "L", "target_entropy": "L",
    "capacity": "LA", "min_size_to_sample": "LAE", "batch_size": "LA", "samples_per_insert": "LA",
    "samples_per_insert_end": "L", "samples_per_insert_end_updates": "L",
    "compression": "LA", "push_every": "LA", "optimizer": "L", "learning_rate": "L", "learning_rate_end": "L",
    "learning_rate_decay_updates": "L", "optimizer_epsilon": "L", "rmsprop_decay": "L", "gradient_norm": "L",
    "target_update_every": "L", "target_mix": "L", "publish_every": "L", "pull_every_frames": "A", "precision": "L",
    "device": "L", "learner_threads": "L", "targets_ahead": "L", "prefetch": "L", "checkpoint_every_s": "L",
    "checkpoints_kept": "L", "average_updates": "L",
    "eval_every_updates": "E", "eval_episodes": "E", "eval_epsilon": "E", "eval_max_frames_per_episode": "E",
    "final_episodes": "E", "dashboard": "",
    "wandb": "L", "logdir": "LE", "resume": "LE", "host": "", "port": "", "checkpoint_replay": "",
    "checkpoint_replay_every_s": "", "replay_shards": "", "shards_on": "", "replicas": "",
}  # fmt: skip
# Read where the command line is, before the part's own work: what a run is called and where it is kept.
BY_THE_COMMAND = {"profile", "logdir", "resume", "wandb"}


def taken_by(part: str) -> set[str]:
    return {"table", *SHARED, *may_differ(part)}


@pytest.mark.parametrize("part", PARTS)
def test_every_setting_is_offered_by_the_parts_that_take_it_and_refused_by_the_others(part, capsys):
    assert {field.name for field in dataclasses.fields(ApexSettings)} == set(READ_BY), "say who reads the new one"
    with pytest.raises(SystemExit):
        PARTS[part](["--help"])
    help_text = capsys.readouterr().out
    wrong = []
    for name in READ_BY:
        flag = "--" + name.replace("_", "-")
        offered = re.search(rf"^  {flag}\b(?!-)", help_text, re.MULTILINE) is not None
        if offered != (name in taken_by(part)):
            wrong.append(name)
        if offered:
            continue
        for given in ([flag, "1"], [f"{flag}=1"], [flag]):
            with pytest.raises(SystemExit) as ended:
                PARTS[part](["--server", "redis://127.0.0.1:1", *given])
            said = capsys.readouterr().err
            assert (ended.value.code, f"{flag}: the {part} does not use it; " in said) == (2, True), said
    assert wrong == []


class Reads:
    """Which settings a part has read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def settings(self, **values: Any) -> ApexSettings:
        names = self.names

        class Recorded(ApexSettings):
            def __getattribute__(self, name: str) -> Any:
                names.add(name)
                return super().__getattribute__(name)

        made = Recorded(**values)
        names.clear()
        return made


SMALL = {
    "env": "CartPole-v1", "profile": "cartpole", "actors": 1, "envs_per_actor": 2, "hidden": 16, "batch_size": 32,
    "min_size_to_sample": 100, "capacity": 1000, "n_step": 2, "push_every": 10, "learner_threads": 1,
    "eval_every_updates": 20, "eval_episodes": 1, "final_episodes": 1, "optimizer": "rmsprop",
    "samples_per_insert": 8.0, "samples_per_insert_end": 4.0, "target_update_every": 5,
    "learning_rate_end": 1e-5, "learning_rate_decay_updates": 10,
}  # fmt: skip


def read_of_screens(reads: Reads, plays: bool) -> None:
    """The settings of screens are read where environments of Atari are made, those of bins where they are learned."""
    settings = reads.settings(env="ALE/Pong-v5", loss="hl-gauss")
    make_network(settings, environment_spec(settings))
    if plays:
        make_environments(settings, 1, np.random.SeedSequence(1)).close()


def learn_numbers(reads: Reads) -> None:
    """The settings of SAC are read where actions are continuous."""
    settings = reads.settings(env="Pendulum-v1")
    make_learner(settings, environment_spec(settings), choose_device("cpu"))


def test_every_setting_is_read_by_the_parts_whose_own_it_is_and_those_of_the_run_by_some_part(tmp_path):
    for name, parts in READ_BY.items():
        of_job = name in OWN["job"]
        assert (parts == "") == of_job, name
        assert all(part[0].upper() in parts for part in PARTS if name in OWN[part]), name
    pytest.importorskip("ale_py")
    read = {part: Reads() for part in PARTS}
    folders = {part: RunDirectory(tmp_path / part) for part in PARTS}
    stop = threading.Event()
    with rs.Server() as server, rs.Client(server.url) as client:
        # Not recorded: writing config.json reads all of them.
        for folder in folders.values():
            folder.create(ApexSettings(**SMALL))
        learning = read["learner"].settings(**SMALL, max_updates=60)
        acting = read["actor"].settings(**SMALL)
        playing = read["evaluator"].settings(**SMALL)
        ending = contextlib.suppress(rs.TableClosed)

        def run(work: Callable[[], Any]) -> None:
            with ending:
                work()

        evaluator = folders["evaluator"].path
        threads = [
            threading.Thread(target=run, args=(work,), daemon=True)
            for work in (
                functools.partial(run_actor, acting, server.url, 0, stop),
                functools.partial(run_evaluations, playing, server.url, evaluator, stop),
            )
        ]
        for thread in threads:
            thread.start()
        record = JobRecord(learning, folders["learner"])
        run_learner(learning, server.url, folders["learner"].path, stop)
        record.look(client, print)
        assert record.met_condition() == ""
        record.close("", None)
        client.close_table("apex")
        for thread in threads:
            thread.join(LONGEST_S)
            assert not thread.is_alive()
        final_evaluation(playing, evaluator)
        seen = JobRecord(playing, folders["evaluator"])
        seen.look(client, print)
        seen.close("", None)
    for part, reads in read.items():
        kinds = [learn_numbers] if part == "learner" else []
        for of_other_kind in (functools.partial(read_of_screens, plays=part != "learner"), *kinds):
            before = set(reads.names)
            of_other_kind(reads)
            reads.names |= before
        expected = {name for name, by in READ_BY.items() if part[0].upper() in by}
        unread = expected - reads.names - BY_THE_COMMAND
        assert unread == set(), part


# ---- real processes --------------------------------------------------------------------------------------------------

RUN = [
    "--env", "CartPole-v1", "--actors", "1", "--hidden", "16", "--min-size-to-sample", "200", "--envs-per-actor", "2",
    "--samples-per-insert", "8", "--batch-size", "32", "--push-every", "10", "--publish-every", "5",
    "--precision", "float32", "--learner-threads", "1",
    "--eval-every-updates", "20", "--eval-episodes", "1", "--final-episodes", "2",
]  # fmt: skip
"""What the learner is told, and it alone: the others have the URL."""
LONGEST_S = 600.0
"""It only ends a test that hangs: a loaded machine takes many times as long as a quiet one."""


class Part:
    """One part in a process of its own, with what it prints in a file; `as_typed`: as a shell would start it."""

    def __init__(
        self,
        folder: Path,
        url: str,
        part: str,
        *words: str,
        log: str = "",
        told: bool = True,
        as_typed: bool = False,
    ) -> None:
        self.run = folder / f"{part}-run"
        self.output = folder / f"{log or part}.log"
        logdir = ["--logdir", str(self.run)] if part != "actor" else []
        given = ["--server", url, *(RUN if part == "learner" and told else []), *logdir, *words]
        if not as_typed:
            self.process = ForkedProgram([part, *given], folder, self.output)
            return
        with open(self.output, "ab") as output:
            command = [sys.executable, "-m", "replay_server", part, *given]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + LONGEST_S
        while words not in self.text:
            assert time.monotonic() < deadline, f"no {words!r} in time:\n{self.text}"
            assert self.process.poll() is None or words in self.text, self.text
            time.sleep(0.05)

    def summary(self) -> dict[str, Any]:
        return json.loads((self.run / "summary.json").read_text())


@pytest.fixture
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running


@pytest.fixture
def start(server, tmp_path) -> Iterator[Callable[..., Part]]:
    started: list[Part] = []

    def make(part: str, *words: str, **how: Any) -> Part:
        started.append(Part(tmp_path, server.url, part, *words, **how))
        return started[-1]

    yield make
    for part in started:
        part.process.kill()
        part.process.wait()


def wait_until_it_learns(client: rs.Client, learner: Part) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not client.redis.hexists("apex:learner", "updates"):
        assert time.monotonic() < deadline, learner.text
        assert learner.process.poll() is None, learner.text
        time.sleep(0.05)


def progress_lines(part: Part) -> list[str]:
    return re.findall(
        r"^.*frames \d+ .* transitions \d+ .* updates \d+ .* weights \d+ updates old.*$", part.text, re.MULTILINE
    )


@pytest.mark.parametrize(
    "words",
    [
        "--minutes 0.05",
        "--max-updates 30",
        "--max-transitions 900",
        "--target-score 1 --target-evaluations 2",
        "--max-updates 30 --env Pendulum-v1",
    ],
)
def test_a_job_ends_at_the_learners_limit_with_all_its_parts(start, server, words):
    actor, evaluator, learner = start("actor"), start("evaluator"), start("learner", *words.split())
    condition = words.split()[0][2:].replace("-", "_")
    assert learner.wait() == 0, learner.text
    assert f"ending ({condition}): table apex is closed" in learner.text
    assert actor.wait() == 0, actor.text
    assert f"actor 0 ends: table 'apex' is closed: the learner ended ({condition})" in actor.text
    assert evaluator.wait() == 0, evaluator.text
    summary = learner.summary()
    assert summary["ended_by"] == condition
    if condition == "max_updates":
        assert summary["updates"] == 30
    if condition == "max_transitions":
        assert summary["transitions"] >= 900
    if condition == "minutes":
        assert summary["minutes"] >= 0.05
    if condition == "target_score":
        assert len(summary["evaluations"]) >= 2
        assert read_metrics(learner.run, "evaluation")
    # The evaluator has played with the last weights, whenever the learner ended.
    scores = evaluator.summary()
    assert (scores["ended_by"], scores["eval_episodes"]) == ("table closed", 2)
    assert scores["evaluations"][-1]["version"] == summary["updates"]
    assert [row["version"] for row in read_metrics(evaluator.run, "evaluation")][-1] == summary["updates"]
    assert "evaluation after" in evaluator.text
    assert f"updates {summary['updates']} " in progress_lines(learner)[-1]
    assert progress_lines(actor), actor.text
    with rs.Client(server.url) as client:
        assert client.info("apex")["closed"]


def hang_up_on(path: Path, part: Part, times: int) -> None:
    """A server that is about to start: it listens, and ends each connection at once."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(1.0)
        deadline = time.monotonic() + LONGEST_S
        while times:
            assert part.process.poll() is None, part.text
            assert time.monotonic() < deadline, part.text
            with contextlib.suppress(TimeoutError):
                listening.accept()[0].close()
                times -= 1
    path.unlink()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_waits_for_a_server_that_is_started_after_it(tmp_path, part):
    path = tmp_path / "late"
    early = Part(tmp_path, f"unix://{path}", part)
    try:
        hang_up_on(path, early, 8)  # more often than any client tries by itself
        assert not early.run.exists(), "before there is a server it leaves no run directory"
        with rs.Server(unix=path):
            early.wait_for("no run yet: waiting" if part != "learner" else "learner waits: too few items")
            early.process.send_signal(signal.SIGINT)
            assert early.wait() == 130, early.text
    finally:
        early.process.kill()
        early.process.wait()


@pytest.mark.parametrize("part", ["learner", "evaluator"])
def test_a_part_that_never_reached_its_server_leaves_no_run_directory(tmp_path, part):
    lost = Part(tmp_path, f"unix://{tmp_path}/none", part)
    hang_up_on(tmp_path / "none", lost, 1)
    lost.process.send_signal(signal.SIGTERM)
    assert lost.wait() == 130, lost.text
    assert not lost.run.exists()


@pytest.mark.parametrize("part", ["learner", "evaluator"])
def test_a_part_does_not_write_to_a_folder_where_another_process_is_at_work(start, server, tmp_path, part):
    if part == "evaluator":
        with rs.Client(server.url) as client:
            wait_until(lambda: settings_of_run(client, {}) is not None, start("learner"))
    folder = tmp_path / f"{part}-run"
    folder.mkdir()
    with alone_in(folder):
        refused = start(part)
        assert refused.wait() == 2
    assert f"{folder}: another process is at work in it: end that, or give another --logdir" in refused.text
    assert not (folder / "config.json").exists()


def test_a_learner_counts_nothing_of_a_run_whose_table_was_dropped(start, server):
    with rs.Client(server.url) as client:
        evaluation = {"version": 1, "score_mean": 500.0, "score_std": 0.0, "score_min": 500.0, "score_max": 500.0}
        client.redis.rpush("apex:evaluations", json.dumps({**evaluation, "episodes": 1}))
        client.redis.hset("apex:actor:0", mapping={"frames": 5000, "started_at": 1.0, "updated_at": 2.0})
    limits = ["--minutes", "0.0001", "--target-score", "499", "--target-evaluations", "1"]
    learner = start("learner", *limits)
    learner.wait_for("learner waits: too few items")
    learner.process.send_signal(signal.SIGINT)
    assert learner.wait() == 130, learner.text
    assert learner.summary()["ended_by"] == "interrupted"


def test_a_learner_that_ctrl_c_ends_closes_the_table_and_a_new_one_opens_it(start, server):
    actor, learner = start("actor"), start("learner")
    with rs.Client(server.url) as client:
        wait_until_it_learns(client, learner)
        learner.process.send_signal(signal.SIGINT)
        assert learner.wait() == 130
        assert actor.wait() == 0, actor.text
        before = client.info("apex")
        assert before["closed_reason"] == "the learner ended (interrupted)"
        assert learner.summary()["ended_by"] == "interrupted"
        late, other = start("actor"), start("learner", "--n-step", "5", "--logdir", f"{learner.run}-5")
        assert late.wait() == 0, late.text
        wanted = f" transitions {before['added']} (0/s) · updates {learner.summary()['updates']} "
        assert wanted in progress_lines(late)[-1], "it joined when all was over, and says how the run went"
        assert other.wait() == 1, other.text
        assert "--n-step 3 there, 5 here" in other.text
        assert not Path(f"{learner.run}-5").exists(), "it leaves no run"
        assert client.info("apex")["closed"], "one that is refused changes nothing"
        # Of the run before nothing counts: not its transitions, not its evaluations.
        assert before["added"] >= 200
        client.redis.rpush("apex:evaluations", json.dumps({"version": 1, "score_mean": 500.0}))
        limits = ["--max-transitions", "200", "--target-score", "499", "--target-evaluations", "1"]
        again = start("learner", *limits, "--logdir", f"{learner.run}-2")
        while client.info("apex")["closed"]:
            assert again.process.poll() is None, again.text
            time.sleep(0.05)
        actor = start("actor")
        assert again.wait() == 0, again.text
        assert actor.wait() == 0, actor.text
        assert "ending (max_transitions)" in again.text
        assert client.info("apex")["added"] >= before["added"] + 200


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_a_learner_that_may_come_back_leaves_the_table_open_and_its_actors_wait(start, server, way):
    actor, learner = start("actor"), start("learner", "--checkpoint-every-s", "0.1")
    with rs.Client(server.url) as client:
        wait_until_it_learns(client, learner)
        learner.process.send_signal(way)
        learner.wait()
        assert not client.info("apex")["closed"]
        actor.wait_for("actors wait: rate limiter: adding")
        assert actor.process.poll() is None
        learner = start("learner", "--resume", "--max-updates", "100000", "--minutes", "0.05")
        assert learner.wait() == 0, learner.text
    assert actor.wait() == 0, actor.text
    assert learner.summary()["ended_by"] == "minutes"


@pytest.mark.parametrize("part", ["actor", "evaluator"])
def test_a_part_says_once_that_it_waits_for_a_run_and_ctrl_c_ends_it(start, part):
    waiting = start(part, as_typed=True)
    waiting.wait_for("no run yet: waiting for a learner to begin one")
    time.sleep(1.2)  # it looks again meanwhile
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.wait() == 130, waiting.text
    assert waiting.text.count("waiting") == 1, waiting.text
    assert not waiting.run.exists()


def actors_at_work(client: rs.Client, *ids: int) -> Callable[[], bool]:
    def playing() -> bool:
        frames = [client.redis.hget(f"apex:actor:{each}", "frames") for each in ids]
        return all(each is not None and int(each) > 0 for each in frames)

    return playing


def wait_until(condition: Callable[[], bool], *parts: Part) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, "\n".join(part.text for part in parts)
        for part in parts:
            assert part.process.poll() is None, part.text
        time.sleep(0.05)


def test_actors_with_nothing_but_the_url_join_a_run_and_have_ids_of_their_own(start, server):
    first, second = start("actor"), start("actor", log="second")
    for actor in (first, second):
        actor.wait_for("waiting for a learner")
    learner = start("learner")
    with rs.Client(server.url) as client:
        # One more than --actors is welcome.
        wait_until(actors_at_work(client, 0, 1), first, second, learner)
        ids = sorted(actor.text.partition(" of the run at table apex")[0].split()[-1] for actor in (first, second))
        assert ids == ["0", "1"]
        learner.wait_for("actor 1 has joined")
        killed = first if "actor 0 of" in first.text else second
        killed.process.kill()
        killed.wait()
        life = client.redis.hget("apex:actor:0", "started_at")
        wait_until(lambda: not client.redis.exists("apex:actor-id:0"), learner)
        heir = start("actor", log="heir")
        heir.wait_for("actor 0 of the run at table apex")
        wait_until(lambda: client.redis.hget("apex:actor:0", "started_at") != life, heir)
        learner.process.send_signal(signal.SIGINT)
        assert learner.wait() == 130, learner.text
        for actor in {first, second, heir} - {killed}:
            assert actor.wait() == 0, actor.text
        assert re.search(r"actor 1 ends: table 'apex' is closed", first.text + second.text)
        assert learner.summary()["actors_played"] == 2
        assert not client.redis.keys("apex:actor-id:*"), "who ends gives its id back"


@pytest.mark.parametrize("part", ["actor", "evaluator"])
def test_a_part_that_contradicts_the_run_is_refused_with_both_values(start, server, part):
    learner = start("learner")
    learner.wait_for("learner waits: too few items")
    refused = start(part, "--n-step", "5", "--env", "CartPole-v1", "--discount", "0.5")
    assert refused.wait() == 1, refused.text
    assert "--n-step 3 there, 5 here; --discount 0.99 there, 0.5 here" in refused.text
    assert "env" not in refused.text.partition("failed:")[2].partition("Leave them out")[0]
    assert not refused.run.exists()
    with rs.Client(server.url) as client:
        assert not client.redis.exists("apex:incarnations")


def test_a_learner_with_nothing_but_the_url_takes_over_a_run_that_has_no_other(start, server):
    with rs.Client(server.url) as client:
        actor, learner = start("actor"), start("learner", "--minutes", "60")
        wait_until_it_learns(client, learner)
        second = start("learner", log="second", told=False)
        assert second.wait() == 1, second.text
        assert "the run at table 'apex' has a learner that is alive: end it, or give another --table" in second.text
        assert learner.process.poll() is None, learner.text
        # As after a long SIGSTOP: another has the run by now.
        client.redis.set("apex:learner-id:0", "another's")
        assert learner.wait() == 1, learner.text
        assert "another learner took over the run while this one was disconnected" in learner.text
        assert not client.info("apex")["closed"]
        client.redis.delete("apex:learner-id:0")
        folder = f"{learner.run}-2"
        heir = start("learner", "--minutes", "0.001", "--logdir", folder, log="heir", told=False)
        assert heir.wait() == 0, heir.text
        assert actor.wait() == 0, actor.text
    assert "joining CartPole-v1 · profile cartpole · seed 1 · table apex" in heir.text
    config = json.loads((Path(folder) / "config.json").read_text())
    assert (config["hidden"], config["batch_size"], config["minutes"]) == (16, 32, 0.001)


def test_an_id_that_a_living_actor_has_is_refused(start, server):
    with rs.Client(server.url) as client:
        learner = start("learner")
        client.redis.set("apex:actor-id:2", "another's")
        refused, actor = (
            start("actor", "--actor-id", "2"),
            start("actor", "--actor-id", "5", "--push-every", "5", log="5"),
        )
        wait_until(actors_at_work(client, 5), learner, actor)
        assert refused.wait() == 1, refused.text
        assert "--actor-id 2: an actor that is alive has it; leave it out" in refused.text


@pytest.mark.parametrize("ratio", ["8", "none"])
def test_a_learner_whose_table_somebody_closes_keeps_what_it_learned_and_ends(start, server, ratio):
    # Without a ratio a closed table would go on giving batches for ever.
    actor, learner = start("actor"), start("learner", "--samples-per-insert", ratio)
    with rs.Client(server.url) as client:
        wait_until_it_learns(client, learner)
        client.close_table("apex", "the cluster is needed")
    assert (learner.wait(), actor.wait()) == (0, 0)
    assert "learner ends: table 'apex' is closed: the cluster is needed" in learner.text
    assert learner.summary()["ended_by"] == "table closed"
    assert list((learner.run / "checkpoints").glob("step_*"))
