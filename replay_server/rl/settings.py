"""Every setting of an Ape-X run, in one dataclass: what it means, its unit, and where its default comes from.

The command line offers each field as ``--field-name``; a run directory's ``config.json`` holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class ApexSettings:
    """Ape-X (Horgan et al. 2018, section 4 and appendix C): DQN, or soft actor-critic for continuous actions.

    Defaults are the paper's; `PROFILES` adapts them to smaller machines and to other environments.
    """

    env: str = "ALE/Breakout-v5"
    """Gymnasium id, or module:id. Games of ALE/* are preprocessed; other observations are used as they are."""
    profile: str = "paper"
    """Named set of defaults: paper, cartpole, atari-small, atari-gpu, sac. Options that you give win over it. (default:
    chosen by environment and machine; never paper)"""
    algo: Literal["auto", "dqn", "sac"] = "auto"
    """dqn: dueling double DQN, for discrete actions. sac: soft actor-critic, for continuous actions (a Box). auto: by
    the environment's actions."""
    seed: int = 1
    """Seeds environments, networks, exploration, and the server's sampling."""
    actors: int = 8
    """Actor processes. `apex` measures how many the learner needs, unless you give it."""
    actors_on: str = "processes"
    """Where actors run: processes (on this machine), ray (a Ray cluster on this machine, only for the job), or
    ray:HOST:PORT (an existing Ray cluster, for many machines)."""
    host: str = "127.0.0.1"
    """Address that the job's server listens on. Any other than loopback needs a password in REPLAY_SERVER_PASSWORD;
    actors on other hosts then join by `replay-server actor --server URL`."""
    port: int = 0
    """Port of the job's server; 0 = any free port."""
    replay_shards: int = 1
    """Servers that hold the replay together, one process each; every sample is drawn from all of them. There must be at
    least as many actors. `port` is the first server's; the others have the ports that follow."""
    shards_on: str = "processes"
    """Where the replay's servers run: processes (on this machine), ray (a Ray cluster on this machine, only for the
    job), or ray:HOST:PORT (an existing Ray cluster, for many machines)."""
    replicas: int = 0
    """Further servers on this machine, each with a copy of the replay: one takes over when the job's server dies or
    hangs. `port` is the job's server's; replicas have the ports that follow. 0 = none."""
    envs_per_actor: int = 8
    """Environments in each actor, stepped together; one batched forward pass chooses all their actions."""
    minutes: float | None = None
    """Stop after so many minutes, counted from the first actor step; none = no limit."""
    max_updates: int | None = None
    """Stop after so many learner updates; none = no limit."""
    max_transitions: int | None = None
    """Stop after so many transitions were added; none = no limit."""
    target_score: float | None = None
    """Stop when `target_evaluations` evaluations in a row have a mean of at least this; none = no target."""
    target_evaluations: int = 3
    """How many evaluations in a row must reach `target_score`."""

    # environment
    sticky_actions: float = 0.0
    """ALE repeat_action_probability. The papers used 0 (NoFrameskip-v4), ALE/*-v5 defaults to 0.25.

    Stated with every score.
    """
    frame_stack: int = 4
    """Newest screens that one observation holds (only ALE/*)."""
    noop_max: int = 30
    """A game begins with a random number of no-ops, up to this many, so that games differ; 0 = none."""
    episodic_life: bool = True
    """A lost life counts as terminated for the learner; the game goes on."""
    fire_on_reset: bool = True
    """Press FIRE to start a game that waits for it."""
    reward_clip: float | None = 1.0
    """Rewards are clipped to ±this for learning (reported scores are unclipped); none = no clipping."""
    max_frames_per_episode: int = 50_000
    """Emulator frames after which an actor's game is truncated."""

    # algorithm
    n_step: int = 3
    """Rewards in an n-step target, before it bootstraps."""
    discount: float = 0.99
    """γ, per step."""
    epsilon_base: float = 0.4
    """Largest ε of the actors' exploration, see `epsilon_exponent` (only DQN; SAC explores by its policy)."""
    epsilon_exponent: float = 7.0
    """epsilon_i = base ** (1 + exponent * i / (N - 1)), i over all environments of all actors; N = 1 uses base."""
    priority_exponent: float = 0.6
    """α: items are sampled in proportion to their priority to this power; 0 = uniformly."""
    importance_sampling_exponent: float = 0.4
    """β of the importance weights (N·P)^−β, which correct for prioritized sampling; 1 = fully, 0 = not at all."""
    priority_epsilon: float = 1e-6
    """Added to |TD error|, so that every item can be sampled again."""
    prioritized: bool = True
    """Sample by priority. Without it every priority is 1, as a control run has it."""
    loss: Literal["squared", "huber", "hl-gauss"] = "squared"
    """squared: ½·w·δ². huber: with threshold 1 (only in the loss, not in the priority). hl-gauss: the network
    classifies Q values into `value_bins`, and learns by cross-entropy (Farebrother et al. 2024; only DQN)."""
    value_bins: int = 51
    """HL-Gauss: number of bins, of equal width, for Q values."""
    value_limit: float = 10.0
    """HL-Gauss: the bins reach from minus this to this; larger Q values cannot be represented. With `--reward-clip
    none` you must give it."""
    hidden: int = 512
    """Width of the fully connected layer(s)."""
    convolutions: Literal["mnih2015", "mnih2013"] = "mnih2015"
    """Of the dueling network, for images of 36×36 pixels or more: as in Mnih et al. 2015 (three layers), or in Mnih et
    al. 2013 (two layers, a third of the arithmetic)."""
    network: str | None = None
    """Q-network of your own, as module:name, called with the observation's shape (of a dict: shapes by path), the
    number of actions and `hidden`; none = the dueling network. Only for DQN."""
    initial_temperature: float = 1.0
    """SAC: the temperature at first, in rewards per nat of entropy; then it is learned."""
    target_entropy: float | None = None
    """SAC: the policy entropy that the learned temperature aims at, in nats, with actions scaled to ±1; none = minus
    the number of action dimensions (Haarnoja et al. 2018)."""

    # replay
    table: str = "apex"
    """The table's name on the server."""
    capacity: int = 2_000_000
    """Most transitions in the table; the oldest leave. Unless you give it, `apex` lowers it to what fits in memory."""
    min_size_to_sample: int = 50_000
    """Transitions in the table before the learner begins."""
    batch_size: int = 512
    """Transitions of one learner step."""
    samples_per_insert: float | None = None
    """How often each transition is sampled on average: the table's rate limiter holds this; none = not limited."""
    samples_per_insert_end: float | None = None
    """`samples_per_insert` from learner step `samples_per_insert_end_updates` on; none = no change. So transitions can
    be used often while there are few, and less often later."""
    samples_per_insert_end_updates: int = 0
    """Learner steps before `samples_per_insert_end` applies."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Of the observations in the table: saves memory, and traffic to a learner on another host, but costs processor
    time."""
    push_every: int = 50
    """An actor sends its transitions when it has this many."""

    # learner
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop: centred, decay 0.95 (Horgan et al.)."""
    learning_rate: float = 6.25e-5
    """Step size of the optimizer."""
    learning_rate_end: float | None = None
    """The learning rate falls linearly to this over `learning_rate_decay_updates` and stays there; none = it is
    constant."""
    learning_rate_decay_updates: int = 0
    """Learner steps over which the learning rate falls."""
    optimizer_epsilon: float = 1.5e-7
    """ε of RMSProp or Adam, added to the root of the mean squared gradient."""
    rmsprop_decay: float = 0.95
    """Decay of RMSProp's running means, per step."""
    gradient_norm: float = 40.0
    """Largest global norm of the gradients; larger ones are scaled down to it."""
    target_update_every: int = 2_500
    """Learner steps between updates of the target network."""
    target_mix: float = 1.0
    """Share of the online network in an update of the target network: 1 = a copy (Ape-X); below 1 = Polyak averaging (a
    soft target)."""
    average_updates: int = 0
    """Actors and evaluator play with an exponential mean of the network over about this many of the last learner steps,
    at most a fifth of all (Polyak & Juditsky 1992). At a high learning rate it can play better than the newest network.
    0 = the newest."""
    publish_every: int = 25
    """Learner steps between published weights."""
    pull_every_frames: int = 400
    """Emulator frames (other than on Atari: steps) of each environment between an actor's checks for newer weights."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the learner's forward passes. auto: times a few updates of each at the start, and takes the faster. On a GPU
    it also times tf32 (TensorFloat-32); `float32` turns that off."""
    device: str = "auto"
    """Learner's torch device: auto, cpu, cuda."""
    learner_threads: int | Literal["auto"] = "auto"
    """torch threads of the learner. auto: times updates with 1, 2, 4, … at the start, and takes the best number. If
    actors share the machine, they need some of its time, too."""
    targets_ahead: Literal["auto", "on", "off"] = "auto"
    """Whether a batch's targets are computed on another core while the previous batch's gradient is computed, with
    networks that are one update older. auto: if that makes updates faster (never on a GPU)."""
    prefetch: int = 2
    """Batches sampled ahead of the learner."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints: the most that a killed learner loses. One is always written at the end."""
    checkpoints_kept: int = 3
    """How many of the newest checkpoints are kept. The network with the best evaluation is kept, too."""
    checkpoint_replay: Literal["auto", "on", "off"] = "auto"
    """Whether the replay is saved beside the checkpoints, so that --resume and a restarted server continue with it;
    auto: if the disk has room for it."""
    checkpoint_replay_every_s: float = 300.0
    """Seconds between snapshots of the replay: usually the most that a killed server loses. Saving takes at most a
    tenth of the time; the last snapshot is made at the end of the run."""

    # evaluation
    eval_every_updates: int = 5_000
    """Learner steps between evaluations."""
    eval_episodes: int = 20
    """Games of one evaluation."""
    eval_max_frames_per_episode: int = 108_000
    """Emulator frames (other than on Atari: steps) after which an evaluation game is truncated; 108,000 frames are 30
    minutes of play."""
    eval_epsilon: float = 0.0
    """ε of the evaluator. Scores are of full games: unclipped, not ended by a lost life, with FIRE pressed after
    one."""
    final_episodes: int = 20
    """Fresh episodes that the best checkpoint plays at the end of a run, for summary.json; 0 = none."""

    dashboard: str = "auto"
    """The run's dashboard in the browser: auto (any free port, if nicegui is installed), a port, or off."""
    wandb: str = "off"
    """Weights & Biases: off, offline (files in the run directory, which `wandb sync` sends) or online."""
    logdir: str | None = None
    """Run directory; none = runs/<env>-<seed>-<time>."""
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
