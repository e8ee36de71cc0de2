"""Writers of n-step transitions with initial priorities: the caller appends steps and rewards, and they make items.

An item is made when the observation that its window ends at has been appended, and not before. So its successor is
there, its episode's last steps make items of shorter returns, and what is not known yet is never stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .driver import Operation, operation
from .errors import SchemaError
from .n_step import FinishedWindows, NStepReturns
from .step_sender import Items
from .step_sink import BlockingWriter, StepSink, StepWriting
from .table import MAX_WINDOW, Column, Table
from .tree import Leaves
from .writer import OneEnvironment, VectorWriting

LARGEST = float(np.finfo(np.float32).max)
"""Of rewards and values, so that no sum of them is infinite."""


class VectorNStepWriting(StepWriting):
    """Writes the steps of n environments, and makes an n-step transition of each action taken. For one thread.

    The item of step s covers m steps: n_step, or as many as its episode had left. Its windows and columns are those of
    step s, but for three: windows of offset n_step show the observation m steps later; the reward column holds
    R = r_s + γ r_{s+1} + … + γ^{m−1} r_{s+m−1}, summed in float64 from the first on; and the discount column holds γ^m,
    or 0 where the episode terminated there.

    A learner's target is reward + discount · V(successor), the n-step return (Sutton and Barto 2018, equation 7.1). It
    is the same for the last steps of an episode, whose returns are shorter. A truncated episode bootstraps from its
    final observation, a terminated one from nothing.

    A step has the table's columns and, in the reward column, the reward that its action brought. An observation alone
    has only columns that windows look at. The observation after `terminated` or `truncated` is the final one of its
    episode, and comes alone. An observation alone in the middle of an episode truncates it. Before the first step of an
    episode, windows that reach back show it, and it makes no item.

    As for `VectorWriter`: where `append` raises `Timeout` or `ConnectionLost` it has taken nothing: call it again. An
    interrupted call, too, took the whole of what it was given or nothing.

    Args:
        table: with a window of offset n_step, and with a reward and a discount column.
        sink: where it all goes.
        environments: n.
        n_step: steps of a full return.
        discount: γ, from 0 to 1.
        reward_column: of a float dtype and shape (): a step's reward where steps are appended, R in an item.
        discount_column: of a float dtype and shape (), in items alone.
        autoreset: "next_step" where environments reset themselves in the step after an end, as Gymnasium's vector
            environments do: the row of an environment that has just ended is its final observation, and its action and
            its reward of 0 belong to no transition. None: final observations come alone.
        priority_epsilon: added to |δ| in an item's initial priority; see `append`.
        options: `flush_steps`, `history`, `timeout`, `in_flight` and `tables` of `VectorWriter`. A transition becomes
            an item in the table and in each of `tables`.

    Raises:
        SchemaError: the table does not fit, or a number is out of range.
    """

    def __init__(
        self,
        table: Table,
        sink: StepSink,
        environments: int,
        *,
        n_step: int,
        discount: float,
        reward_column: str = "reward",
        discount_column: str = "discount",
        autoreset: str | None = None,
        priority_epsilon: float = 1e-6,
        **options: Any,
    ) -> None:
        self._check_numbers(n_step, discount, autoreset, priority_epsilon)
        self._reward = self._check_column(table, "reward", reward_column)
        self._discount = self._check_column(table, "discount", discount_column)
        if discount_column in table.step_columns or discount_column == reward_column:
            raise SchemaError(
                f"the writer fills the discount column: expected one that is not the reward column, and that no window "
                f"shows, got {discount_column!r}"
            )
        self._observation = self._check_windows(table, int(n_step), reward_column)
        self._writer = VectorWriting(table, sink, environments, **options)
        history = options.get("history")
        if history is not None and history <= n_step:
            raise SchemaError(f"history must be above n_step, {n_step}, got {history}")
        self._table = table
        self._names = (reward_column, discount_column)
        columns: dict[str, Column] = {**table.item_columns, **table.step_columns}
        self._columns = {name: column for name, column in columns.items() if name not in self._names}
        """What a step has but for the reward."""
        self._reward_is_seen = reward_column in table.step_columns
        self._autoreset = autoreset is not None
        self._epsilon = float(priority_epsilon)
        self._count = int(environments)
        self._returns = NStepReturns(self._count, int(n_step), float(discount))
        self._state_values = np.zeros(self._count)
        """Of the newest observations."""
        self._made_before: list[Items] | None = None
        """Items that were made before those of the call under way; None until it makes any."""
        self._valued: bool | None = None
        """Whether steps come with values; None before the first."""

    # ---- steps -------------------------------------------------------------------------------------------------------

    @operation
    def append(
        self,
        step: Mapping[str, Any],
        *,
        terminated: Any = False,
        truncated: Any = False,
        action_value: Any = None,
        state_value: Any = None,
        mask: Any = None,
    ) -> Operation[None]:
        """Appends one step, or one observation alone, to each environment's stream.

        With values, an item's initial priority is |δ| + priority_epsilon, δ = R + discount · V(o_{s+m}) − Q(o_s, a_s),
        as the actor has them anyway (Horgan et al. 2018, Distributed Prioritized Experience Replay). Without, it is the
        maximum over the table's items.

        Args:
            step: column name → array (n, *column.shape), with the rewards, numbers (n,) of any dtype, that the actions
                brought; or the columns of an observation alone.
            terminated: bool or bool (n,): the actions ended their episodes in a terminal state.
            truncated: bool or bool (n,): they ended them otherwise, such as by a time limit.
            action_value: (n,): Q of the observations and the actions. With each step, or never.
            state_value: (n,): V of the observations, such as the largest Q. With each step and each final observation,
                or never.
            mask: bool (n,), the environments that append; the rows of others are not looked at. None: all.

        Raises:
            SchemaError: a column is unknown or missing, its dtype or shape differs, a reward or a value is no finite
                number, or a final observation is due. Nothing was taken.
            Timeout: see the class. Nothing was taken.
        """
        self._writer._check_open()
        if not isinstance(step, Mapping):
            raise SchemaError(f"expected a dict of columns for table {self._table.name!r}, got {type(step).__name__}")
        given = Leaves(self._table.taken_apart(step))
        chosen = self._writer._chosen(mask)
        ends = self._flags("terminated", terminated, chosen), self._flags("truncated", truncated, chosen)
        if self._names[0] not in given:
            yield from self._observe(given, chosen, ends, action_value, state_value, mask)
            return
        rewards = self._numbers("reward", given.pop(self._names[0]), chosen)
        self._check_step(given)
        final = self._check_final(chosen, rewards, ends)
        values = self._values(chosen, action_value, state_value)
        if self._reward_is_seen:
            given[self._names[0]] = self._rows(chosen, rewards, self._reward.dtype)
        acts = ~final
        with self._whole():
            yield from self._append(given, chosen, final, mask, values[1])
            self._returns.act(chosen[acts], rewards[acts], ends[0][acts], ends[1][acts], values[0][acts])
            self._valued = action_value is not None

    def end_episode(self, mask: Any = None) -> None:
        """The episodes of the environments (mask: bool (n,), of some) are over, and no other observation will come.

        Their newest observations become the final ones. The action taken there makes no item, unless it terminated the
        episode: what it led to is not known.
        """
        self._check_turn()
        self._end_episode(mask)

    def _end_episode(self, mask: Any = None) -> None:
        self._writer._check_open()
        chosen = self._writer._chosen(mask)
        with self._whole(ends=True):
            self._make(self._returns.cut(chosen))
            self._writer.end_episode(mask)

    @operation
    def flush(self, timeout: float | None = None, wait: bool = True) -> Operation[np.ndarray]:
        """Sends all steps, and all items whose windows are complete. See `VectorWriter.flush`."""
        return self._writer.flush(timeout, wait)

    @property
    def waiting(self) -> int:
        """Items that were made and not sent yet."""
        return self._writer.waiting

    @operation
    def close(self, flush: bool = True) -> Operation[None]:
        """As `end_episode`; then sends what is left (unless told not to), and gives the streams back."""
        if flush and not self._writer._closed:
            self._end_episode()
        yield from self._writer.close(flush)

    # ---- items -------------------------------------------------------------------------------------------------------

    def _observe(
        self,
        given: Leaves,
        chosen: np.ndarray,
        ends: tuple[np.ndarray, np.ndarray],
        action_value: Any,
        state_value: Any,
        mask: Any,
    ) -> Operation[None]:
        """Appends observations alone."""
        self._check_alone(given)
        if ends[0].any() or ends[1].any():
            raise SchemaError("terminated and truncated belong to the step whose action ended the episode")
        if action_value is not None:
            raise SchemaError("action_value belongs to a step: an observation alone has no action")
        final = self._returns.acted[chosen]
        if state_value is not None:
            values = self._numbers("state_value", state_value, chosen)
        elif self._valued and (final & ~self._returns.terminated[chosen]).any():
            raise SchemaError("the final observation of a truncated episode needs a state_value, as the steps have one")
        else:
            values = np.zeros(len(chosen))
        for name, column in self._columns.items():
            if name not in given:
                given[name] = np.zeros((self._count, *column.shape), column.numpy_dtype)
        if self._reward_is_seen:
            given[self._names[0]] = np.zeros(self._count, self._reward.dtype)
        with self._whole():
            yield from self._append(given, chosen, final, mask, values)

    @contextlib.contextmanager
    def _whole(self, ends: bool = False) -> Iterator[None]:
        """What is done within is taken as a whole: where it raises, or is interrupted, nothing of it is.

        Nothing that the writer takes within is sent before it has ended, so forgetting it leaves no trace. Ending
        episodes is the last step, and what is done once they have ended.
        """
        writer = self._writer
        before = writer._streams, self._returns, self._state_values, self._valued
        self._made_before = None
        self._returns, self._state_values = self._returns.copy(), self._state_values.copy()
        try:
            yield
        except BaseException:
            if not (ends and writer._streams is not before[0]):
                if self._made_before is not None:
                    writer._made = self._made_before
                writer._streams, self._returns, self._state_values, self._valued = before
            raise

    def _append(
        self, given: Leaves, chosen: np.ndarray, final: np.ndarray, mask: Any, state_values: np.ndarray
    ) -> Operation[None]:
        """Appends observations, and makes the items that see them as their successors."""
        yield from self._writer.append(given, mask=mask, final=self._rows(chosen, final, np.bool_))
        self._state_values[chosen] = state_values
        self._make(self._returns.observe(chosen, final))

    def _make(self, finished: list[FinishedWindows]) -> None:
        self._made_before = list(self._writer._made)
        for windows in finished:
            chosen = windows.environments
            priorities = None
            if self._valued:
                errors = windows.returns + windows.discounts * self._state_values[chosen] - windows.values
                priorities = self._rows(chosen, np.abs(errors) + self._epsilon, np.float64)
            columns = Leaves()
            columns[self._names[0]] = self._rows(chosen, windows.returns, self._reward.dtype)
            columns[self._names[1]] = self._rows(chosen, windows.discounts, self._discount.dtype)
            everyone = len(chosen) == self._count
            mask = None if everyone else self._rows(chosen, np.ones(len(chosen), bool), np.bool_)
            for table in self._writer._tables:
                self._writer.create_items(priorities, -1 - windows.back, columns, mask=mask, table=table)

    def _rows(self, chosen: np.ndarray, values: np.ndarray, dtype: Any) -> np.ndarray:
        """Values of some environments as a row for each."""
        with np.errstate(over="ignore"):
            if len(chosen) == self._count:
                return values.astype(dtype, copy=False)
            rows = np.zeros(self._count, dtype)
            rows[chosen] = values
        return rows

    # ---- checks ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_numbers(n_step: Any, discount: Any, autoreset: Any, priority_epsilon: Any) -> None:
        whole = isinstance(n_step, int | np.integer) and not isinstance(n_step, bool)
        if not whole or not 1 <= n_step <= MAX_WINDOW:
            raise SchemaError(f"n_step must be a whole number from 1 to {MAX_WINDOW}, got {n_step!r}")
        for name, number, most in (("discount", discount, 1.0), ("priority_epsilon", priority_epsilon, LARGEST)):
            real = isinstance(number, int | float | np.number) and not isinstance(number, bool)
            if not real or not 0 <= number <= most:
                raise SchemaError(f"{name} must be a number from 0 to {most:g}, got {number!r}")
        if autoreset not in (None, "next_step"):
            raise SchemaError(
                f'autoreset must be "next_step", or None where environments reset themselves in the same step or not '
                f"at all, got {autoreset!r}"
            )

    @staticmethod
    def _check_column(table: Table, what: str, name: str) -> Column:
        column = table.item_columns.get(name)
        if column is None or column.shape != () or np.dtype(column.dtype).kind != "f":
            found = f"no column {name!r} of items" if column is None else f"{column}"
            raise SchemaError(
                f"n-step returns need a {what} column, such as {name}=rs.Column('float32'), and table {table.name!r} "
                f"has {found}; {what}_column= names another one"
            )
        return column

    @staticmethod
    def _check_windows(table: Table, n_step: int, reward: str) -> list[str]:
        """The columns that an observation alone must have: what successors are made of."""
        sources = [w.source for w in table.windows.values() if w.offset == n_step and w.source != reward]
        if ragged := next(iter(table.ragged_windows), None):
            raise SchemaError(
                f"window {ragged!r} has a max_length, so its items say which steps they show: make a writer without "
                "n_step"
            )
        if not sources:
            offsets = ", ".join(f"{name!r} has {window.offset}" for name, window in table.windows.items())
            source = next((window.source for window in table.windows.values()), "obs")
            raise SchemaError(
                f"n_step={n_step} needs a window of offset {n_step}, which shows the observation after that many "
                f"steps, such as next_obs=rs.Window({source!r}, offset={n_step}); in table {table.name!r} "
                f"{offsets or 'there are no windows'}"
            )
        return list(dict.fromkeys(sources))

    def _check_step(self, given: dict[str, Any]) -> None:
        if self._names[1] in given:
            raise SchemaError(f"column {self._names[1]!r} is made by the writer: leave it out of the step")
        if missing := [name for name in self._columns if name not in given]:
            raise SchemaError(f"column {missing[0]!r} is missing: {self._told()}")

    def _check_alone(self, given: dict[str, Any]) -> None:
        if missing := [name for name in self._observation if name not in given]:
            raise SchemaError(f"column {missing[0]!r} is missing: {self._told()}")
        others = [name for name in given if name not in self._table.step_columns]
        if others or (given.keys() == self._columns.keys() and len(given) > len(self._observation)):
            raise SchemaError(f"got {', '.join(given)} without {self._names[0]!r}: {self._told()}")

    def _told(self) -> str:
        step = [*self._columns, self._names[0]]
        return f"a step has {', '.join(step)}; an observation alone has {', '.join(self._observation)}"

    def _check_final(self, chosen: np.ndarray, rewards: np.ndarray, ends: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Which rows of a step are final observations."""
        final = self._returns.ended[chosen]
        if not final.any():
            return final
        if not self._autoreset:
            alone = ", ".join(f"{name!r}: …" for name in self._observation)
            raise SchemaError(
                f"the episode of environment {chosen[final][0]} has ended: append its final observation alone, "
                f"{{{alone}}}, or call end_episode, before the next step; where environments reset themselves in the "
                'step after, as Gymnasium\'s vector environments do, make the writer with autoreset="next_step"'
            )
        wrong = final & ((rewards != 0) | ends[0] | ends[1])
        if wrong.any():
            raise SchemaError(
                f'autoreset="next_step": the step of environment {chosen[wrong][0]} after an end shows its final '
                f"observation: its reward is 0, and it ends nothing; got reward {rewards[wrong][0]:g}. Where "
                "environments reset themselves in the same step, leave autoreset out, and append final observations "
                "alone"
            )
        return final

    def _values(self, chosen: np.ndarray, action_value: Any, state_value: Any) -> tuple[np.ndarray, np.ndarray]:
        given = action_value is not None, state_value is not None
        if given[0] != given[1] or self._valued not in (None, given[0]):
            raise SchemaError(
                "action_value and state_value must come with every step or with none, got "
                f"{' and '.join(name for name, had in zip(('action_value', 'state_value'), given) if had) or 'neither'}"
            )
        if not given[0]:
            return np.zeros(len(chosen)), np.zeros(len(chosen))
        return self._numbers("action_value", action_value, chosen), self._numbers("state_value", state_value, chosen)

    def _numbers(self, name: str, value: Any, chosen: np.ndarray) -> np.ndarray:
        """Numbers of the chosen environments, float64 (k,)."""
        numbers = self._writer._per_environment(name, value, np.float64)[chosen]
        wrong = ~(np.abs(numbers) <= LARGEST)
        if wrong.any():
            raise SchemaError(
                f"{name} must be finite and at most {LARGEST:.1e} in size, got {numbers[wrong][0]} for environment "
                f"{chosen[wrong][0]}"
            )
        return numbers

    def _flags(self, name: str, value: Any, chosen: np.ndarray) -> np.ndarray:
        if value is False:
            return np.zeros(len(chosen), bool)
        return self._writer._per_environment(name, value, np.bool_)[chosen]


