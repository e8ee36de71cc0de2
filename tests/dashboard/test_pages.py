"""The pages in a real browser: what they say, what a reload keeps, what they make of loss, restart and end."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from looked_at import Dashboard, FakeApex, fill, prioritized, write_train

import replay_server as rs
from replay_server.dashboard import words

pytest.importorskip("nicegui", reason="the dashboard needs nicegui: pip install 'replay-server[dashboard]'")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="pages are tested with playwright: pip install playwright"
)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
browser_needed = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")

MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page at the size of a small laptop; an error in its scripts or console, or a dialogue, fails the test."""
    opened = browser.new_page(viewport={"width": 1366, "height": 768})
    opened.set_default_timeout(MINUTE_MS)
    opened.set_default_navigation_timeout(MINUTE_MS)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield opened
    opened.close()
    assert wrong == []


def tile(page: Any, title: str) -> Any:
    return page.locator(".d-tile", has=page.get_by_text(title, exact=True))


def shows(place: Any, text: str) -> None:
    playwright.expect(place).to_contain_text(text, timeout=MINUTE_MS)


# Points of each line that a panel's chart draws, as the browser has them.
POINTS = """(card) => {
  const id = card.querySelector('[_echarts_instance_], .nicegui-echart')?.id?.slice(1);
  const chart = getElement(Number(id)).chart;
  return Object.fromEntries(chart.getOption().series.map((each) => [each.name ?? each.id, each.data]));
}"""


def points(page: Any, title: str) -> dict[str, list[Any]]:
    card = page.locator(".d-card", has=page.get_by_text(title, exact=True)).first
    card.locator("canvas").first.wait_for()
    return card.evaluate(POINTS)


