"""What the library raises, and how a refusal of the server or of the native core becomes one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReplayError(Exception):
    """Base of every error of this library."""


class ConnectionLost(ReplayError, ConnectionError):
    """The server cannot be reached, or the connection ended before the reply was complete.

    Commands that are safe to repeat were repeated first. If an `add`, or a `publish_weights` without a version, raises
    it, the server may or may not have stored the data.
    """


class Timeout(ReplayError, TimeoutError):
    """An `add` or a `sample` waited longer than its timeout.

    Attributes:
        reason: what it waited for, such as "too few items: the table holds 3, sampling waits for
            min_size_to_sample = 1000".
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason


class TableNotFound(ReplayError, LookupError):
    """The server has no table of that name."""


class TableClosed(ReplayError):
    """The table is closed (`Client.close_table`): nothing can be added, and a sample would have waited for more items.

    The message has the table and the reason. A sampler's iteration ends instead of raising this.
    """


class SchemaError(ReplayError, ValueError):
    """The spec of a table is wrong, or the columns, shapes or dtypes of a batch. Nothing was stored."""


class PriorityError(ReplayError, ValueError):
    """A priority is NaN, infinite, negative, or too large for the table's exponent. Nothing was changed."""


class LimitExceeded(ReplayError):
    """A limit of the server was reached: request size, clients, memory, items, or a batch that no wait could admit."""


class ServerError(ReplayError, RuntimeError):
    """Any other error of the server, or a server process that did not start.

    Attributes:
        code: the first word of the server's error reply ("ERR", "NOAUTH", …); "" if the error is not a reply.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class NotPrimary(ServerError):
    """The server is a replica, became one under a call that waited, or is a primary whose place another one has taken.
    Or it is a shard that sends its client to another server (`code` "MOVED").

    It has done nothing. A client whose URL names several hosts looks for the primary itself, for `reconnect_timeout`;
    so does a client of a cluster, if another server has a shard's number.
    """


class StaleVersion(ServerError):
    """Weights of that version, or a newer one, are already published. Of `Rollouts`: the policy version is too old."""


class LeaseExpired(ServerError):
    """The lease of a sample is another worker's by now, or its batch was trained on. Nothing of that lease was changed.

    `submit_samples` and `put_columns` have stored what came with their other leases. A repeated call whose reply was
    lost raises it too, if the batch was trained on meanwhile: then the sample or the columns were used.

    Attributes:
        lost: the leases that were lost, of a call that submits or puts; else empty.
    """

    def __init__(self, message: str, code: str = "LEASEEXPIRED", lost: Sequence[Any] = ()) -> None:
        super().__init__(message, code)
        self.lost = list(lost)


class BatchNotTaken(ServerError):
    """`Rollouts.take` was asked for a batch, and the one before it was not taken. Nothing was changed."""


class GradientNotWaiting(ServerError):
    """A gradient that should be marked as applied does not wait: it was applied or dropped already, or is unknown.

    Nothing was published.
    """


_BY_CODE: dict[str, type[ReplayError]] = {
    "NOTABLE": TableNotFound,
    "CLOSED": TableClosed,
    "EXISTS": SchemaError,
    "BADSCHEMA": SchemaError,
    "BADSHAPE": SchemaError,
    "BADPRIORITY": PriorityError,
    "LIMIT": LimitExceeded,
    "OOM": LimitExceeded,
}


def error_from_reply(text: str) -> ReplayError:
    """The exception for an error reply, given without its leading '-': "CODE sentence"."""
    code, _, sentence = text.partition(" ")
    if code == "TIMEOUT":
        return Timeout(sentence)
    if code == "STALEVERSION":
        return StaleVersion(sentence, code)
    if code == "NOGRADIENT":
        return GradientNotWaiting(sentence, code)
    if code == "LEASEEXPIRED":
        return LeaseExpired(sentence, code)
    if code == "NOTTAKEN":
        return BatchNotTaken(sentence, code)
    if code in ("READONLY", "MOVED") or (code == "UNBLOCKED" and "instance state changed" in sentence):
        return NotPrimary(text, code)
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(sentence or text)
    if code == "ERR" and sentence.startswith("max number of clients"):
        return LimitExceeded(sentence)
    return ServerError(text, code)


def error_of_own_request(error: ReplayError) -> ReplayError:
    """An error reply to a request of this client, whose lengths are well-formed: one that the server calls invalid, in
    Redis's words, is above its limit."""
    words = ("ERR Protocol error: invalid bulk length", "ERR Protocol error: invalid multibulk length")
    if isinstance(error, ServerError) and str(error).startswith(words):
        return LimitExceeded(f"the request is larger than the server takes (proto-max-bulk-len): {error}")
    return error


def error_from_core(code_name: str, message: str) -> ReplayError:
    """The exception for a refusal of the native core: the code's name as the server would send it, and the sentence."""
    return error_from_reply(f"{code_name} {message}")


def explain(what: str, timeout: float | None, value: Any) -> Any:
    """Gives a Timeout the command that it ended."""
    if isinstance(value, Timeout):
        waited = "would have to wait" if timeout == 0 else f"timed out after {timeout:g} s" if timeout else "stopped"
        return Timeout(f"{what} {waited}: {value.reason}", value.reason)
    return value
