"""The learners: what turns sampled experience into new weights."""

if __name__ != "replay_server.learner":
    raise ImportError(
        "expected to be imported as replay_server.learner, got as "
        f"{__name__!r}: install the package (pip install -e .) instead of importing from the source folder"
    )
