"""``replay-server bench scalers``: how many actors a round gets, by scaler; what it brings, takes and costs."""

from replay_server.bench.papers.nitro.command import main

__all__ = ["main"]
