"""The pages: all that is watched, one job, one server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from nicegui import ui

from replay_server.dashboard import charts
from replay_server.dashboard.kinds import job_view
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.server_view import ServerView
from replay_server.dashboard.style import CSS, DISCONNECTED
from replay_server.dashboard.view import Shown, View
from replay_server.dashboard.watch import Watch
from replay_server.dashboard.widgets import PanelBox, Text, TileBox, division, text

EVERY_S = 1.0
FACTS = 4
"""Tiles of a view that the overview shows."""


class Link(NamedTuple):
    """One line at the left: where it leads, and how that is."""

    title: str
    detail: str
    target: str
    tone: str | None


class Pages:
    """What a watch shows, as pages. One of these for any number of tabs."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._views: dict[tuple[Any, ...], Shown] = {}
        ui.page("/")(self.overview)
        ui.page("/job/{key}")(self.job)
        ui.page("/server/{number}")(self.server)

    # -- pages

    def overview(self, theme: str = "") -> None:
        """A card for each job and server; where there is one job, and nothing else but its server, that job itself."""
        watch = self.watch
        own = {run.server_name for run in watch.runs}
        if len(watch.runs) == 1 and all(server.name in own for server in watch.servers):
            run = watch.runs[0]
            compared = self._compared(run, "")
            self._view_page(self._shown(job_view(run, self.watch, compared), run, compared), "/", theme)
            return
        with self._frame("/", theme):
            with division("d-head"):
                text("All jobs and servers", "d-title")
            with division("d-overview") as cards:
                pass
        shown: list[Any] = []
        refreshers: list[Callable[[], None]] = []

        def refresh() -> None:
            sources = [*watch.runs, *watch.servers]
            if sources != shown:
                shown[:] = sources
                refreshers.clear()
                cards.clear()
                with cards:
                    for run in watch.runs:
                        refreshers.append(_card(job_view(run, watch), _job_path(run)))
                    for server in watch.servers:
                        refreshers.append(_card(ServerView(server), f"/server/{server.number}"))
                    if not sources:
                        text("Nothing to show yet: no run directory was found, and no server given.", "d-empty")
            for each in refreshers:
                each()

        refresh()
        ui.timer(EVERY_S, refresh)

    def job(self, key: str, compare: str = "", theme: str = "") -> None:
        """One job; `compare`: the key of another run to draw beside it."""
        run = next((each for each in self.watch.runs if each.key == key), None)
        if run is None:
            self._nothing(theme)
            return
        compared = self._compared(run, compare)
        self._view_page(self._shown(job_view(run, self.watch, compared), run, compared), _job_path(run), theme, run)

    def server(self, number: int, theme: str = "") -> None:
        """One server."""
        source = self.watch.server_numbered(number)
        if source is None:
            self._nothing(theme)
            return
        self._view_page(self._shown(ServerView(source), source), f"/server/{number}", theme)

    # -- parts

    def _links(self) -> list[tuple[str, list[Link]]]:
        """Headings and what stands below them, at the left of every page."""
        tones = {"running": "good", "killed": "bad", "up": "good", "lost": "bad"}
        titles = [run.title for run in self.watch.runs]
        jobs = []
        for run in self.watch.runs:
            env, _, rest = run.title.partition(" · ")
            alike = titles.count(run.title) > 1  # Then the folder tells them apart.
            detail = f"{run.state} · {run.key if alike else rest}"
            jobs.append(Link(env, detail, _job_path(run), tones.get(run.state, "")))
        servers = [
            Link(each.name.partition("://")[2], each.state, f"/server/{each.number}", tones.get(each.state, "warn"))
            for each in self.watch.servers
        ]
        return [(heading, group) for heading, group in (("Jobs", jobs), ("Servers", servers)) if group]

    def _compared(self, run: RunSource, key: str) -> RunSource | None:
        if not key:
            earlier = self.watch.compare
            return earlier if earlier is not None and earlier.kind == run.kind else None
        return next((each for each in self._others(run) if each.key == key), None)

    def _others(self, run: RunSource) -> list[RunSource]:
        every = [*self.watch.runs, *([self.watch.compare] if self.watch.compare else [])]
        return [each for each in every if each is not run and each.kind == run.kind]

    def _nothing(self, theme: str) -> None:
        with self._frame("", theme):
            text("There is no such page. It may be gone with a restart of the dashboard.", "d-empty")

    def _shown(self, view: View, *key: Any) -> Shown:
        """One for all tabs that show the same; the first of them brings the view."""
        return self._views.setdefault(key, Shown(view))

    def _view_page(self, shown: Shown, path: str, theme: str, run: RunSource | None = None) -> None:
        view = shown.view
        ui.page_title(view.title)
        with self._frame(path, theme):
            with division("d-head"):
                text(view.title, "d-title")
                state = Text("d-state")
                subtitle = Text("d-subtitle")
                banner = Text("d-banner")  # in the head, so that nothing moves when it appears
                if run is not None and self._others(run):
                    self._compare_choice(run, path)
            with division("d-tiles"):
                tiles = [TileBox(tile) for tile in view.tiles]
            with division("d-grid"):
                panels = [PanelBox(panel) for panel in view.panels]
        seen: list[Any] = [None]

        def refresh() -> None:
            if (version := view.version()) == seen[0]:
                return
            seen[0] = version
            state.show(*view.state)
            subtitle.show(view.subtitle)
            message = view.banner()
            banner.visible(message is not None)
            if message is not None:
                banner.show(message.text, message.tone)
            facts, found = shown.now()
            for tile, fact in zip(tiles, facts):
                tile.show(fact)
            for panel, (drawn, note) in zip(panels, found):
                panel.show(drawn, note)

        refresh()
        ui.timer(EVERY_S, refresh)

    def _compare_choice(self, run: RunSource, path: str) -> None:
        names = {"": "compare with …", **{each.key: f"with {each.key}" for each in self._others(run)}}
        now = self._compared(run, ui.context.client.request.query_params.get("compare", ""))
        ui.select(
            names,
            value=now.key if now else "",
            on_change=lambda event: ui.navigate.to(_with(path, compare=event.value)),
        ).props("dense outlined options-dense").classes("d-select")

    def _frame(self, path: str, theme: str) -> Any:
        """The page around: sheet, theme, list of sources. The caller fills the main part."""
        ui.add_css(CSS)
        ui.query(".nicegui-content").classes("p-0")
        dark = ui.dark_mode({"dark": True, "light": False}.get(theme))
        ui.add_body_html(f"<script>addEventListener('load', () => {{ {DISCONNECTED} }});</script>")
        with division("d-page"):
            with division("d-side"):
                text("Replay server", "d-brand")
                links = division("").style("display: flex; flex-direction: column; gap: 2px; flex: 1")
                with ui.row().classes("items-center").style("gap: 0"):
                    for icon, value, name in (("light_mode", False, "light"), ("dark_mode", True, "dark"), ("contrast", None, "as the system has it")):  # fmt: skip  # noqa: E501
                        button = ui.button(icon=icon, on_click=partial(_choose_theme, dark, value))
                        button.props(f'flat round dense size=sm color=grey aria-label="{name}"').tooltip(name)
            main = division("d-main")
        if not theme:
            ui.timer(0.05, lambda: _remembered_theme(dark), once=True)
        shown: list[Any] = []

        def refresh() -> None:
            groups = self._links()
            if groups == shown:
                return
            shown[:] = groups
            links.clear()
            with links:
                _link(Link("Overview", "", "/", None), path)
                for heading, group in groups:
                    text(heading, "d-group")
                    for each in group:
                        _link(each, path)

        refresh()
        ui.timer(EVERY_S, refresh)
        return main


