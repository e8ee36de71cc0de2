"""docs/protocol.md tells the truth: its examples, sent in order to a fresh server, get the answers that it shows."""

from __future__ import annotations

import re

import replay_server as rs

EXAMPLE = re.compile(r"```resp\n> (.*)\n< (.*)\n```")


DRAWN = re.compile(rb"(?<=incarnation\r\n:)\d{19}|(?<=incarnation\xcf).{8}|(?<=\$16\r\n)[0-9a-f]{16}", re.DOTALL)


def unescaped(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def test_every_example_is_answered_as_shown(repository, open_raw):
    examples = EXAMPLE.findall((repository / "docs" / "protocol.md").read_text())
    assert len(examples) > 20
    with rs.Server() as server:
        raw = open_raw(server.url)
        for request, answer in examples:
            raw.send(unescaped(request))
            expected = unescaped(answer)
            came = b""
            while len(came) < len(expected) and (chunk := raw.socket.recv(len(expected) - len(came))):
                came += chunk
            assert DRAWN.sub(b"", came) == DRAWN.sub(b"", expected), request


def test_every_command_of_ours_is_described(repository, raw):
    document = (repository / "docs" / "protocol.md").read_text()
    names = [name.decode() for name in raw.command("COMMAND", "LIST")]
    ours = [name.upper() for name in names if name.startswith(("replay.", "weights.", "grad."))]
    assert len(ours) > 10
    headings = " ".join(line for line in document.splitlines() if line.startswith("## "))
    assert [name for name in ours if name not in headings] == []
