"""Operations, each written once, and what runs them: calls that block, and calls that asyncio awaits.

An operation is a generator. Where it needs the outside (send a request, receive a reply, connect, pause) it yields a
step: a function and its arguments. A driver calls the function, or awaits it, and sends back what it returned, or
throws in what it raised. The operation itself never waits, so it has no colour: the objects whose functions it names
are blocking ones for one driver, and asyncio's for the other.

An operation that is given up (an interrupt, a cancellation) is closed before its caller goes on. So its own `finally`
and `except BaseException` have run by then, as in an ordinary function.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")

Step = tuple[Any, ...]
"""A function, and the arguments that a driver calls it with."""
Operation = Generator[Step, Any, T]


def run(operation: Operation[T], waiting: Step = ()) -> T:
    """Does an operation whose steps block; `waiting`: the step that it stands at, where it was begun before."""
    try:
        step = waiting or next(operation)
        while True:
            try:
                result = step[0](*step[1:])
            except BaseException as error:
                step = operation.throw(error)
            else:
                step = operation.send(result)
    except StopIteration as stop:
        return stop.value
    finally:
        operation.close()


def after(operation: Operation[Any], step: Step) -> Step:
    """Does a step that blocks; the one that follows it."""
    try:
        result = step[0](*step[1:])
    except BaseException as error:
        return operation.throw(error)
    return operation.send(result)


async def wait(operation: Operation[T]) -> T:
    """Does an operation whose steps are awaited."""
    try:
        step = next(operation)
        while True:
            try:
                result = await step[0](*step[1:])
            except BaseException as error:
                step = operation.throw(error)
            else:
                step = operation.send(result)
    except StopIteration as stop:
        return stop.value
    finally:
        operation.close()


def at_once(function: Callable[P, T]) -> Callable[P, Operation[T]]:
    """A function that waits for nothing outside, as an operation."""

    @functools.wraps(function)
    def made(*arguments: P.args, **named: P.kwargs) -> Operation[T]:
        return function(*arguments, **named)
        yield ()

    return made


class Written:
    """Has operations, and no driver: its methods return generators."""


class operation(Generic[P, T]):
    """A method that is an operation. Subclasses of `Blocking` have it as a call, those of `Awaited` as a coroutine."""

    def __init__(self, written: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.written = written

    def __set_name__(self, owner: type, name: str) -> None:
        self.written.__name__, self.written.__qualname__ = name, f"{owner.__name__}.{name}"

    @overload
    def __get__(self, holder: None, kind: type[Blocking]) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, holder: None, kind: type[Awaited]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, holder: None, kind: type[Written]) -> operation[P, T]: ...
    @overload
    def __get__(self, holder: Blocking, kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, holder: Awaited, kind: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, holder: Written, kind: Any = None) -> Callable[P, Operation[T]]: ...
    def __get__(self, holder: Any, kind: Any = None) -> Any:
        return self if holder is None else types.MethodType(self.written, holder)


class Blocking:
    """A driver: whoever calls an operation waits until it is done."""

    def __init_subclass__(cls, **further: Any) -> None:
        super().__init_subclass__(**further)

        def driven(written: Callable[..., Operation[Any]]) -> Callable[..., Any]:
            def method(self: Any, *arguments: Any, **named: Any) -> Any:
                return run(written(self, *arguments, **named))

            return method

        _drive_all(cls, driven)


class Awaited:
    """A driver: an operation is a coroutine, and runs while it is awaited."""

    def __init_subclass__(cls, **further: Any) -> None:
        super().__init_subclass__(**further)

        def driven(written: Callable[..., Operation[Any]]) -> Callable[..., Any]:
            async def method(self: Any, *arguments: Any, **named: Any) -> Any:
                return await self._awaited(written(self, *arguments, **named))

            return method

        _drive_all(cls, driven)

    async def _awaited(self, operation: Operation[T]) -> T:
        return await wait(operation)


def _drive_all(cls: type, driven: Callable[[Callable[..., Operation[Any]]], Callable[..., Any]]) -> None:
    """Gives a class a driven method for each operation that it inherits and does not override."""
    for base in cls.__mro__:
        for name, found in list(vars(base).items()):
            if isinstance(found, operation) and inspect.getattr_static(cls, name) is found:
                setattr(cls, name, _as_written(driven(found.written), found.written))


def _as_written(method: Callable[..., Any], written: Callable[..., Any]) -> Callable[..., Any]:
    """A driven method with the name, the signature and the docstring of its operation, returning what that returns."""
    functools.update_wrapper(method, written)
    method.written = written  # type: ignore[attr-defined]  (as `operation` has it)
    signature = inspect.signature(written)
    returned = re.sub(r"^(?:Operation|Command)\[(.*)\]$", r"\1", str(signature.return_annotation))
    method.__annotations__ = {**written.__annotations__, "return": returned}
    method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method
