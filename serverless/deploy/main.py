"""What functions-framework loads in a container: the function behind HTTP."""

from replay_server.serverless.entry_http import handle

__all__ = ["handle"]
