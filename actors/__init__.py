"""The acting side of a run: vectorised environments, rollouts that fill the replay table, and the evaluator."""

if __name__ != "replay_server.actors":
    # From the repository root `import actors` would load a second copy of everything below.
    raise ImportError("import replay_server.actors: the folder actors/ is installed as a part of replay_server")
