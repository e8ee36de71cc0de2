"""Price profiles: what functions and machines cost, read from ``prices.toml`` or a file of the user's own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

COLUMNS = ("paper", "code", "full")
"""What is counted (docs/cost.md): as the papers print it; use alone, on demand; all that the platform would bill."""
WAYS = ("function", "provisioned", "machine")
"""What actors or a learner run on."""


def part_of(kind: str) -> str:
    """Which part of a job invocations of a kind are: actor (instances made warm are actors', too) or learner."""
    return "actor" if kind in ("actor", "warm") else "learner"


class PriceError(Exception):
    """A price file that cannot be read, or a profile that it does not have; a usage error."""


@dataclass(frozen=True)
class ProvisionedPrice:
    """Instances kept warm."""

    gb_s: Fraction
    """Of each instance kept warm, over the whole job."""
    used_gb_s: Fraction
    """Of their use, instead of the price on demand."""
    step_s: Fraction = Fraction(0)
    """The time that they are kept is rounded up to its multiple; 0 = not."""


@dataclass(frozen=True)
class FunctionPrice:
    """Functions billed by use."""

    gb_s: Fraction = Fraction(0)
    vcpu_s: Fraction = Fraction(0)
    request: Fraction = Fraction(0)
    vcpus: Fraction = Fraction(0)
    """Processors of an instance, where they are billed apart from its memory."""
    step_s: Fraction = Fraction(0)
    """A duration is rounded up to its multiple; 0 = not."""
    minimum_s: Fraction = Fraction(0)
    provisioned: ProvisionedPrice | None = None


@dataclass(frozen=True)
class MachinePrice:
    """A reserved machine."""

    name: str
    hour: Fraction
    slots: int = 1
    """Actors, or learners, that work on it at a time."""
    step_s: Fraction = Fraction(0)
    minimum_s: Fraction = Fraction(0)
    start_s: Fraction = Fraction(0)
    """From asking for it until it takes work; billed nowhere."""


@dataclass(frozen=True)
class Profile:
    """What the parts of a job run on, and at which prices."""

    name: str
    about: str
    actor: str
    """One of `WAYS`."""
    learner: str
    """function or machine."""
    function: FunctionPrice | None = None
    actor_machine: MachinePrice | None = None
    learner_machine: MachinePrice | None = None

    def way(self, kind: str) -> str:
        """What invocations of a kind run on: actors on the actors', all others on the learner's."""
        return self.actor if part_of(kind) == "actor" else self.learner

    def machine(self, kind: str) -> MachinePrice:
        """The reserved machine for invocations of a kind."""
        machine = self.actor_machine if part_of(kind) == "actor" else self.learner_machine
        assert machine is not None, "checked when the profile was read"
        return machine


@dataclass(frozen=True)
class Prices:
    """The profiles of one file."""

    profiles: Mapping[str, Profile]
    source: str

    def profile(self, name: str) -> Profile:
        """Raises PriceError where the file has no profile of that name."""
        if name not in self.profiles:
            known = ", ".join(self.profiles)
            raise PriceError(f"{self.source} has no price profile {name!r}: expected one of {known}")
        return self.profiles[name]


def load_prices(path: str | Path | None = None) -> Prices:
    """Reads a price file, by default the one of this package. PriceError tells what is wrong with it."""
    source = "prices.toml" if path is None else str(path)
    try:
        text = (files("replay_server.serverless") / "prices.toml" if path is None else Path(path)).read_text()
        content = tomllib.loads(text, parse_float=Decimal)
    except OSError as error:
        raise PriceError(f"{source}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PriceError(f"{source}: {error}") from error
    try:
        return Prices(_profiles(content), source)
    except (TypeError, KeyError, ValueError) as error:
        raise PriceError(f"{source}: {error.args[0] if error.args else error}") from error


def _profiles(content: Mapping[str, Any]) -> dict[str, Profile]:
    if unknown := sorted(set(content) - {"machines", "functions", "profiles"}):
        raise ValueError(f"unknown table {unknown[0]!r}: expected machines, functions, profiles")
    machines = {
        name: _made(MachinePrice, {"name": name, **values}, f"machines.{name}")
        for name, values in content.get("machines", {}).items()
    }
    functions = {name: _function(values, f"functions.{name}") for name, values in content.get("functions", {}).items()}
    named = {"function": functions, "actor_machine": machines, "learner_machine": machines}
    profiles = {}
    for name, values in content.get("profiles", {}).items():
        where = f"profiles.{name}"
        found = {
            key: _named(named[key], value, f"{where}.{key}") if key in named else value for key, value in values.items()
        }
        profiles[name] = _checked(_made(Profile, {"name": name, "about": name, **found}, where), where)
    if not profiles:
        raise ValueError("it has no profiles: expected at least one table [profiles.NAME]")
    return profiles


def _function(values: Mapping[str, Any], where: str) -> FunctionPrice:
    provisioned = values.get("provisioned")
    made = {} if provisioned is None else {"provisioned": _made(ProvisionedPrice, provisioned, f"{where}.provisioned")}
    return _made(FunctionPrice, {**values, **made}, where)


def _checked(profile: Profile, where: str) -> Profile:
    for part, way, machine in (
        ("actor", profile.actor, profile.actor_machine),
        ("learner", profile.learner, profile.learner_machine),
    ):
        ways = WAYS if part == "actor" else ("function", "machine")
        if way not in ways:
            raise ValueError(f"{where}.{part}: expected one of {', '.join(ways)}, got {way!r}")
        if way == "machine" and machine is None:
            raise ValueError(f"{where}: {part} = 'machine' needs {part}_machine, the name of a table in [machines]")
        if way != "machine" and profile.function is None:
            raise ValueError(f"{where}: {part} = {way!r} needs function, the name of a table in [functions]")
    if profile.actor == "provisioned" and profile.function and profile.function.provisioned is None:
        raise ValueError(f"{where}: actor = 'provisioned' needs a table [functions.NAME.provisioned]")
    return profile


def _named(tables: Mapping[str, Any], name: Any, where: str) -> Any:
    if name not in tables:
        raise ValueError(f"{where}: there is no table {name!r}: expected one of {', '.join(tables) or '(none)'}")
    return tables[name]


Made = TypeVar("Made")


def _made(kind: type[Made], values: Mapping[str, Any], where: str) -> Made:
    """A dataclass of a table's values; numbers become exact fractions."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(set(values) - set(fields)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}: expected {', '.join(fields)}")
    needed = [
        name for name, field in fields.items() if field.default is dataclasses.MISSING and values.get(name) is None
    ]
    if needed:
        raise ValueError(f"{where}: {needed[0]} is missing")
    return kind(**{name: _value(str(fields[name].type), value, f"{where}.{name}") for name, value in values.items()})


def _value(type_name: str, value: Any, where: str) -> Any:
    if type_name == "Fraction":
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or not Decimal(value).is_finite():
            raise ValueError(f"{where}: expected a number, got {value!r}")
        if value < 0:
            raise ValueError(f"{where}: expected a number of at least 0, got {value}")
        return Fraction(value)
    if type_name == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{where}: expected a whole number of at least 1, got {value!r}")
    if type_name == "str" and not isinstance(value, str):
        raise ValueError(f"{where}: expected a string, got {value!r}")
    return value
