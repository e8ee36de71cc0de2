"""`replay-server bench curvature`: what Nitro's boosting score costs, and what each of its short cuts saves (20 b).

After every round of a real job, in this process, the score is measured as `replay-server train --scaler nitro` does it,
and again without the subset, of all samples. Times are processor seconds of one thread, so that other work on the
machine does not count. A round is learning and the acting of one actor, as if all acted at once and nothing else took
time: of a real round the score is a smaller share.

Without Lanczos' method the whole Hessian is formed, a product for each parameter, and all its eigenvalues are computed.
That is done for networks of --hidden-exact units; for the job's own network it is EXTRAPOLATED: products are as dear as
those measured there, and eigenvalues grow with the cube of the number of parameters.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from replay_server.actors.fragments import FragmentCollector, one_thread
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.option_types import at_least
from replay_server.learner.algorithms import Learner, make_learner, make_settings
from replay_server.learner.curvature import (
    CurvatureOptions,
    chosen_samples,
    hessian_product,
    objective_of,
    parameters_of,
    spectrum,
)
from replay_server.learner.impact import ImpactSettings
from replay_server.rl.fragments import Fragments
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless.scalers.nitro import convexity_ratio

ROWS_AT_ONCE = 32
"""Of a Hessian that is formed."""


@dataclass(frozen=True)
class Round:
    """A round of a job, with the learner as it has become, and processor seconds."""

    learner: Learner
    fragments: Fragments
    acting_cpu_s: float
    """Of one actor."""
    learning_cpu_s: float


def played(settings: Any, actors: int, rounds: int) -> Iterator[Round]:
    """Rounds of a job in this process."""
    learner = make_learner(settings, policy_spec(settings))
    collector = FragmentCollector(settings, policy_spec(settings), actors, [settings.seed, 0])
    passes = settings.passes if isinstance(settings, ImpactSettings) else 1
    try:
        for _ in range(rounds):
            begun = time.thread_time()
            fragments = collector.collect(learner.network, learner.version).fragments
            acted = time.thread_time()
            for _ in range(passes):
                learner.update(fragments)
            yield Round(learner, fragments, (acted - begun) / actors, time.thread_time() - acted)
    finally:
        collector.close()


def measured(one: Round, options: CurvatureOptions) -> dict[str, float]:
    """Processor seconds of a score and of one without the subset, and the ratio that each finds."""
    row = {"acting_cpu_s": one.acting_cpu_s, "learning_cpu_s": one.learning_cpu_s}
    row["round_cpu_s"] = row["acting_cpu_s"] + row["learning_cpu_s"]
    for name, chosen in (("score", options), ("whole_score", dataclasses.replace(options, subset=1.0))):
        begun = time.thread_time()
        found = spectrum(one.learner, one.fragments, chosen)
        row[f"{name}_cpu_s"] = time.thread_time() - begun
        row[f"{name}_products"] = float(found.steps)
        ratio = convexity_ratio(float(found.values[-1]), float(found.values[0]))
        if ratio is not None:
            row[f"{name}_ratio"] = ratio
    return row


# ---- without Lanczos' method -----------------------------------------------------------------------------------------


def exact_hessian(objective: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """The Hessian (P, P) of a scalar, row by row."""
    gradient = torch.autograd.grad(objective, parameters, create_graph=True)
    flat = torch.cat([each.reshape(-1) for each in gradient])
    rows = []
    for unit in torch.eye(len(flat)).split(ROWS_AT_ONCE):
        found = torch.autograd.grad(flat, parameters, unit, retain_graph=True, is_grads_batched=True)
        rows.append(torch.cat([each.reshape(len(unit), -1) for each in found], dim=1))
    return torch.cat(rows)


def exact(settings: Any, actors: int, options: CurvatureOptions) -> dict[str, float]:
    """Processor seconds of forming the Hessian of a small network and of its eigenvalues; how near Lanczos comes."""
    (one,) = played(settings, actors, 1)
    parameters = parameters_of(one.learner, options)
    begun = time.thread_time()
    samples = chosen_samples(one.learner, one.fragments, options, torch.Generator().manual_seed(settings.seed))
    hessian = exact_hessian(objective_of(one.learner, samples, options), parameters)
    formed = time.thread_time()
    values = np.linalg.eigvalsh(0.5 * (hessian + hessian.T).double().numpy())
    ended = time.thread_time()
    found = spectrum(one.learner, one.fragments, dataclasses.replace(options, subset=1.0))
    whole = chosen_samples(one.learner, one.fragments, dataclasses.replace(options, subset=1.0), torch.Generator())
    true = exact_extremes(one.learner, whole, options)
    return {
        "parameters": float(len(values)),
        "forming_cpu_s": formed - begun,
        "eigenvalues_cpu_s": ended - formed,
        "lanczos_error": max(abs(found.values[0] / true[0] - 1.0), abs(found.values[-1] / true[1] - 1.0)),
    }


def exact_extremes(
    learner: Learner, samples: dict[str, torch.Tensor], options: CurvatureOptions
) -> tuple[float, float]:
    """Smallest and largest eigenvalue of the Hessian of these samples, formed."""
    hessian = exact_hessian(objective_of(learner, samples, options), parameters_of(learner, options)).double()
    values = torch.linalg.eigvalsh(0.5 * (hessian + hessian.T))
    return float(values[0]), float(values[-1])


def extrapolated(one: Round, options: CurvatureOptions, small: dict[str, float]) -> dict[str, float]:
    """What the score of the job's own network would take without Lanczos' method: never run."""
    parameters = parameters_of(one.learner, options)
    size = sum(each.numel() for each in parameters)
    samples = chosen_samples(one.learner, one.fragments, options, torch.Generator().manual_seed(1))
    product = hessian_product(objective_of(one.learner, samples, options), parameters)
    vector = torch.randn(size, generator=torch.Generator().manual_seed(1))
    took = []
    for _ in range(10):
        begun = time.thread_time()
        product(vector)
        took.append(time.thread_time() - begun)
    forming = size * statistics.median(took)
    eigenvalues = small["eigenvalues_cpu_s"] * (size / small["parameters"]) ** 3
    return {
        "parameters": float(size),
        "product_cpu_s": statistics.median(took),
        "forming_cpu_s": forming,
        "eigenvalues_cpu_s": eigenvalues,
        "bytes": 8.0 * size * size,
    }


# ---- the command -----------------------------------------------------------------------------------------------------


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; equal values share their mean rank. NaN for fewer than three pairs, and for one value throughout."""
    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return float("nan")
    first, second = (_ranks(np.asarray(each)) for each in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    below, up_to = (values[None] < values[:, None]).sum(1), (values[None] <= values[:, None]).sum(1)
    return 0.5 * (below + up_to - 1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench curvature", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="Hopper-v5", help="gymnasium id (Hopper-v5)")
    parser.add_argument("--algo", choices=("ppo", "impact"), default="ppo")
    parser.add_argument("--profile", default="default", help="of the algorithm's settings (default)")
    parser.add_argument("--actors", type=at_least(1), default=16, help="of each round (16)")
    parser.add_argument("--steps", type=at_least(1), default=256, help="of each actor in a round (256)")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="after one that does not count (10)")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--hidden-exact", type=at_least(1), nargs="*", default=[16, 32],
                        help="units of small networks (16 32)")  # fmt: skip
    for each in dataclasses.fields(CurvatureOptions):
        kind = type(each.default)
        option = {"steps": "products"}.get(each.name, each.name)
        parser.add_argument(f"--{option}", type=kind, default=each.default, help=f"of the probe ({each.default})")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    try:
        probe = CurvatureOptions(options.products, options.tolerance, options.subset, options.samples, options.variant)
        settings = make_settings(options.algo, options.profile, env=options.env, steps=options.steps, seed=options.seed)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    with one_thread():
        rows, last = [], None
        for one in played(settings, options.actors, options.rounds + 1):
            row, last = measured(one, probe), one
            rows.append(row)
            ratios = [row.get(name, float("nan")) for name in ("score_ratio", "whole_score_ratio")]
            say(
                f"round {one.learner.version}: learning {row['learning_cpu_s']:.3f} s, score {row['score_cpu_s']:.3f}, "
                f"of all samples {row['whole_score_cpu_s']:.3f} s; R {ratios[0]:.3f}, of all {ratios[1]:.3f}"
            )
        small = [
            exact(dataclasses.replace(settings, hidden=hidden), options.actors, probe)
            for hidden in options.hidden_exact
        ]
        beyond = extrapolated(last, probe, small[-1]) if small and last is not None else {}
    content = result.document(
        "curvature",
        " ".join(["replay-server bench curvature", *argv]),
        host,
        vars(options),
        rows[1:],
        {
            "score_of_round": ("score_cpu_s", "round_cpu_s"),
            "whole_score_of_score": ("whole_score_cpu_s", "score_cpu_s"),
        },
    )
    pairs = [
        (row["score_ratio"], row["whole_score_ratio"])
        for row in rows
        if {"score_ratio", "whole_score_ratio"} <= set(row)
    ]
    content["rank_correlation_of_ratios"] = rank_correlation(*zip(*pairs, strict=True)) if pairs else None
    content["exact"], content["extrapolated"] = small, beyond
    _tell(content, say)
    if options.json:
        result.write(options.json, content)
    return 0


