"""The settings that the actors and the learner of a policy-gradient run share, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PolicySettings:
    """Environment, fragments and network of a run; the learners' settings add their algorithm's.

    An actor needs no more than these: a learner's settings are settings of an actor, too.
    """

    env: str = "Hopper-v5"
    """Gymnasium id. MuJoCo's v5 by default; numbers set beside a paper's use v4, whose observations differ."""
    profile: str = "default"
    """Named set of defaults of the algorithm; fields given explicitly win over it."""
    seed: int = 1
    """Seeds networks, environments, actions and minibatches."""
    steps: int = 256
    """Steps of one fragment: what one environment plays between two pushes (Nitro, Stellaris: 256 on MuJoCo)."""

    # environment
    frame_stack: int = 4
    """Atari frames that the policy sees. The papers say 3, their code 4."""
    sticky_actions: float = 0.0
    """ALE repeat_action_probability; stated with every score."""
    noop_max: int = 30
    """A game begins with a random number of no-ops, up to this many, so that games differ; 0 = none."""
    fire_on_reset: bool = True
    """Press FIRE to start a game that waits for it."""
    episodic_life: bool = True
    """On Atari a lost life counts as terminated for the learner; the game goes on."""
    reward_clip: float | None = 1.0
    """Rewards of Atari games are clipped to ±this for learning (None = not); others never are, nor are scores."""
    max_frames_per_episode: int = 108_000
    """Emulator frames after which an Atari game is truncated; also the most steps of an evaluation game of any other
    environment."""
    normalize_observations: bool = True
    """Vector observations go in as (o − mean) / standard deviation of all that the learner has merged so far."""
    observation_clip: float = 10.0
    """Normalised observations are clipped to ±this."""

    # network
    hidden: int = 256
    """Width of the two layers of tanh units for vectors; images have 256 features after their convolutions."""
    share_convolutions: bool = True
    """On images policy and critic see the same features; on vectors they share nothing."""
    initial_log_std: float = 0.0
    """Of Gaussian actions; the log standard deviation is a parameter of its own, the same in every state."""
