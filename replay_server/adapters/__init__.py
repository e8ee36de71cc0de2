"""Replay buffers of other libraries over this project's tables: a module for each library, which needs that library.

Each replaces a class of the library by its own interface: in this process (`replay_server.Buffer`), or on a server
(`url=`). What the library saves is a snapshot of the table, beside or within its own file; nothing is pickled.
"""
