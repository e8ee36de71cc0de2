"""Every number in a table of results is found in the file that the table names."""

from __future__ import annotations

import pytest

from tests.docs.pages import Page, all_pages
from tests.docs.result_tables import Table, numbers, tables, unbacked

NOT_RESULTS = {
    "docs/reference/commands.md": "generated from the parsers",
    "docs/compatibility.md": "written by tests/conformance/compatibility.py from docs/benchmarks/redis-suite.json",
    "docs/transports.md": "limits and settings; links to figures of other pages",
}
"""Pages that link to files of results and hold none."""
EXCEPTIONS = {
    "README.md": {
        "#": "rows of docs/benchmarks.md, each with its file in its last column",
    },
    "examples/README.md": {"example": "what the examples print; of the one whose runs differ, a table below it"},
    "docs/benchmarks.md": {
        "section": "what is measured",
        "side": "what the sides do",
        "measurement": "what is measured",
    },
    "docs/durability.md": {
        "setting": "settings",
        "`appendfsync`": "what is promised",
        "of a table": "what is recorded",
        "the last increment ends with an incomplete command, or in zeros": "what a start does",
    },
    "docs/figures.md": {"`access`": "what the paper had", "push of an actor": "sizes of messages"},
    "docs/papers.md": {"paper": "what the papers claim; our numbers stand in the tables of each paper"},
    "docs/results.md": {"task": "goals, and rows of the tables below it"},
    "docs/scaler-comparison.md": {
        "`constant`": "formulas of the schemes",
        "final reward": "what the columns mean",
        "NAME": "names of the papers' figures",
        "network, initial weights, log standard deviation, observations' normalisation": "factors in the code",
    },
    "docs/scheduler.md": {"state (8)": "settings", "`--task`": "settings"},
}
"""Page → the first word of a table's heading, or the label of its first row → why no file is named above it."""


def is_of_results(page: Page) -> bool:
    linked = "benchmarks/" in page.text and any("benchmarks/" in target for _, target in page.links())
    return page.name not in NOT_RESULTS and (linked or page.name.startswith("docs/papers"))


def shows_numbers(table: Table) -> bool:
    return any(list(numbers(cell)) for row in table.rows for cell in row[1:])


PAGES = [page for page in all_pages() if is_of_results(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_number_in_a_table_is_in_the_file_that_the_table_names(page: Page) -> None:
    excepted = EXCEPTIONS.get(page.name, {})
    unused = set(excepted)
    wrong = []
    for table in tables(page.prose):
        where = f"{page.name}:{table.line}"
        reasons = excepted.keys() & {table.heading[0], table.rows[0][0]}
        if reasons:
            unused -= reasons
        elif table.comment is not None:
            wrong += [f"{where}: {each}" for each in unbacked(table)]
        elif shows_numbers(table):
            wrong.append(f"{where}: no file is named above this table, and it is no exception: {table.heading}")
    assert not wrong, "numbers that no file backs:\n" + "\n".join(wrong)
    assert not unused, f"{page.name}: no such tables: {sorted(unused)}"


def table(comment: str, *rows: str) -> Table:
    text = f"<!-- numbers: {comment}\n-->\n\n| what | ours |\n|---|---|\n" + "\n".join(
        f"| it | {row} |" for row in rows
    )
    return next(tables(text))


FILE = "benchmarks/stellaris/hopper.json"


@pytest.mark.parametrize("shown", ["607 (569 to 620)", "606.6", "+26", "−2", "1.01"])
def test_a_number_is_backed_by_what_it_was_rounded_from(shown: str) -> None:
    assert unbacked(table(f"{FILE}\nmethod.stellaris.", shown)) == []


@pytest.mark.parametrize("shown", ["608", "606.5", "−26", "−607", "1.02", "1.01 %", "606 k"])
def test_a_wrong_digit_sign_or_unit_is_told(shown: str) -> None:
    assert unbacked(table(f"{FILE}\nmethod.stellaris.", shown))


def test_a_number_of_another_row_does_not_back_this_one() -> None:
    assert unbacked(table(f"{FILE}\nmethod.synchronous.\nmethod.stellaris.", "615", "615")) == ["it / ours: 615"]


def test_a_row_that_selects_nothing_or_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing in"):
        unbacked(table(f"{FILE}\nmethod.gone.", "607"))
    with pytest.raises(ValueError, match="a line for each of 2 rows"):
        unbacked(table(f"{FILE}\nmethod.stellaris.", "607", "615"))


def test_numbers_within_words_code_and_links_are_none() -> None:
    text = "fixed-16, Walker2d, `p99 0.5`, 10⁶, [7 runs](benchmarks/1.json), −3.5 %, 1,234 and 95.3 k"
    assert [each.shown for each in numbers(text)] == ["7", "−3.5 %", "1,234", "95.3 k"]
