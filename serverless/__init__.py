"""Serverless training: actors and learners as functions on a platform that starts them on demand and bills by use."""

if __name__ != "replay_server.serverless":
    raise ImportError("import replay_server.serverless: this folder is a part of the package replay_server")
