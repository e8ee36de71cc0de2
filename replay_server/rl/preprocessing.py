"""What happens to rewards and observations between an environment and the replay table.

Screens are greyed, max-pooled over the last 2 of 4 skipped frames, shrunk to 84×84 and stacked inside the arcade
environment's own vector environment (see `replay_server.actors.envs`); scaling to 0 … 1 is the network's first step, so
that frames stay bytes on the way.
"""

from __future__ import annotations

import numpy as np


def clip_rewards(rewards: np.ndarray, limit: float | None) -> np.ndarray:
    """Rewards as the learner sees them: clipped to ±limit (Mnih et al. 2015), or unchanged if it is None."""
    return rewards if limit is None else np.clip(rewards, -limit, limit)
