"""Live views of servers and jobs: in the browser (`replay-server dashboard`) and in the terminal (`replay-server top`).

Both read the same sources: a server's INFO, REPLAY.INFO and reports over one connection once a second, and the files
of run directories. Nothing here is in the way of a job: it only looks.
"""