def _tell(content: dict[str, Any], say: Callable[[str], None]) -> None:
    median, ratio = content["median"], content["ratio"]
    say(f"a score takes {median['score_cpu_s']:.3f} s, {ratio['score_of_round']:.1%} of a round (medians)")
    say(f"without the subset {ratio['whole_score_of_score']:.1f} times as long")
    correlation = content["rank_correlation_of_ratios"]
    told = "no round has both" if correlation is None else f"{correlation:.2f}"
    say(f"rank correlation of R with and without the subset: {told}")
    for each in content["exact"]:
        say(
            f"{each['parameters']:.0f} parameters: Hessian formed in {each['forming_cpu_s']:.2f} s, eigenvalues in "
            f"{each['eigenvalues_cpu_s']:.2f} s; Lanczos' extremes of all samples off by {each['lanczos_error']:.2%}"
        )
    if beyond := content["extrapolated"]:
        whole = beyond["forming_cpu_s"] + beyond["eigenvalues_cpu_s"]
        say(
            f"EXTRAPOLATED to {beyond['parameters']:.0f} parameters: {beyond['forming_cpu_s']:.0f} s to form it and "
            f"{beyond['eigenvalues_cpu_s']:.0f} s for eigenvalues, {beyond['bytes'] / 1e9:.0f} GB: "
            f"{whole / median['score_cpu_s']:,.0f} times as long as by Lanczos' method"
        )
