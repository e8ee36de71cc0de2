"""Deployment files of Lambda, as far as they can be checked without AWS: they agree with the code and themselves."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

from replay_server.rl.function_contract import REQUESTS  # noqa: E402
from replay_server.serverless.entry_lambda import IMPORTS, lambda_handler  # noqa: E402
from replay_server.serverless.settings import TrainSettings  # noqa: E402

HANDLER = "replay_server.serverless.entry_lambda.lambda_handler"


class Tag:
    """A function of CloudFormation's, as a tag in YAML: !Ref name."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


class Loader(yaml.SafeLoader):
    pass


def construct_tag(loader: Any, name: str, node: Any) -> Tag:
    if isinstance(node, yaml.ScalarNode):
        return Tag(name, loader.construct_scalar(node))
    if isinstance(node, yaml.SequenceNode):
        return Tag(name, loader.construct_sequence(node, deep=True))
    return Tag(name, loader.construct_mapping(node, deep=True))


Loader.add_multi_constructor("!", construct_tag)


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "serverless" / "deploy" / "lambda"


@pytest.fixture(scope="module")
def template(folder: Path) -> dict[str, Any]:
    return yaml.load((folder / "template.yaml").read_text(), Loader)


def tags(value: Any) -> list[Tag]:
    if isinstance(value, Tag):
        return [value, *tags(value.value)]
    if isinstance(value, dict):
        return [tag for each in value.values() for tag in tags(each)]
    return [tag for each in value for tag in tags(each)] if isinstance(value, list) else []


def functions(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    resources = template["Resources"].items()
    return {name: each for name, each in resources if each["Type"] == "AWS::Serverless::Function"}


def referred(tag: Tag) -> list[str]:
    if tag.name == "Ref":
        return [tag.value]
    if tag.name == "GetAtt":
        return [tag.value.split(".")[0]]
    if tag.name == "Sub":
        return [name.split(".")[0] for name in re.findall(r"\$\{([^}]+)\}", tag.value)]
    return [tag.value[0]] if tag.name == "If" else []


def test_every_name_that_the_template_refers_to_is_in_it_and_every_parameter_is_used(template):
    known = {*template["Parameters"], *template["Resources"], *template["Conditions"]}
    used = {name for tag in tags(template) for name in referred(tag) if not name.startswith("AWS::")}
    assert used - known == set()
    assert set(template["Parameters"]) - used == set()


def test_every_function_calls_the_handler_that_the_image_calls(template, folder):
    module, _, name = HANDLER.rpartition(".")
    assert getattr(importlib.import_module(module), name) is lambda_handler
    assert set(functions(template)) == {"ActorFunction", "LearnerFunction"}
    for function in functions(template).values():
        assert function["Properties"]["PackageType"] == "Image"
        assert function["Properties"]["ImageConfig"]["Command"] == [HANDLER]
        variables = function["Properties"]["Environment"]["Variables"]
        assert set(variables) == {IMPORTS}
        assert set(variables[IMPORTS].split()) < set(REQUESTS)
    assert f'CMD ["{HANDLER}"]' in (folder / "Dockerfile").read_text().splitlines()


def test_functions_are_built_from_this_image_and_this_repository(template, folder, repository):
    for function in functions(template).values():
        context = (folder / function["Metadata"]["DockerContext"]).resolve()
        assert context == repository
        assert context / function["Metadata"]["Dockerfile"] == folder / "Dockerfile"
    for source in re.findall(r"^COPY (?!--from)(\S+) ", (folder / "Dockerfile").read_text(), re.MULTILINE):
        assert (repository / source).exists()


def test_the_image_installs_what_functions_import_and_nothing_of_who_calls_them(folder, repository):
    assert "[functions]" in (folder / "Dockerfile").read_text()
    text = (repository / "pyproject.toml").read_text()
    extra = re.search(r"^functions = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert extra is not None
    names = set(re.findall(r'"([a-z-]+)', extra.group(1)))
    assert {"torch", "gymnasium", "mujoco", "ale-py"} <= names
    assert names.isdisjoint({"botocore", "aiohttp", "ray", "functions-framework", "tensorboard", "pygame-ce"})


def test_limits_are_those_that_jobs_have_by_default(template):
    parameters = template["Parameters"]
    assert parameters["TimeoutSeconds"]["Default"] == TrainSettings().timeout_s
    assert parameters["ReservedActors"]["Default"] >= TrainSettings().actors_max
    for name in ("ActorMemory", "LearnerMemory"):
        assert parameters[name]["MinValue"] <= parameters[name]["Default"] <= parameters[name]["MaxValue"]
    assert parameters["ActorMemory"]["Default"] == 1024


def test_functions_may_do_nothing_but_log_and_be_in_the_vpc_and_callers_nothing_but_call(template):
    resources = template["Resources"]
    policies = resources["FunctionRole"]["Properties"]["ManagedPolicyArns"]
    assert [each.value.rpartition("/")[2] for each in policies] == ["AWSLambdaVPCAccessExecutionRole"]
    assert "Policies" not in resources["FunctionRole"]["Properties"]
    (statement,) = resources["CallerPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["lambda:InvokeFunction", "lambda:GetFunctionConfiguration"]
    assert {referred(each)[0] for each in statement["Resource"]} == set(functions(template))
    for function in functions(template).values():
        assert function["Properties"]["Role"].value == "FunctionRole.Arn"
