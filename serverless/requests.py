"""What a job asks of functions: requests with its own settings in them, and where each of its actors stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replay_server.rl.function_contract import (
    ActorRequest,
    EvaluationRequest,
    GradientRequest,
    LearnerRequest,
    Names,
    ParameterRequest,
    encode_request,
)


@dataclass
class ActorPlace:
    """Where the environments of one actor number are: what its next request goes on from."""

    sequence: int = 0
    """Fragments that each of them has yielded and that were accepted."""
    state: str | None = None
    """Key of their states after the last accepted attempt; None = new environments."""


class Requests:
    """Makes requests, encoded, of one job.

    Args:
        names: of the job, with its run.
        settings: the algorithm's, as a plain map.
        environments: of each actor.
    """

    def __init__(
        self, names: Names, server_url: str, algorithm: str, settings: Mapping[str, Any], environments: int
    ) -> None:
        self.names = names
        self._environments = environments
        self._common: dict[str, Any] = {
            "server_url": server_url, "job": names.job, "settings": dict(settings), "algorithm": algorithm,
            "run": names.run,
        }  # fmt: skip

    def actor(
        self, request: str, round_number: int, version: int, actor: int, place: ActorPlace, deadline: float, exact: bool
    ) -> bytes:
        """One fragment of each of an actor's environments, from where it stands."""
        return encode_request(
            ActorRequest(
                request=request,
                round=round_number,
                version=version,
                deadline=deadline,
                actor=actor,
                environments=self._environments,
                sequence=place.sequence,
                state=place.state,
                exact=exact,
                **self._common,
            )
        )

    def learner(
        self, request: str, round_number: int, version: int, *, fragments: bytes = b"", sample: int = 0,
        updates: int = 1, threads: int = 0, probes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> bytes:  # fmt: skip
        """Updates from these fragments, or from samples of so many, and then what `probes` ask for."""
        return encode_request(
            LearnerRequest(
                request=request,
                round=round_number,
                version=version,
                fragments=fragments,
                sample=sample,
                updates=updates,
                threads=threads,
                probes=dict(probes or {}),
                **self._common,
            )
        )

    def gradient(
        self, request: str, round_number: int, version: int, fragments: bytes, learner: int,
        learning: Mapping[str, Any], *, threads: int = 0, probes: Mapping[str, Mapping[str, Any]] | None = None,
        device: str = "cpu",
    ) -> bytes:  # fmt: skip
        """Gradients of these fragments, by one of a round's asynchronous learners, and then what `probes` ask for."""
        return encode_request(
            GradientRequest(
                request=request,
                round=round_number,
                version=version,
                fragments=fragments,
                learner=learner,
                learning=learning,
                threads=threads,
                probes=dict(probes or {}),
                device=device,
                **self._common,
            )
        )

    def parameter(
        self, request: str, round_number: int, version: int, learning: Mapping[str, Any], serve_s: float
    ) -> bytes:
        """A round's gradients applied until it is over."""
        return encode_request(
            ParameterRequest(
                request=request, round=round_number, version=version, learning=learning, serve_s=serve_s, **self._common
            )
        )

    def evaluation(self, request: str, round_number: int, version: int, episodes: int, seed: int) -> bytes:
        """Fresh games with the policy of a version."""
        return encode_request(
            EvaluationRequest(
                request=request, round=round_number, version=version, episodes=episodes, seed=seed, **self._common
            )
        )
