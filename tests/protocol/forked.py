"""A child made by os.fork, for tests of what it sees of its parent's."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked child that runs one call, once it is told to; what that returns comes back as JSON."""

    def __init__(self, call: Callable[[], Any]) -> None:
        go, self._go = os.pipe()
        self._result, result = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                os.read(go, 1)
                os.write(result, json.dumps(call()).encode())
            except BaseException:
                os.write(result, json.dumps(traceback.format_exc()).encode())
            finally:
                os._exit(0)
        os.close(go)
        os.close(result)

    def result(self) -> Any:
        """Lets the child go on, and waits for what it has to say."""
        os.close(self._go)
        with open(self._result, "rb") as told:
            text = told.read()
        os.waitpid(self.pid, 0)
        return json.loads(text)
