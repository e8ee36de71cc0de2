"""An actor against a real server: what it pushes, when it pulls, how it stops, and what an outage does to it."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import replay_server as rs
from replay_server.actors.rollout import ActorProgress, run_actor
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.networks import make_acting_network, make_network
from replay_server.rl.part_ids import PartId
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table
from replay_server.rl.weights import module_arrays

CARTPOLE = ApexSettings(
    env="CartPole-v1", actors=1, envs_per_actor=3, capacity=5_000, min_size_to_sample=100, hidden=16,
    push_every=50, pull_every_frames=10,
)  # fmt: skip


class Actor:
    """run_actor in a thread, with what it returned or raised."""

    def __init__(self, settings: ApexSettings, url: str, actor_id: int | PartId = 0, patience_s: float = 30.0) -> None:
        self.stop = threading.Event()
        self.result: ActorProgress | None = None
        self.error: BaseException | None = None
        self._arguments = (settings, url, actor_id, self.stop)
        self._patience_s = patience_s
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = run_actor(*self._arguments, patience_s=self._patience_s)
        except BaseException as error:
            self.error = error

    def join(self) -> ActorProgress:
        self.stop.set()
        self.thread.join(300)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def wait_until(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def threads():
    """run_actor sets this process's torch threads to one."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


pytestmark = pytest.mark.usefixtures("threads")


def test_pushed_transitions_and_priorities_agree_with_the_network_that_acted() -> None:
    settings = dataclasses.replace(CARTPOLE, capacity=200_000)  # it keeps all, however late this thread looks
    spec = environment_spec(settings)
    network = make_acting_network(settings, spec)
    with rs.Server([apex_table(settings, spec)]) as server, rs.Client(server.url) as client:
        actor = Actor(settings, server.url)
        wait_until(lambda: client.info("apex")["size"] >= 500)
        progress = actor.join()
        size = client.info("apex")["size"]
        batch = client.sample("apex", 256, timeout=60)
        hash_fields = client.redis.hgetall("apex:actor:0")
    assert progress.transitions == size
    assert progress.version == -1
    assert int(hash_fields[b"transitions"]) == size
    assert int(hash_fields[b"frames"]) == progress.steps

    data = {name: torch.from_numpy(array) for name, array in batch.data.items()}
    with torch.no_grad():
        chosen = network(data["obs"]).gather(1, data["action"][:, None])[:, 0]
        td_error = data["reward"] + data["discount"] * network(data["next_obs"]).max(dim=1).values - chosen
    powers = np.array([0.0, 0.99, 0.99**2, 0.99**3])
    assert (np.abs(batch.data["discount"][:, None] - powers).min(axis=1) < 1e-6).all()
    assert batch.data["reward"].max() == pytest.approx(1 + 0.99 + 0.99**2)
    # P_i is proportional to priority^α, so the ratio is one number for the whole batch.
    ratio = batch.probabilities / (td_error.abs().numpy() + 1e-6) ** CARTPOLE.priority_exponent
    np.testing.assert_allclose(ratio, np.median(ratio), rtol=0.02)


def test_an_unprioritized_run_pushes_priority_one() -> None:
    settings = dataclasses.replace(CARTPOLE, prioritized=False)
    with rs.Server() as server, rs.Client(server.url) as client:
        actor = Actor(settings, server.url)
        wait_until(lambda: "apex" in client.tables() and client.info("apex")["size"] >= 100)
        actor.join()
        batch = client.sample("apex", 50, timeout=60)
    np.testing.assert_allclose(batch.probabilities, batch.probabilities[0])


def test_newer_weights_are_played_and_older_ones_are_not_fetched_again() -> None:
    arrays = module_arrays(make_network(CARTPOLE, environment_spec(CARTPOLE)))
    with rs.Server() as server, rs.Client(server.url) as client:
        actor = Actor(CARTPOLE, server.url)

        def version() -> int:
            return int(client.redis.hget("apex:actor:0", "version") or -2)

        wait_until(lambda: version() == -1)
        client.publish_weights("apex", arrays, version=3)
        wait_until(lambda: version() == 3)
        client.publish_weights("apex", arrays, version=8)
        wait_until(lambda: version() == 8)
        assert actor.join().version == 8


def test_weights_of_another_network_end_the_actor_with_the_reason() -> None:
    other = dataclasses.replace(CARTPOLE, hidden=32)
    with rs.Server() as server, rs.Client(server.url) as client:
        client.publish_weights("apex", module_arrays(make_network(other, environment_spec(other))), version=1)
        with pytest.raises(ValueError, match="same env and hidden"):
            run_actor(CARTPOLE, server.url, 0, threading.Event())


