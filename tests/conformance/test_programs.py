"""Programs that keep their work in a Redis do so here, with their own workers: rq, celery, redis-om, BullMQ, Sidekiq.

Each runs in an environment of its own with the versions named here. What cannot be installed is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import replay_server

pytestmark = pytest.mark.slow

RQ, CELERY, REDIS_OM = "rq==3.0.0", "celery[redis]==5.7.0", "redis-om==1.2.0"
BULLMQ, IOREDIS = "bullmq@6.7.0", "ioredis@5"
SIDEKIQ = "6.4.1, as Debian 12 packages it"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with replay_server.Server([], directory=tmp_path) as server:
        yield server.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "program"
    made.mkdir()
    return made


def python_with(folder: Path, *packages: str) -> str:
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", folder / "venv"], check=True)
    python = str(folder / "venv" / "bin" / "python")
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True, timeout=600
    )
    if installed.returncode != 0:
        pytest.skip(f"pip install {' '.join(packages)} failed: {installed.stderr[-300:]}")
    return python


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def run(folder: Path, *command: str, url: str) -> dict[str, object]:
    """What a program prints in its last line, as JSON."""
    result = subprocess.run(
        command, cwd=folder, env={**os.environ, "URL": url}, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_rq(url: str, folder: Path) -> None:
    """Jobs that succeed, fail, wait for another and are to run later, by a worker that ends when all are done."""
    python = python_with(folder, RQ)
    write(folder, "jobs.py", "def double(n):\n    return 2 * n\n\n\ndef fail():\n    raise ValueError('as asked')\n")
    write(
        folder,
        "program.py",
        """
        import datetime, json, os, time
        import redis, rq, jobs
        connection = redis.Redis.from_url(os.environ["URL"])
        queue = rq.Queue(connection=connection)
        many = [queue.enqueue(jobs.double, n) for n in range(50)]
        failing = queue.enqueue(jobs.fail)
        after = queue.enqueue(jobs.double, 21, depends_on=many[-1])
        later = queue.enqueue_in(datetime.timedelta(seconds=1), jobs.double, 5)
        worker = rq.SimpleWorker([queue], connection=connection)
        worker.work(burst=True, with_scheduler=False)
        time.sleep(1.1)
        scheduler = rq.scheduler.RQScheduler([queue], connection=connection)
        scheduler.acquire_locks()
        scheduler.enqueue_scheduled_jobs()
        worker.work(burst=True)
        print(json.dumps({
            "many": [job.return_value() for job in many], "after": after.return_value(), "later": later.return_value(),
            "failed": failing.get_status(refresh=True).value, "why": failing.latest_result().exc_string[-40:],
            "registry": queue.failed_job_registry.count, "finished": queue.finished_job_registry.count,
        }))
        """,
    )
    told = run(folder, python, "program.py", url=url)
    assert told["many"] == [2 * n for n in range(50)]
    assert (told["after"], told["later"], told["failed"]) == (42, 10, "failed")
    assert "as asked" in str(told["why"])
    assert (told["registry"], told["finished"]) == (1, 52)


def test_celery(url: str, folder: Path) -> None:
    """The server as broker and as store of results: groups, chords, chains, delays and retries."""
    python = python_with(folder, CELERY)
    write(
        folder,
        "tasks.py",
        """
        import os
        import celery
        app = celery.Celery("tasks", broker=os.environ["URL"], backend=os.environ["URL"])

        @app.task
        def add(*numbers):
            return sum(numbers[0] if isinstance(numbers[0], list) else numbers)

        @app.task(bind=True, max_retries=2)
        def flaky(self):
            if self.request.retries < 2:
                raise self.retry(countdown=0.05)
            return self.request.retries
        """,
    )
    write(
        folder,
        "program.py",
        """
        import json, os, subprocess, sys
        import celery
        from tasks import add, app, flaky
        worker = subprocess.Popen([sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "threads",
                                   "-c", "2", "-l", "ERROR", "--without-gossip", "--without-mingle"])
        try:
            wait = {"timeout": 120}
            told = {
                "one": add.delay(1, 2).get(**wait),
                "group": celery.group(add.s(n, n) for n in range(30))().get(**wait),
                "chord": celery.chord((add.s(n, 1) for n in range(10)), add.s())().get(**wait),
                "chain": celery.chain(add.s(1, 1), add.s(5), add.s(10))().get(**wait),
                "later": add.apply_async((4, 4), countdown=0.5).get(**wait),
                "retries": flaky.delay().get(**wait),
                "workers": len(app.control.ping(timeout=5)),
            }
        finally:
            worker.terminate()
            worker.wait(60)
        print(json.dumps(told))
        """,
    )
    told = run(folder, python, "program.py", url=url)
    assert told["group"] == [2 * n for n in range(30)]
    assert [told[name] for name in ("one", "chord", "chain", "later", "retries", "workers")] == [3, 55, 17, 8, 2, 1]


def test_redis_om(url: str, folder: Path) -> None:
    """Models as hashes. What it finds by a query needs a module, also of a Redis."""
    python = python_with(folder, REDIS_OM)
    write(
        folder,
        "program.py",
        """
        import json, os
        os.environ["REDIS_OM_URL"] = os.environ["URL"]
        from redis_om import HashModel

        class Agent(HashModel, index=True):
            name: str
            score: int

        agents = [Agent(name=f"agent {n}", score=n) for n in range(20)]
        for agent in agents:
            agent.save()
        agents[3].update(score=100)
        agents[4].expire(100)
        Agent.delete(agents[5].pk)
        print(json.dumps({
            "scores": [Agent.get(agent.pk).score for agent in agents if agent is not agents[5]],
            "keys": len(list(Agent.all_pks())), "ttl": Agent.db().ttl(agents[4].key()),
        }))
        """,
    )
    told = run(folder, python, "program.py", url=url)
    assert told["scores"] == [100 if n == 3 else n for n in range(20) if n != 5]
    assert told["keys"] == 19
    assert 0 < int(str(told["ttl"])) <= 100


def test_bullmq(url: str, folder: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", BULLMQ, IOREDIS],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if installed.returncode != 0:
        pytest.skip(f"npm install failed: {installed.stderr[-300:]}")
    program = Path(__file__).resolve().parent / "programs_bullmq.mjs"
    shutil.copy(program, folder)  # where the packages are found
    told = run(folder, node, program.name, url, url=url)
    assert told["results"] == [2, 4]
    assert told["many"] == [2 * n for n in range(200)]
    assert (told["delayed"], told["fails"], told["parent"], told["attempts"]) == (6, 8, 12, 3)
    assert told["highFirst"]
    assert told["counts"] == {"completed": 208, "failed": 0, "waiting": 0}


def test_sidekiq(url: str, folder: Path) -> None:
    ruby = shutil.which("ruby")
    known = ruby and subprocess.run([ruby, "-e", "require 'sidekiq'"], capture_output=True).returncode == 0
    if ruby is None or not known:
        pytest.skip(f"needs Sidekiq ({SIDEKIQ}): apt-get install ruby-sidekiq")
    write(
        folder,
        "jobs.rb",
        """
        require 'sidekiq'
        Sidekiq.configure_client { |config| config.redis = { url: ENV['URL'] } }
        Sidekiq.configure_server do |config|
          config.redis = { url: ENV['URL'] }
          config.average_scheduled_poll_interval = 1
        end
        class Add
          include Sidekiq::Worker
          def perform(n)
            Sidekiq.redis { |connection| connection.incrby('sum', n) }
          end
        end
        class Fails
          include Sidekiq::Worker
          sidekiq_options retry: 0
          def perform
            raise 'as asked'
          end
        end
        """,
    )
    write(
        folder,
        "program.rb",
        """
        require './jobs'
        require 'sidekiq/api'
        require 'json'
        Sidekiq::Client.push_bulk('class' => Add, 'args' => (1..100).map { |n| [n] })
        Add.perform_in(1, 1000)
        Fails.perform_async
        server = spawn('sidekiq', '-r', './jobs.rb', '-c', '2', '-t', '5', out: File::NULL, err: File::NULL)
        stats = nil
        600.times do
          stats = Sidekiq::Stats.new
          break if stats.processed >= 102
          sleep 0.1
        end
        sum = Sidekiq.redis { |connection| connection.get('sum') }
        puts JSON.generate(sum: sum.to_i, processed: stats.processed, failed: stats.failed, left: stats.enqueued,
                           dead: Sidekiq::DeadSet.new.size)
        Process.kill('TERM', server)
        Process.wait(server)
        """,
    )
    told = run(folder, ruby, "program.rb", url=url)
    assert told == {"sum": 6050, "processed": 102, "failed": 1, "left": 0, "dead": told["dead"]}
