"""The exceptions of the library, and how an error of the server or of the native core becomes one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReplayError(Exception):
    """Base of every error of this library."""


class ConnectionLost(ReplayError, ConnectionError):
    """The server cannot be reached, or the connection ended before the reply was complete.

    The client has already repeated commands that are safe to repeat. If an `add`, or a `publish_weights` without a
    version, raises this, the server may or may not have stored the data.
    """


class Timeout(ReplayError, TimeoutError):
    """A call that waits, such as `add` or `sample`, waited longer than its timeout.

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
    """The table is closed (`Client.close_table`): it takes no items, and no more will come for a sample that waits.

    The message names the table and the reason. A sampler's iteration ends instead of raising this.
    """


class SchemaError(ReplayError, ValueError):
    """The spec of a table is wrong, or the columns, shapes or dtypes of a batch are. Nothing was stored."""


class PriorityError(ReplayError, ValueError):
    """A priority is NaN, infinite, negative, or too large for the table's exponent. Nothing was changed."""


class LimitExceeded(ReplayError):
    """A limit of the server was reached: request size, clients, memory, items, or a batch that no wait could let in."""


class ServerError(ReplayError, RuntimeError):
    """Any other error of the server, or a server process that did not start.

    Attributes:
        code: the first word of the server's error reply ("ERR", "NOAUTH", …); "" if the error is not a reply.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class NotPrimary(ServerError):
    """The server is a replica, became one while a call waited, or is a primary that another one has replaced. Or it is
    a shard that sends its client to another server (`code` "MOVED").

    The call has done nothing. A client whose URL names several hosts looks for the primary itself, for
    `reconnect_timeout`; so does a client of a cluster, if another server has taken over a shard's number.
    """


class StaleVersion(ServerError):
    """Weights of that version, or a newer one, are already published. Of `Rollouts`: the policy version is too old."""


class LeaseExpired(ServerError):
    """Another worker has the lease of a sample now, or its batch was trained on. The call did not change that sample.

    `submit_samples` and `put_columns` have stored the data of their other leases. A call that is repeated because its
    reply was lost also raises this if the batch was trained on meanwhile: then the sample or the columns were used.

    Attributes:
        lost: the lost leases, after `submit_samples` and `put_columns`; else empty.
    """

    def __init__(self, message: str, code: str = "LEASEEXPIRED", lost: Sequence[Any] = ()) -> None:
        super().__init__(message, code)
        self.lost = list(lost)


class BatchNotTaken(ServerError):
    """`Rollouts.take` was asked for a batch before the previous one was taken. Nothing was changed."""


class GradientNotWaiting(ServerError):
    """A gradient cannot be marked as applied, because it is not waiting: it was applied, dropped, or never pushed.

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
    """The exception for an error reply to this client's own request. Its lengths are well-formed, so a length that the
    server calls invalid, in Redis's words, is above the server's limit."""
    settings = {"invalid bulk length": "proto-max-bulk-len", "invalid multibulk length": "max-arguments"}
    for words, setting in settings.items():
        if isinstance(error, ServerError) and str(error).startswith(f"ERR Protocol error: {words}"):
            advice = "send less at once, or raise that setting"
            return LimitExceeded(f"the request is larger than the server takes ({setting}); {advice}: {error}")
    return error


def error_from_core(code_name: str, message: str) -> ReplayError:
    """The exception for an error of the native core, from its code's name (as the server sends it) and its sentence."""
    return error_from_reply(f"{code_name} {message}")


def explain(what: str, timeout: float | None, value: Any) -> Any:
    """Adds to a Timeout what timed out."""
    if isinstance(value, Timeout):
        waited = "would have to wait" if timeout == 0 else f"timed out after {timeout:g} s" if timeout else "stopped"
        return Timeout(f"{what} {waited}: {value.reason}", value.reason)
    return value