def _link(link: Link, path: str) -> None:
    with ui.link(target=link.target).classes(f"d-link {'d-chosen' if link.target == path else ''}"):
        division("" if link.tone is None else f"d-dot d-{link.tone}")
        text(link.title, "d-name")
        if link.detail:
            text(link.detail, "d-more")


def _card(view: View, target: str) -> Callable[[], None]:
    """A card of the overview; what is returned brings it up to date."""
    with ui.link(target=target), division("d-card"):
        with division("d-head").style("min-height: 0"):
            text(view.title, "d-title").style("font-size: 14px; overflow: hidden; text-overflow: ellipsis; flex: 1")
            state = Text("d-state")
        with division("d-facts"):
            facts = []
            for tile in view.tiles[:FACTS]:
                with division("d-fact"):
                    text(tile.title, "d-label")
                    facts.append((tile, Text("d-value")))
        line = ui.echart(charts.sparkline(view.gist(), charts.TEAL)).style("height: 46px; width: 100%")
        subtitle = Text("d-subtitle")
    drawn = [view.gist()]

    def refresh() -> None:
        state.show(*view.state)
        subtitle.show(view.subtitle)
        if (points := view.gist()) != drawn[0]:
            drawn[0] = points
            line.run_chart_method("setOption", {"series": [{"id": "shown", "data": charts.thin(points)}]})
        for tile, shown in facts:
            fact = tile.shown()
            shown.show(fact.value if fact else "", fact.tone if fact else "")

    return refresh


def _job_path(run: RunSource) -> str:
    return f"/job/{quote(run.key, safe='')}"


def _with(path: str, **parameters: str) -> str:
    given = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _choose_theme(dark: Any, value: bool | None) -> None:
    dark.value = value
    word = {True: "dark", False: "light", None: ""}[value]
    ui.run_javascript(f"localStorage.setItem('replay-theme', '{word}')")


async def _remembered_theme(dark: Any) -> None:
    word = await ui.run_javascript("localStorage.getItem('replay-theme') || ''", timeout=10.0)
    dark.value = {"dark": True, "light": False}.get(str(word))