class NStepWriting(OneEnvironment):
    """Writes the steps of one environment, and makes an n-step transition of each action taken. For one thread.

    As `VectorNStepWriter` for a single environment, whose values come without the dimension of the environments.
    """

    def __init__(self, table: Table, sink: StepSink, **options: Any) -> None:
        super().__init__(table, VectorNStepWriting(table, sink, 1, **options))
        self._reward = self._vector._names[0]

    @operation
    def append(
        self,
        step: Mapping[str, Any],
        *,
        terminated: bool = False,
        truncated: bool = False,
        action_value: float | None = None,
        state_value: float | None = None,
    ) -> Operation[None]:
        """Appends one step, or one observation alone: column name → value. See `VectorNStepWriter.append`."""
        given = self._vector._table.taken_apart(step)
        rows = self._rows.of(given)
        if isinstance(given, Mapping) and self._reward in given:
            rows[self._reward] = given[self._reward]  # in its own precision, not the column's
        return self._vector.append(
            rows, terminated=terminated, truncated=truncated, action_value=action_value, state_value=state_value
        )

    def end_episode(self) -> None:
        """The episode is over, and no other observation will come. See `VectorNStepWriter.end_episode`."""
        super().end_episode()


class VectorNStepWriter(VectorNStepWriting, BlockingWriter):
    __doc__ = VectorNStepWriting.__doc__


class NStepWriter(NStepWriting, BlockingWriter):
    __doc__ = NStepWriting.__doc__


def make_writer(
    kinds: tuple[type, type],
    table: Table,
    sink: StepSink,
    environments: int | None,
    n_step: int | None,
    discount: float | None,
    options: Mapping[str, Any],
) -> Any:
    """A writer of the first kind; with n_step, of the second. Without `environments`, they are writers of one."""
    if (n_step is None) != (discount is None):
        raise SchemaError(f"n_step and discount go together, got n_step={n_step} and discount={discount}: give both")
    returns = {} if n_step is None else {"n_step": n_step, "discount": discount}
    count = () if environments is None else (environments,)
    if options.get("in_flight") and not issubclass(kinds[0], BlockingWriter):
        raise SchemaError("in_flight is for the blocking client: run the calls of an asyncio writer as tasks instead")
    return kinds[1 if returns else 0](table, sink, *count, **returns, **options)
