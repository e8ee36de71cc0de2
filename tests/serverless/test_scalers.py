"""Each scaler's decisions on recorded rounds, held against values worked out by hand from the papers' equations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.adapt import Adapt
from replay_server.serverless.scalers.fixed import Fixed
from replay_server.serverless.scalers.hydrozoa import Hydrozoa
from replay_server.serverless.scalers.kungfu import KungFu
from replay_server.serverless.scalers.nitro import Nitro, convexity_ratio
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.serverless.scalers.schedule import Schedule, decayed, scaled_to, shuffled
from replay_server.serverless.settings import TrainSettings, check_settings, make_scaler


def record(number: int, scores: tuple[float, ...] = (), **statistics: float) -> RoundRecord:
    """A round as the engine would have recorded it; what no scaler looks at is left at nothing."""
    return RoundRecord(
        round=number, version=number, actors=8, arrived=8, environments=1, steps=2048, total_steps=2048 * number,
        scores=scores, statistics=statistics, round_s=1.0, learner_s=0.5, actor_s_mean=0.3, actor_s_max=0.5,
    )  # fmt: skip


def decisions(scaler: Scaler, rounds: list[RoundRecord]) -> list[int]:
    """What it asks for in the first round, and after each of these."""
    return [scaler.actors(None), *(scaler.actors(each) for each in rounds)]


def test_fixed_asks_for_the_same_every_round():
    assert decisions(Fixed(5), [record(1), record(2)]) == [5, 5, 5]


def test_adapt_follows_the_mean_score_of_five_rounds():
    scores: list[tuple[float, ...]] = [
        (),
        (100.0,),
        (300.0, 500.0),
        (400.0,),
        (900.0,),
        (1000.0,),
        (2500.0,),
        (-9000.0,),
    ]
    rounds = [record(number, each) for number, each in enumerate(scores, 1)]
    # J = 1000, I_max = 32. Means: –, 100, 250, 300, 450, 560, (400+400+900+1000+2500)/5 = 1040, then negative.
    assert decisions(Adapt(1000.0, 32), rounds) == [1, 1, 3, 8, 9, 14, 17, 32, 1]


def test_hydrozoa_doubles_every_ten_rounds():
    found = decisions(Hydrozoa(64), [record(number) for number in range(1, 50)])
    assert found == [8] * 10 + [16] * 10 + [32] * 10 + [64] * 20


def test_a_schedule_gives_its_counts_in_order_and_then_the_last():
    assert decisions(Schedule([3, 1, 2]), [record(number) for number in range(1, 5)]) == [3, 1, 2, 2, 2]


def test_decay_is_the_ceiling_of_nitro():
    # 64·0.96 = 61.44, 64·0.96² = 58.98, 64·0.96³ = 56.62; 64·0.96^50 = 8.31, 64·0.96^51 = 7.98 → the floor.
    counts = decayed(52, 64, 8, 0.96)
    assert counts[:3] == [61, 58, 56]
    assert counts[49:] == [8, 8, 8]


def test_shuffled_counts_are_the_same_counts_in_another_order():
    counts = list(range(1, 51))
    found = shuffled(counts, 3)
    assert found != counts
    assert sorted(found) == counts
    assert found == shuffled(counts, 3) != shuffled(counts, 4)


@pytest.mark.parametrize(
    ("counts", "total"), [([1] * 50, 520), ([64, 32, 8, 8], 60), ([5, 60, 7], 192), ([9, 1, 1], 3)]
)
def test_counts_can_be_brought_to_any_total(counts, total):
    found = scaled_to(counts, total, 64)
    assert sum(found) == total
    assert min(found) >= 1
    assert max(found) <= 64
    by_count = [found[index] for index in np.argsort(counts, kind="stable")]
    assert min(np.diff(by_count)) >= -1  # Equal counts may differ by the one that rounding leaves over.


def test_a_total_that_no_counts_have_is_refused():
    with pytest.raises(ValueError, match="expected a total of 2 to 128 actors, got 129"):
        scaled_to([1, 1], 129, 64)


def noise(number: int, small: float, big: float) -> RoundRecord:
    return record(number, noise_small_batch=256.0, noise_big_batch=4096.0, noise_small_norm=small, noise_big_norm=big)


def test_kungfu_grows_with_the_noise_scale_and_never_shrinks():
    # G² = (4096·b − 256·s)/3840, S = (s − b)/(1/256 − 1/4096).
    # s=2, b=1: G² = 14/15, S = 4096/15 → B = 292.571428…, which is the first.
    # s=5, b=1: G² = 0.7333…, S = 1092.2666…; smoothed G² = 0.91333…, S = 354.98666… → B = 388.6715…: 8·1.32847 = 10.6.
    # s=1.1, b=1: G² = 0.99333…, S = 27.30666… → smoothed 0.92133…, 322.21866… → B = 349.7308…: 9.56, but never fewer.
    # s=1, b=2 (S < 0): smoothed still positive, S = 0.9·322.21866… − 27.3066… → smaller.
    rounds = [noise(1, 2, 1), noise(2, 5, 1), noise(3, 1.1, 1), noise(4, 1, 2)]
    assert decisions(KungFu(8, 64), rounds) == [8, 8, 10, 10, 10]


def test_kungfu_stays_where_the_estimate_says_nothing_and_below_its_most():
    # s=1, b=2 → S negative; then a hundredfold noise.
    assert decisions(KungFu(8, 64), [noise(1, 1, 2)]) == [8, 8]
    assert decisions(KungFu(8, 64), [noise(1, 2, 1), noise(2, 15.9, 1), noise(3, 15.9, 1)])[-1] <= 64
    # Gradients of batches of one size say nothing of noise.
    alike = record(1, noise_small_batch=256.0, noise_big_batch=256.0, noise_small_norm=2.0, noise_big_norm=1.0)
    assert decisions(KungFu(8, 64), [alike]) == [8, 8]


def curved(number: int, most: float, least: float) -> RoundRecord:
    return record(number, curvature_max=most, curvature_min=least)


def test_the_convexity_ratio_and_where_there_is_none():
    assert convexity_ratio(3.0, -2.0) == 1.5
    assert convexity_ratio(3.0, 0.0) is None
    assert convexity_ratio(3.0, 1.0) is None
    assert convexity_ratio(0.0, -1.0) is None
    assert convexity_ratio(-0.5, -1.0) is None
    assert convexity_ratio(1.0, -0.9e-8) is None
    assert convexity_ratio(1.0, -1.1e-8) is not None
    assert convexity_ratio(float("nan"), -1.0) is None


def test_nitro_scores_the_place_of_a_ratio_within_its_window():
    # R: 1, 3, 2, undefined, 5, 1, 4, 4 with n = 4. Windows: [1], [1 3], [1 3 2], –, [1 3 2 5], [3 2 5 1], [2 5 1 4], …
    rounds = [curved(1, 1, -1), curved(2, 3, -1), curved(3, 4, -2), curved(4, 1, 2), curved(5, 5, -1), curved(6, 2, -2),
              curved(7, 4, -1), curved(8, 8, -2)]  # fmt: skip
    scores = [
        0.9,
        0.9,
        0.0,
        (3 - 2) / 2 * 0.9**3,
        (3 - 2) / 2 * 0.9**3,
        0.0,
        1.0 * 0.9**6,
        (5 - 4) / 4 * 0.9**7,
        0.25 * 0.9**8,
    ]
    expected = [max(4, min(64, int(64 * score))) for score in scores]
    assert expected == [57, 57, 4, 23, 23, 4, 34, 7, 6]
    scaler = Nitro(64, 4, decay=0.9, window=4)
    assert decisions(scaler, rounds) == expected
    assert scaler.undefined == 2  # the first, whose window has one value, and the fourth


def test_nitro_inverted_boosts_where_the_ratio_is_high():
    rounds = [curved(1, 1, -1), curved(2, 3, -1), curved(3, 4, -2)]
    assert decisions(Nitro(64, 4, decay=0.9, inverted=True), rounds) == [57, 57, int(64 * 0.81), int(64 * 0.5 * 0.729)]


@pytest.mark.parametrize(
    ("make", "rounds"),
    [
        (lambda: Adapt(1000.0, 32), [record(number, (100.0 * number,)) for number in range(1, 9)]),
        (lambda: Hydrozoa(64, 2, 3), [record(number) for number in range(1, 9)]),
        (lambda: Schedule([1, 2, 3, 4, 5]), [record(number) for number in range(1, 9)]),
        (lambda: KungFu(8, 64), [noise(number, 1.0 + number, 1.0) for number in range(1, 9)]),
        (lambda: Nitro(64, 4), [curved(number, 1.0 + number % 3, -1.0) for number in range(1, 9)]),
    ],
)  # fmt: skip
def test_a_scaler_goes_on_from_its_state_as_if_nothing_had_happened(make: Any, rounds):
    whole = decisions(make(), rounds)
    for cut in range(len(rounds)):
        first, second = make(), make()
        before = decisions(first, rounds[:cut])
        second.restore(json.loads(json.dumps(first.state())))
        assert before + [second.actors(each) for each in rounds[cut:]] == whole


def test_scalers_are_made_from_settings():
    settings = TrainSettings(scaler="decay", rounds=3, actors_max=64, scaler_option={"decay": "0.5", "least": "1"})
    check_settings(settings)
    assert decisions(make_scaler(settings), [record(1), record(2)]) == [32, 16, 8]
    assert dict(make_scaler(TrainSettings(scaler="nitro", actors_max=64)).probes) == {"curvature": {}}
    assert decisions(make_scaler(TrainSettings(scaler="adapt", target_score=10.0)), [record(1, (5.0,))]) == [1, 16]


@pytest.mark.parametrize(
    ("scaler", "options"),
    [
        ("hydrozoa", {"every": "2.5"}), ("hydrozoa", {"start": "NaN"}), ("hydrozoa", {"start": "true"}),
        ("kungfu", {"start": "8.5"}), ("kungfu", {"most": "1000"}), ("nitro", {"window": "2.5"}),
        ("nitro", {"window": "NaN"}), ("nitro", {"least": "8.5"}), ("nitro", {"inverted": "no"}),
        ("nitro", {"curvature": "code"}), ("nitro", {"decay": "NaN"}), ("decay", {"decay": "1e300"}),
        ("decay", {"decay": "-1"}), ("decay", {"least": "33"}), ("random", {"seed": "-1"}),
        ("random", {"least": "2.5"}), ("schedule", {"counts": "[2.5]"}), ("schedule", {"counts": '"12"'}),
        ("schedule", {"counts": "3"}), ("schedule", {"counts": "[]"}), ("schedule", {"counts": "[4]", "rounds": "NaN"}),
    ],
)  # fmt: skip
def test_an_option_that_no_scaler_can_have_is_told_before_the_job(scaler: Any, options: dict[str, str]) -> None:
    """It was taken, and ended the job in a traceback in its first round, or was taken for something else."""
    with pytest.raises(ValueError, match=r"expected|does not take that"):
        check_settings(TrainSettings(scaler=scaler, scaler_option=options))


def test_a_gradient_that_is_not_finite_leaves_kungfu_as_it_was():
    """One such round was smoothed in, and the number of actors stood still for the rest of the job."""
    scaler, untouched = KungFu(8, 64), KungFu(8, 64)
    rounds = [noise(1, 3.0, 1.0), noise(2, float("nan"), 1.0), noise(3, 9.0, 1.0), noise(4, 30.0, 1.0)]
    counts = decisions(scaler, rounds)
    assert counts == [8, 8, 8, *decisions(untouched, [rounds[0], *rounds[2:]])[2:]]
    assert counts[-1] > 8


def test_a_target_that_no_score_can_reach_is_refused():
    with pytest.raises(ValueError, match="--target-score"):
        check_settings(TrainSettings(target_score=float("nan")))


def test_a_round_whose_measuring_learner_was_lost_keeps_the_count():
    """Of several learners one measures; the round goes on without it, and the job ended in KeyError."""
    rounds = [curved(1, 1.0, -1.0), curved(2, 3.0, -1.0), curved(3, 2.0, -1.0), record(4, loss=1.0)]
    nitro = Nitro(64, 8)
    counts = decisions(nitro, rounds)
    assert counts[-1] == counts[-2] == 28  # ⌊64 · (3 − 2)/(3 − 1) · 0.96³⌋, and again
    assert nitro.undefined == 2  # the first round, and the one without
    kungfu = decisions(KungFu(8, 64), [noise(1, 2, 1), noise(2, 5, 1), record(3, loss=1.0)])
    assert kungfu == [8, 8, 10, 10]
