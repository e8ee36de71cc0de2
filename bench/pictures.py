"""`replay-server bench pictures DIR`: draws a serverless run, and tells what it cost by a price profile.

The log of its invocations is all that the bill needs, so that a run can be billed again by other prices.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.plots import draw_run
from replay_server.serverless.prices import COLUMNS, PriceError, load_prices


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="run directory of replay-server train")
    add_price_options(parser)
    parser.add_argument("--no-pictures", action="store_true", help="the bill alone")
    parser.add_argument("--json", metavar="FILE", help="write the bill there")
    return parser


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which bill is meant: `bill_of` reads them."""
    parser.add_argument("--prices", metavar="FILE", help="price file (the one of this package)")
    parser.add_argument("--price-profile", default="lambda", metavar="NAME", help="of the price file (lambda)")
    parser.add_argument("--price-column", choices=COLUMNS, default="full", help="what is counted (full)")
    parser.add_argument(
        "--provisioned", type=int, default=0, metavar="N", help="instances kept warm, for profiles that have such"
    )


def bill_of(options: argparse.Namespace) -> Bill:
    """An empty bill by these options. RuntimeError for prices that there are not."""
    try:
        return Bill(load_prices(options.prices), options.price_profile, options.price_column, options.provisioned)
    except (PriceError, ValueError) as error:
        raise RuntimeError(str(error)) from error


def tell_bill(summary: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """A bill's summary, for people."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    say(f"{summary['profile']}: {summary['about']}")
    say(f"{summary['invocations']} invocations ({outcomes}) in {summary['duration_s']:.1f} s")
    for column, dollars in summary["columns"].items():
        say(f"  {column:<20} ${dollars:.8f}{'   <- the bill' if column == summary['column'] else ''}")
    for resource, amount in summary["resources"].items():
        rest = ", ".join(f"{value:,.3f} {name}" for name, value in amount.items() if name != "dollars")
        say(f"    {resource:<18} ${amount['dollars']:.8f}   {rest}")
    if summary["reserved"]:
        say(f"  {'reserved machines':<20} ${summary['reserved']['dollars']:.8f}   for the same time")
    for name, seconds in summary["idle"].items():
        say(f"  idle {name.removesuffix('_s').replace('_', ' '):<20} {seconds:12,.1f} s")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    bill = bill_of(options)
    bill.add(*read_invocations(options.directory))
    summary = bill.summary()
    tell_bill(summary, say)
    if not options.no_pictures:
        for path in draw_run(options.directory):
            say(str(path))
    if options.json:
        result.write(options.json, {"name": "pictures", "directory": str(options.directory), **summary})
    return 0
