"""The deployment files, as far as they can be checked without Docker, Kubernetes or a cloud."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "serverless" / "deploy"

yaml = pytest.importorskip("yaml")
ray = pytest.importorskip("ray")


def load(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def instructions(name: str) -> list[tuple[str, str]]:
    """A container file's instructions, with lines joined and comments left out."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def commands() -> dict[str, list[str]]:
    """What each stage of the container file runs."""
    found, stage = {}, ""
    for instruction, rest in instructions("Dockerfile"):
        if instruction == "FROM":
            stage = rest.split()[-1]
        elif instruction == "CMD":
            found[stage] = json.loads(rest)
    return found


def test_the_container_file_takes_what_is_there() -> None:
    extras = re.findall(r"^([a-z]+) = \[", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    stages = {"."}
    for instruction, rest in instructions("Dockerfile"):
        if instruction == "FROM":
            stages.add(rest.split()[-1])
        elif instruction == "COPY":
            words = rest.split()
            copied_from = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else "."
            assert copied_from in stages
            if copied_from == ".":
                assert all((REPOSITORY / source).exists() for source in words[:-1])
        elif instruction == "RUN":
            for names in re.findall(r"\.whl\)\[([a-z,]+)\]", rest):
                assert set(names.split(",")) <= set(extras)


def test_what_the_http_container_runs_is_the_function() -> None:
    """The command of the container, with the entry's path as it is here; functions-framework loads the target."""
    command = commands()["http"]
    here = [part.replace("/function/main.py", str(DEPLOY / "main.py")) for part in command]
    assert here[0] == "functions-framework"
    check = (
        "import sys, functions_framework, functions_framework._cli as cli\n"
        "options = cli._cli.make_context('functions-framework', sys.argv[1:]).params\n"
        "app = functions_framework.create_app(options['target'], options['source'], options['signature_type'])\n"
        "print(app.test_client().post('/', data=b'x').data.decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", check, *here[1:]], capture_output=True, text=True, timeout=60)
    assert "expected a CloudEvent" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["ray/cluster-on-premise.yaml", "ray/cluster-aws.yaml"])
def test_ray_takes_the_cluster_files(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = load(name)
    validate_config(prepare_config(config))
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in config[key]:
            check_ray_command(shlex.split(command))


def test_ray_takes_the_command_of_its_container() -> None:
    check_ray_command(commands()["ray"])


def check_ray_command(words: list[str]) -> None:
    from ray.scripts.scripts import cli

    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    assert words[0] == "ray"
    subcommand = cli.commands[words[1]]
    known = {option for parameter in subcommand.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words[2:]} <= known


def test_the_knative_service_is_as_the_platform_reckons() -> None:
    service = load("knative/service.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.knative.dev/v1", "Service")
    template = service["spec"]["template"]["spec"]
    (container,) = template["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    image = {}
    for instruction, rest in instructions("Dockerfile"):
        if instruction == "ENV":
            image |= dict(part.split("=", 1) for part in rest.split())
    assert template["containerConcurrency"] == 1
    assert (environment["WORKERS"], environment["THREADS"]) == ("1", "1")
    assert container["ports"] == [{"containerPort": int(image["PORT"])}]
    assert container["resources"]["limits"]["memory"] == "1Gi"  # HttpPlatform's memory_mb
    assert "REPLAY_FUNCTION_TOKEN" in environment
    assert template["timeoutSeconds"] <= 3600
