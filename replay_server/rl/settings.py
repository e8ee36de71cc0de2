"""Every setting of an Ape-X run, in one dataclass: what it means, its unit, and where its default comes from.

The command line offers each field as ``--field-name``; a run directory's ``config.json`` holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class ApexSettings:
    """Ape-X (Horgan et al. 2018, section 4 and appendix C): DQN, or soft actor-critic for continuous actions.

    Defaults are the paper's; `PROFILES` adapts them to small machines.
    """

    env: str = "ALE/Breakout-v5"
    """Gymnasium id, or module:id. Games of ALE/* are preprocessed; observations of others go in as they are."""
    profile: str = "paper"
    """Named set of defaults: paper, cartpole, atari-small, atari-gpu, sac. Fields given explicitly win over the
    profile. Without it, a command chooses by environment and machine, and never chooses paper."""
    algo: Literal["auto", "dqn", "sac"] = "auto"
    """dqn: dueling double DQN, for discrete actions. sac: soft actor-critic, for continuous ones (a Box). auto: the one
    that learns the environment's actions."""
    seed: int = 1
    """Seeds environments, networks, exploration, and the server's sampling."""
    actors: int = 8
    """Actor processes."""
    actors_on: str = "processes"
    """Where actors run: processes (of this machine), ray (a Ray cluster of this machine, for the job alone), or
    ray:HOST:PORT (a Ray cluster that is there, for many machines)."""
    host: str = "127.0.0.1"
    """Address that the job's server listens on. Others than loopback need a password, in REPLAY_SERVER_PASSWORD; actors
    on other hosts then join by `replay-server actor --server URL`."""
    port: int = 0
    """Port of the job's server; 0 = any that is free."""
    replay_shards: int = 1
    """Servers that hold the replay together, a process each; every sample is of all of them. There are at least as many
    actors. `port` is the first one's, and the others have those that follow."""
    shards_on: str = "processes"
    """Where these servers run: processes (of this machine), ray (a Ray cluster of this machine, for the job alone), or
    ray:HOST:PORT (a Ray cluster that is there, whose nodes are many machines)."""
    replicas: int = 0
    """Further servers of this machine, each with a copy of the replay: one takes the place of the job's server when
    that dies or hangs. `port` is the job's server's, and they have those that follow. 0 = none."""
    envs_per_actor: int = 8
    """Environments in each actor, stepped together; one batched forward pass chooses all their actions."""
    minutes: float | None = None
    """Wall-clock limit of the run in minutes, counted from the first actor step; None = none."""
    max_updates: int | None = None
    """Stop after this many learner updates; None = none."""
    max_transitions: int | None = None
    """Stop after this many transitions were added; None = none."""
    target_score: float | None = None
    """Stop when `target_evaluations` evaluations in a row have a mean of at least this; None = never."""
    target_evaluations: int = 3
    """How many evaluations in a row `target_score` asks for."""

    # environment
    sticky_actions: float = 0.0
    """ALE repeat_action_probability. The papers used 0 (NoFrameskip-v4), ALE/*-v5 defaults to 0.25.

    Stated with every score.
    """
    frame_stack: int = 4
    """Newest screens that one observation holds (ALE/* alone)."""
    noop_max: int = 30
    """A game begins with a random number of no-ops, up to this many, so that games differ; 0 = none."""
    episodic_life: bool = True
    """A lost life counts as terminated for the learner; the game goes on."""
    fire_on_reset: bool = True
    """Press FIRE where a game waits for it to begin."""
    reward_clip: float | None = 1.0
    """Rewards are clipped to ±this for learning (reported scores are unclipped); None = not."""
    max_frames_per_episode: int = 50_000
    """Emulator frames after which an actor's game is truncated."""

    # algorithm
    n_step: int = 3
    """Steps of reward in a target before it is bootstrapped."""
    discount: float = 0.99
    """γ, for each step."""
    epsilon_base: float = 0.4
    """Base of the ladder of exploration below (DQN; SAC explores by its policy)."""
    epsilon_exponent: float = 7.0
    """epsilon_i = base ** (1 + exponent * i / (N - 1)), i over all environments of all actors; N = 1 uses base."""
    priority_exponent: float = 0.6
    """α: an item is drawn with its priority to this power; 0 = uniformly."""
    importance_sampling_exponent: float = 0.4
    """β of the weights that correct for it: (N·P)^−β; 1 = fully, 0 = not."""
    priority_epsilon: float = 1e-6
    """Added to |TD error|, so that no item is never drawn again."""
    prioritized: bool = True
    """False: every priority is written as 1 (a control run)."""
    loss: Literal["squared", "huber", "hl-gauss"] = "squared"
    """½·w·δ², or Huber with δ = 1 (of the loss, never of the priority); or HL-Gauss: the network tells shares of
    `value_bins`, as a classifier does, and learns them by cross-entropy (Farebrother et al. 2024; DQN alone)."""
    value_bins: int = 51
    """Of HL-Gauss: bins of one width that Q values are told in."""
    value_limit: float = 10.0
    """Of HL-Gauss: the bins reach from minus this to this; Q values beyond it cannot be told. With
    `--reward-clip none` it has to be given."""
    hidden: int = 512
    """Width of the fully connected layer(s)."""
    convolutions: Literal["mnih2015", "mnih2013"] = "mnih2015"
    """Of the dueling network, for images from 36×36 pixels: Mnih et al. 2015 (three layers), or Mnih et al. 2013 (two,
    with a third of the arithmetic)."""
    network: str | None = None
    """Q-network of your own, as module:name, called with the observation's shape (of a dict: shapes by path), the
    number of actions and `hidden`; None = the dueling network. For DQN alone."""
    initial_temperature: float = 1.0
    """Of SAC: worth of a nat of entropy in rewards, at first; then it is learned."""
    target_entropy: float | None = None
    """Of SAC's policy, in nats, with actions scaled to ±1: what the temperature is learned for; None = minus one for
    each number of an action (Haarnoja et al. 2018)."""

    # replay
    table: str = "apex"
    """The table's name on the server."""
    capacity: int = 2_000_000
    """Transitions in the table; the oldest leave. `apex` lowers it to what fits in memory, unless you give it."""
    min_size_to_sample: int = 50_000
    """Transitions in the table before the learner begins."""
    batch_size: int = 512
    """Transitions of one learner step."""
    samples_per_insert: float | None = None
    """Held by the table's rate limiter; None = not limited."""
    samples_per_insert_end: float | None = None
    """The rate limiter holds this from learner step `samples_per_insert_end_updates` on; None = the same all the time.
    So transitions can be used often while there are few, and less often later."""
    samples_per_insert_end_updates: int = 0
    """Learner steps before `samples_per_insert_end` is held."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Of the observations in the table: less memory, and less on the wire to a learner elsewhere, for time to code."""
    push_every: int = 50
    """An actor pushes when it has gathered this many transitions."""

    # learner
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop: centred, decay 0.95 (Horgan et al.)."""
    learning_rate: float = 6.25e-5
    """Of the optimizer."""
    learning_rate_end: float | None = None
    """The learning rate falls linearly to this over `learning_rate_decay_updates` and stays there; None = constant."""
    learning_rate_decay_updates: int = 0
    """Learner steps that it falls over."""
    optimizer_epsilon: float = 1.5e-7
    """ε of RMSProp or Adam, added to the root of the mean squared gradient."""
    rmsprop_decay: float = 0.95
    """Of RMSProp's running means, for each step."""
    gradient_norm: float = 40.0
    """Global norm that gradients are scaled down to."""
    target_update_every: int = 2_500
    """Learner steps between updates of the target network."""
    target_mix: float = 1.0
    """Share of the online network in such an update: 1 = a copy (Ape-X); below 1 = Polyak averaging (a soft target)."""
    average_updates: int = 0
    """What plays is the network's mean over about so many of the last learner steps (an exponential one; Polyak &
    Juditsky 1992), at most a fifth of all: at a high learning rate it can play better than the newest. 0 = the newest.
    """
    publish_every: int = 25
    """Learner steps between published weights."""
    pull_every_frames: int = 400
    """Emulator frames per environment between an actor's checks for newer weights (elsewhere than on Atari: steps)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the learner's forward passes. auto: a few updates of each are timed at the start, and the faster is taken. On
    a GPU tf32 (TensorFloat-32) is timed, too; float32 by name does without it."""
    device: str = "auto"
    """Learner's torch device: auto, cpu, cuda."""
    learner_threads: int | Literal["auto"] = "auto"
    """torch threads of the learner. auto: updates are timed at the start with 1, 2, 4, …, and the best number is taken;
    where one machine does everything, actors need some of its time."""
    targets_ahead: Literal["auto", "on", "off"] = "auto"
    """Whether the targets of a batch are computed beside the gradient of the one before, on another core, by networks
    that are one update older. auto: where updates are faster by it (never on a GPU)."""
    prefetch: int = 2
    """Batches sampled ahead of the learner."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints (one is always written at the end): the most that a killed learner loses."""
    checkpoints_kept: int = 3
    """Newest checkpoints kept; older ones are removed. The best evaluated network is kept besides."""
    checkpoint_replay: Literal["auto", "on", "off"] = "auto"
    """Whether the replay is saved beside the checkpoints, so that --resume, and a server that was killed, go on with
    it; auto: where the disk has room for it."""
    checkpoint_replay_every_s: float = 300.0
    """Seconds between these snapshots: the most replay that a killed server loses. At most a tenth of the time goes
    into them; the last one is of the run's end."""

    # evaluation
    eval_every_updates: int = 5_000
    """Learner steps between evaluations."""
    eval_episodes: int = 20
    """Games of one evaluation."""
    eval_max_frames_per_episode: int = 108_000
    """Emulator frames after which an evaluator's game is truncated (30 minutes of play); in environments other than
    ALE/*, steps."""
    eval_epsilon: float = 0.0
    """Exploration of the evaluator. Scores are of full games: no life episodes, unclipped, fire after a lost life."""
    final_episodes: int = 20
    """Fresh episodes that the kept checkpoint plays at the end of a run, for summary.json; 0 = none."""

    dashboard: str = "auto"
    """Pages of the run in the browser while it lasts: auto (any free port, where nicegui is installed), a port, off."""
    wandb: str = "off"
    """Weights & Biases: off, offline (files in the run directory, which `wandb sync` sends) or online."""
    logdir: str | None = None
    """Run directory; None = runs/<env>-<seed>-<time>."""
    resume: bool = False
    """Continue from the newest checkpoint in logdir, with the replay that was saved there."""


PROFILES: dict[str, dict[str, Any]] = {
    "paper": {},
    "cartpole": {
        "actors": 2,
        "envs_per_actor": 4,
        "capacity": 50_000,
        "min_size_to_sample": 1_000,
        "batch_size": 128,
        "samples_per_insert": 8.0,
        "push_every": 50,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "optimizer_epsilon": 1e-8,
        "gradient_norm": 10.0,
        # A soft target: with copies every 200 steps the greedy policy swings between 200 and 500 for ever.
        "target_update_every": 1,
        "target_mix": 0.02,
        "publish_every": 10,
        "pull_every_frames": 50,
        "hidden": 128,
        "reward_clip": None,
        "eval_every_updates": 500,
        "final_episodes": 100,
        # For vectors. Where observations have images, it stays auto.
        "learner_threads": 1,
    },
    "atari-small": {
        "actors": 2,
        "envs_per_actor": 8,
        "capacity": 200_000,
        "min_size_to_sample": 10_000,
        "convolutions": "mnih2013",
        "hidden": 256,
        # With HL-Gauss a learning rate of 1e-3 is stable; with ½δ² it diverges on Pong.
        "loss": "hl-gauss",
        "n_step": 5,
        "batch_size": 64,
        # Breakout reaches a score of 29 with 2, and of 12 with 8; Pong learns sooner with 4 or 8 (docs/results.md).
        "samples_per_insert": 8.0,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "optimizer_epsilon": 1e-8,
        "gradient_norm": 10.0,
        "target_update_every": 250,
        "eval_every_updates": 10_000,
    },
    # For one GPU and 8 to 32 cores. On an H100 with 16 cores it learned Breakout in minutes (docs/results.md).
    "atari-gpu": {
        # Four samples of a transition: at 15,000 transitions (60,000 frames) a second, 117 updates.
        "samples_per_insert": 4.0,
        "envs_per_actor": 16,
        "actors": 8,
        "capacity": 1_000_000,
        "optimizer": "adam",
        "learning_rate": 2e-4,
        "optimizer_epsilon": 1e-8,
        "gradient_norm": 10.0,
        "target_update_every": 500,
        # Weights leave the GPU while it waits: seldom enough to cost little.
        "publish_every": 100,
        "prefetch": 3,
    },
    # Haarnoja et al. 2018 (arXiv 1812.05905), appendix D: one update for each step.
    "sac": {
        "actors": 1,
        "envs_per_actor": 4,
        "capacity": 1_000_000,
        "min_size_to_sample": 1_000,
        "batch_size": 256,
        "samples_per_insert": 256.0,
        "n_step": 1,
        "push_every": 8,
        "optimizer": "adam",
        "learning_rate": 3e-4,
        "optimizer_epsilon": 1e-8,
        "gradient_norm": 1e6,
        "target_update_every": 1,
        "target_mix": 0.005,
        "publish_every": 10,
        "pull_every_frames": 10,
        "hidden": 256,
        "reward_clip": None,
        "eval_every_updates": 2_000,
    },
}
