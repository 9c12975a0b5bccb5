"""How each of several servers is sampled."""

from __future__ import annotations

from dataclasses import replace

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.options import LIST, SampleOptions
from rlds2reverb.learner.weights import TABLE_MIN

_PATIENCE_SECONDS = 3.0
"""After which a server without a sample is looked at; longer than it takes until a wait is told."""


def check(options: SampleOptions) -> None:
    """Refuses what is for one server only.

    Raises:
      ConfigError: says how to go on.
    """
    if options.epochs is not None:
        raise ConfigError(
            "sample: epochs: each server counts its own; sample them one by one, each with a client of its own"
        )
    if options.weights == TABLE_MIN:
        raise ConfigError(
            f'sample: weights "{TABLE_MIN}": items of one priority are not equally likely on all servers; use "batch_max"'
        )


def of_one(options: SampleOptions, servers: int) -> SampleOptions:
    """How one server is sampled: its part of a batch at a time, and never waited for without end. What is of the whole batch is done to the whole.

    `samples` stays where samples of all servers are counted; of episodes that are cut, nobody knows how many items each gives.
    """
    bounds = [one for one in (options.timeout_seconds, options.end_after_seconds) if one is not None]
    return replace(
        options,
        batch_size=max(1, -(-options.batch_size // servers)),
        samples=options.samples if options.cut is None else None,
        drop_last=False,
        timeout_seconds=None,
        end_after_seconds=min([_PATIENCE_SECONDS, *bounds]),
        ragged=LIST,
        pad_to=None,
        weights=None,
        beta=None,
        min_priority=None,
    )