def test_the_rate_limiter_holds_the_actor_and_stop_still_ends_it() -> None:
    settings = dataclasses.replace(CARTPOLE, samples_per_insert=4.0, batch_size=32)
    with rs.Server() as server, rs.Client(server.url) as client:
        actor = Actor(settings, server.url)
        wait_until(lambda: float(client.redis.hget("apex:actor:0", "blocked_s") or 0) > 0)
        assert client.info("apex")["waiting_add"] >= 0
        held = client.info("apex")["added"]
        assert held < 1_000
        progress = actor.join()
    assert progress.transitions <= held + 100


def test_an_actor_ends_when_its_table_is_closed_also_while_it_waits() -> None:
    settings = dataclasses.replace(CARTPOLE, samples_per_insert=4.0, batch_size=32)
    for waits in (True, False):
        with rs.Server() as server, rs.Client(server.url) as client:
            actor = Actor(settings if waits else CARTPOLE, server.url)
            report = "blocked_s" if waits else "transitions"
            wait_until(lambda client=client, report=report: float(client.redis.hget("apex:actor:0", report) or 0) > 0)
            client.close_table("apex", "the run is over")
            actor.thread.join(300)
            assert not actor.stop.is_set()
            with pytest.raises(rs.TableClosed, match="table 'apex' is closed: the run is over"):
                actor.join()
            assert client.info("apex")["waiting"] == 0


def test_no_server_ends_the_actor_after_its_patience() -> None:
    with pytest.raises(rs.ConnectionLost, match="no server for 1 s"):
        run_actor(CARTPOLE, "redis://127.0.0.1:1", 0, threading.Event(), patience_s=1.0)


def test_an_actor_survives_a_server_that_comes_back_empty(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    first = rs.Server(port=-1, unix=socket)
    arrays = module_arrays(make_network(CARTPOLE, environment_spec(CARTPOLE)))
    with rs.Client(first.url) as client:
        client.publish_weights("apex", arrays, version=90)
        actor = Actor(CARTPOLE, first.url)
        wait_until(lambda: "apex" in client.tables() and client.info("apex")["size"] >= 100)
    first.stop()
    time.sleep(0.5)
    with rs.Server(port=-1, unix=socket) as second, rs.Client(second.url) as client:
        wait_until(lambda: "apex" in client.tables() and client.info("apex")["size"] >= 100)
        client.publish_weights("apex", arrays, version=2)  # lower than before the outage
        wait_until(lambda: client.redis.hget("apex:actor:0", "version") == b"2")
        actor.join()


def test_an_actor_whose_server_is_gone_for_good_gives_up() -> None:
    server = rs.Server()
    actor = Actor(CARTPOLE, server.url, patience_s=1.0)
    with rs.Client(server.url) as client:
        wait_until(lambda: "apex" in client.tables() and client.info("apex")["size"] >= 100)
    server.stop()
    wait_until(lambda: not actor.thread.is_alive())
    with pytest.raises(rs.ConnectionLost):
        actor.join()


def test_an_actor_id_below_0_is_refused() -> None:
    with rs.Server() as server, pytest.raises(ValueError, match="actor id of 0 or more, got -1"):
        run_actor(CARTPOLE, server.url, -1, threading.Event())


def test_an_actor_whose_id_went_to_another_while_it_was_away_goes_on_with_a_free_one() -> None:
    """As after SIGSTOP: its lease ended, and another actor took its place in the ε ladder."""
    settings = dataclasses.replace(CARTPOLE, actors=3)
    with rs.Server() as server, rs.Client(server.url) as client:
        own = PartId("apex", "actor")
        assert own.take(client)
        assert own.number == 0
        actor = Actor(settings, server.url, own)
        wait_until(lambda: client.redis.exists("apex:actor:0") == 1)
        client.redis.set("apex:actor-id:0", "another's")
        assert own.renew(client)
        wait_until(lambda: client.redis.exists("apex:actor:1") == 1)
        frames = int(client.redis.hget("apex:actor:0", "frames"))
        wait_until(lambda: int(client.redis.hget("apex:actor:1", "frames")) > 0)
        progress = actor.join()
        assert client.redis.get("apex:actor-id:0") == b"another's"
        assert int(client.redis.hget("apex:actor:0", "frames")) == frames, "its reports are of its new id alone"
        began = [float(client.redis.hget(f"apex:actor:{number}", "started_at")) for number in (0, 1)]
        assert began[0] < began[1] == progress.started_at, "and what it played before is not in them"
        assert progress.frames == int(client.redis.hget("apex:actor:1", "frames"))
        assert client.redis.hkeys("apex:incarnations") == [b"0", b"1"]


def test_importing_the_folder_as_a_top_level_package_is_refused(repository: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(repository))
    monkeypatch.delitem(sys.modules, "actors", raising=False)
    with pytest.raises(ImportError, match=r"replay_server\.actors"):
        importlib.import_module("actors")
