"""How the pages look: style.css beside this file, and what a page says when the dashboard is gone."""

from importlib.resources import files

CSS = files("replay_server.dashboard").joinpath("style.css").read_text()

DISCONNECTED = """
const box = document.getElementById('popup');
if (box) box.textContent = 'The dashboard does not answer. Its job may have ended: '
    + 'replay-server dashboard --logdir RUN shows it again.';
"""