@browser_needed
def test_a_server_page_says_what_info_says(
    server: rs.Server, client: rs.Client, open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    fill(client, "apex", 123, priority=3.0)
    client.sample("apex", 50)
    page.goto(open_dashboard("--url", server.url).url + "/server/0")
    row = page.locator(".d-table tr", has_text="apex")
    about = client.info("apex")
    for text in (str(about["size"]), "1,000", "limiter open"):
        shows(row, text)
    shows(page.locator(".d-table tr", has_text="REPLAY.SAMPLE"), "1")
    shows(page.locator(".d-state"), "up")
    shows(tile(page, "Tables"), "1")
    assert points(page, "Priorities") == {"items": [123]}


@browser_needed
def test_a_job_page_follows_the_job_to_its_end(
    server: rs.Server,
    client: rs.Client,
    fake_apex: Callable[..., FakeApex],
    open_dashboard: Callable[..., Dashboard],
    page: Any,
) -> None:
    job = fake_apex(client, server.url, actors=3)
    job.write_rows(8)
    job.report()
    fill(client, "apex", 200)
    page.goto(open_dashboard("--logdir", str(job.path)).url)
    shows(page.locator(".d-title"), "CartPole-v1 · Ape-X · seed 7")
    shows(page.locator(".d-head .d-state"), "running")
    shows(tile(page, "Evaluation"), "280")
    shows(tile(page, "Actors' score"), "101")
    shows(tile(page, "Processes"), "4 of 4")
    assert len(points(page, "Score of full games")["evaluation"]) == 8
    job.write_rows(3, first=8)
    shows(tile(page, "Evaluation"), "400")
    page.wait_for_function("document.querySelectorAll('canvas').length >= 6")
    assert len(points(page, "Score of full games")["evaluation"]) == 11
    job.end("target_score")
    shows(page.locator(".d-banner"), "The job has ended (target score). Score 498.5 over 20 games.")
    shows(page.locator(".d-head .d-state"), "ended: target score")


@browser_needed
def test_a_reload_keeps_what_was_seen(
    server: rs.Server,
    client: rs.Client,
    open_dashboard: Callable[..., Dashboard],
    page: Any,
    wait_for: Callable[..., Any],
) -> None:
    fill(client, "apex", 10)
    page.goto(open_dashboard("--url", server.url).url + "/server/0")
    title = "Commands a second"
    wait_for(lambda: len(points(page, title)["commands"]) >= 5, "five looks at the server")
    before = points(page, title)["commands"]
    page.reload()
    after = points(page, title)["commands"]
    assert after[: len(before)] == before


@browser_needed
def test_a_server_that_is_lost_and_started_again_is_shown_so(
    open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"redis://127.0.0.1:{port}"
    with rs.Server([prioritized("first")], port=port):
        page.goto(open_dashboard("--url", url).url + "/server/0")
        shows(page.locator(".d-head .d-state"), "up")
        shows(page.locator(".d-table").first, "first")
    shows(page.locator(".d-banner"), f"{url} does not answer since")
    shows(page.locator(".d-head .d-state"), "lost")
    with rs.Server([prioritized("second")], port=port):
        shows(page.locator(".d-banner"), f"{url} was started again at")
        shows(page.locator(".d-table").first, "second")
        playwright.expect(page.locator(".d-table").first).not_to_contain_text("first")


@browser_needed
def test_a_name_is_a_text_whatever_is_in_it(
    server: rs.Server, client: rs.Client, open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    name = "<img/src=x/onerror=alert(1)>"
    client.create_table(prioritized(name))
    fill(client, name, 20)
    page.goto(open_dashboard("--url", server.url).url + "/server/0")
    shows(page.locator(".d-table").first, name)
    page.wait_for_function("document.querySelectorAll('canvas').length >= 5")
    assert page.locator("img[src=x]").count() == 0


# Every chart of a page shows the tooltip of each of its first points, as the pointer over it would.
HOVER = """() => {
  let shown = 0;
  for (const each of document.querySelectorAll('.nicegui-echart')) {
    const chart = getElement(Number(each.id.slice(1))).chart;
    chart.getOption().series.forEach((series, seriesIndex) => {
      for (let dataIndex = 0; dataIndex < Math.min(5, series.data.length); dataIndex++) {
        chart.dispatchAction({type: 'showTip', seriesIndex, dataIndex});
        shown++;
      }
    });
  }
  return shown;
}"""
MARKUP = "<img/src=x/onerror=alert(1)>"


@browser_needed
def test_names_of_runs_and_functions_are_texts_in_titles_links_and_tooltips(
    tmp_path: Path, open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    """A run's environment and its requests' names are whatever its files say."""
    dialogs: list[Any] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
    for name in ("first", "second"):
        write_train(tmp_path / name, rounds=3, env=MARKUP, request=f"{MARKUP}r")
    url = open_dashboard("--logdir", str(tmp_path)).url
    page.goto(url)
    shows(page.locator(".d-overview .d-card").first, MARKUP)
    shows(page.locator(".d-link").nth(1), MARKUP)
    page.goto(f"{url}/job/first?compare=second")
    shows(page.locator(".d-title").first, MARKUP)
    assert MARKUP in page.title()
    names = {bar["name"] for bar in points(page, "Functions")["functions"]}
    assert any(name.startswith(MARKUP) for name in names)
    assert page.evaluate(HOVER) > 10
    shows(page.locator(".nicegui-echart", has_text=f"{MARKUP}r").first, "actor, attempt 1")
    assert page.locator("img[src=x]").count() == 0
    assert not dialogs


@browser_needed
def test_a_serverless_job_has_its_functions(
    tmp_path: Path, open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    write_train(tmp_path / "run", rounds=6)
    page.goto(open_dashboard("--logdir", str(tmp_path / "run")).url)
    shows(tile(page, "Round"), "6 of 20")
    shows(tile(page, "Cost"), "$0.006")
    bars = points(page, "Functions")["functions"]
    assert len({bar["value"][0] for bar in bars}) == 4
    assert {bar["name"] for bar in bars} >= {"r6-a0 · actor, attempt 1, ok", "r2-a3 · actor, attempt 1, lost"}


WINDOW = """() => [...document.querySelectorAll('.nicegui-echart')]
  .map((each) => getElement(Number(each.id.slice(1))).chart?.getOption().dataZoom ?? [])
  .filter((zooms) => zooms.length)[0]?.[0].startValue"""


@browser_needed
def test_the_view_of_functions_goes_with_the_newest_rounds(
    tmp_path: Path, open_dashboard: Callable[..., Dashboard], page: Any, wait_for: Callable[..., Any]
) -> None:
    write_train(tmp_path / "run", rounds=8)
    page.goto(open_dashboard("--logdir", str(tmp_path / "run")).url)
    begin = wait_for(lambda: page.evaluate(WINDOW), "the view of functions")
    write_train(tmp_path / "run", rounds=16)
    shows(tile(page, "Round"), "16 of 20")
    wait_for(lambda: page.evaluate(WINDOW) >= begin + 20.0, "the view to move on by eight rounds")


@browser_needed
def test_many_sources_have_an_overview_and_can_be_compared(
    server: rs.Server, fake_apex: Callable[..., FakeApex], open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    first, second = fake_apex(actors=64, name="first"), fake_apex(actors=64, name="second")
    first.write_rows(20)
    second.write_rows(9)
    url = open_dashboard("--logdir", str(first.path.parent), "--url", server.url).url
    page.goto(url)
    playwright.expect(page.locator(".d-overview .d-card")).to_have_count(3)
    page.goto(f"{url}/job/second?compare=first")
    drawn = points(page, "Score of full games")
    assert (len(drawn["evaluation"]), len(drawn["first"])) == (9, 20)
    # 64 actors do not make the page wider, nor longer than what is said of each.
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    assert len(points(page, "Score of each actor")["cells"]) == 64 * 9


PLACES = """() => [...document.querySelectorAll('.d-tile, .d-card, .d-head')].map((each) => {
  const place = each.getBoundingClientRect();
  return [place.x, place.y, place.width, place.height].map(Math.round);
})"""


@browser_needed
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_moves_while_numbers_change(
    theme: str, tmp_path: Path, fake_apex: Callable[..., FakeApex], open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    job = fake_apex(actors=12)
    job.write_rows(2)
    page.goto(f"{open_dashboard('--logdir', str(job.path)).url}?theme={theme}")
    shows(tile(page, "Frames"), "1,000 in all")
    page.wait_for_function("document.querySelectorAll('canvas').length >= 5")
    before = page.evaluate(PLACES)
    job.write_rows(40, first=2)
    shows(tile(page, "Frames"), "41 k in all")
    shows(tile(page, "Evaluation"), "kept 500")
    assert page.evaluate(PLACES) == before
    job.end()
    shows(page.locator(".d-banner"), "The job has ended")
    assert page.evaluate(PLACES) == before
    aligned = "(cell) => getComputedStyle(cell).textAlign"
    row = page.locator(".d-table tbody tr", has_text="actor 3")
    assert [cell.evaluate(aligned) for cell in row.locator("td").all()] == ["left"] * 2 + ["right"] * 4


@browser_needed
def test_weights_of_a_server_have_version_size_and_age(
    server: rs.Server, client: rs.Client, open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    for _ in range(3):
        client.publish_weights("policy<b>", {"w": np.zeros(1000, np.float32)})
    about = client.redis.execute_command("WEIGHTS.INFO", "policy<b>")
    about = about if isinstance(about, dict) else dict(zip(about[::2], about[1::2]))
    size = {str(name, "ascii") if isinstance(name, bytes) else name: value for name, value in about.items()}["bytes"]
    page.goto(open_dashboard("--url", server.url).url + "/server/0")
    row = page.locator(".d-table tr", has_text="policy<b>")
    for text in ("policy<b>", "3", words.size(size), " s ago"):
        shows(row, text)


@browser_needed
def test_the_run_to_compare_with_is_drawn_where_there_is_one_job_only(
    fake_apex: Callable[..., FakeApex], open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    first, second = fake_apex(name="first"), fake_apex(name="second")
    first.write_rows(20)
    second.write_rows(9)
    page.goto(open_dashboard("--logdir", str(second.path), "--compare", str(first.path)).url)
    drawn = points(page, "Score of full games")
    assert (len(drawn["evaluation"]), len(drawn["first"])) == (9, 20)


@browser_needed
def test_what_cannot_be_a_number_breaks_no_page(
    tmp_path: Path, fake_apex: Callable[..., FakeApex], open_dashboard: Callable[..., Dashboard], page: Any
) -> None:
    job = fake_apex(actors=3, name="<b>" + "n" * 120)
    job.write_rows(5)
    with open(job.path / "metrics.jsonl", "a") as file:
        at = f'"time_s": {job.began_s + 60}'
        for value in ("NaN", "-Infinity", "1e999", "null", '"x"', "[]"):
            file.write(f'{{"kind": "evaluation", {at}, "score_mean": {value}, "score_std": {value}}}\n')
            file.write(f'{{"kind": "progress", {at}, "frames": {value}, "size": {value}, "actor_0_score": {value}}}\n')
        file.write('{"kind": "progress", "time_s": 1')  # A line that is not whole.
    page.goto(open_dashboard("--logdir", str(job.path)).url)
    shows(tile(page, "Evaluation"), "–")
    shows(tile(page, "Evaluation"), "kept 160")
    assert [value for _, value in points(page, "Score of full games")["evaluation"]][5:] == [None] * 6
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    page.reload()
    shows(tile(page, "Frames"), "–")


def test_another_name_for_this_address_is_refused(tmp_path: Path, open_dashboard: Callable[..., Dashboard]) -> None:
    """A page elsewhere whose name is made to lead here could read the dashboard in the browser of who visits it."""
    write_train(tmp_path / "run", rounds=1)
    url = open_dashboard("--logdir", str(tmp_path / "run")).url
    assert urlopen(url, timeout=60).status == 200
    with pytest.raises(OSError, match="400"):
        urlopen(Request(url, headers={"Host": "elsewhere.example"}), timeout=60)


def test_it_ends_when_it_is_interrupted(tmp_path: Path, open_dashboard: Callable[..., Dashboard]) -> None:
    write_train(tmp_path / "run", rounds=1)
    dashboard = open_dashboard("--logdir", str(tmp_path / "run"))
    assert dashboard.stop() == 130


def test_it_ends_in_order_when_it_is_terminated(tmp_path: Path, open_dashboard: Callable[..., Dashboard]) -> None:
    write_train(tmp_path / "run", rounds=1)
    dashboard = open_dashboard("--logdir", str(tmp_path / "run"))
    assert urlopen(dashboard.url, timeout=60).status == 200
    assert dashboard.stop(signal.SIGTERM) == 0
