"""A platform whose learner functions are RLlib's: so the engine, its scalers and its clock are as they ever are.

Actors and evaluations are this project's functions, on the platform that is given. A learner function takes the
learner's state and the round's fragments from the replay server, has RLlib make the update, measures what the scaler
asks for on this project's copy of the network, which then has RLlib's weights, and publishes it all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import threading
import time

from replay_server.bench.papers.nitro.rllib.learner import RllibLearner
from replay_server.learner.function import learn
from replay_server.rl.function_contract import LearnerRequest, decode_request, decode_response, encode_response
from replay_server.serverless.backends.backend import Attempt, FunctionTimeout, Platform, unrecorded
from replay_server.serverless.function import handle


class RllibPlatform:
    """A `Platform`. Learner functions run in this process, one at a time, and RLlib in one that is started for it.

    Args:
        platform: where actors and evaluations run; it is closed with this one.
        rllib: whose updates they are, closed with this one, too; None = one of its own.

    Raises RuntimeError where RLlib is not there.
    """

    def __init__(self, platform: Platform, rllib: RllibLearner | None = None) -> None:
        self._platform = platform
        self._turn = threading.Lock()
        self.rllib = rllib or RllibLearner()
        try:
            self.rllib.start()
        except RuntimeError:
            self.close()
            raise

    @property
    def name(self) -> str:
        return f"{self._platform.name}, RLlib"

    @property
    def memory_mb(self) -> int:
        return self._platform.memory_mb

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """As the platform's, but for learner functions. FunctionTimeout for one of them ends RLlib's process."""
        if not isinstance(decode_request(payload), LearnerRequest):
            return self._platform.invoke(payload, timeout_s)
        with self._turn:
            return self._learn(payload, timeout_s)

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        self._platform.prewarm(count, attempt)

    def close(self) -> None:
        """Ends RLlib's process, and the platform that was given."""
        self._platform.close()
        self.rllib.close()

    def _learn(self, payload: bytes, timeout_s: float) -> bytes:
        over = threading.Event()

        def end() -> None:
            over.set()
            if (pid := self.rllib.pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        limit = threading.Timer(timeout_s, end)
        limit.start()
        cpu_s, of_rllib_s = time.thread_time(), self.rllib.cpu_s
        try:
            answer = handle(payload, {"learner": functools.partial(learn, update=self.rllib.update)})
        finally:
            limit.cancel()
        response = decode_response(answer)
        if over.is_set() and response.failure is not None:
            raise FunctionTimeout(f"RLlib's update took longer than {timeout_s} s, and was ended")
        # Other threads of this process are other cells, and none of a learner function's work.
        cpu_s = time.thread_time() - cpu_s + self.rllib.cpu_s - of_rllib_s
        measured = dataclasses.replace(response.measured, cpu_s=cpu_s)
        return encode_response(dataclasses.replace(response, measured=measured))
