"""Benchmarks: ``replay-server bench server``. A result file says on what machine and by what command."""

if __name__ != "replay_server.bench":
    raise ImportError("import it as replay_server.bench: the folder bench/ is a part of the package replay_server")
