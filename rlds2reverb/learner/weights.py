"""Importance weights of prioritised samples, by the name of whose formula it is.

P is the probability with which the server drew an item, N the number of items in its table, p the item's priority:

| weights | w_i | made 1 |
| --- | --- | --- |
| "batch_max" | (N P_i)^-beta / max over the batch | the batch's largest |
| "unscaled" | (N P_i)^-beta | that of an item drawn as often as by chance |
| "acme" | (1 / P_i)^beta / max over the batch | the batch's largest |
| "table_min" | (p_i / p_min)^(-alpha beta) | that of the table's smallest priority |

"batch_max" is the paper's (Schaul et al., Prioritized Experience Replay, 2015) with a batch for the whole buffer. "acme" differs
from it only while a table grows within a batch, for N falls out of it otherwise (acme/agents/jax/dqn/losses.py). "table_min" is
what TorchRL (samplers/prioritized.py) and RLlib (prioritized_replay_buffer.py) compute. Both know the smallest probability of
the whole buffer. Reverb does not tell it, so the caller must tell the smallest priority. TF-Agents computes no weights.

Alpha is the table's: P_i = p_i^alpha / sum of them. Tables that are not prioritised draw all alike, or leave nothing to
chance: their weights are 1.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.learner.options import ACME, BATCH_MAX, TABLE_MIN, Changing, check_weights, checked_number
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import SampleInfo

_PRIORITIZED = "prioritized("


class Weights:
    """Gives the samples of one table their weights, batch after batch.

    Args:
      table: as the server tells of it; its sampler counts.
      weights: one of `FORMULAS`.
      beta: at least 0; 0 for weights of 1, 1 for a full correction.
      min_priority: of "table_min": a smallest priority above 0. A batch that holds a smaller one scales by its own.

    Raises:
      ConfigError: as `check_weights`.
    """

    def __init__(
        self, table: TableInfo, weights: str, beta: Changing | None, min_priority: Changing | None = None
    ) -> None:
        check_weights(weights, beta, min_priority)
        self._table, self._formula = table.name, weights
        self._beta, self._min_priority = beta, min_priority
        self._alpha = alpha_of(table.sampler)
        self._batches = count()

    def next(self, info: SampleInfo) -> Array:
        """[B] float32 weights of the next batch.

        Raises:
          ConfigError: what beta or min_priority came to is out of its range; or a weight is too large for float32.
          WireError: a number that is not a probability.
        """
        number = next(self._batches)
        beta = _at("beta", self._beta, number)
        if self._alpha is None:
            return np.ones(len(info.key), np.float32)
        self._check(info.probability, info.priority)
        if self._formula == TABLE_MIN:
            logs = self._alpha * self._over_smallest(info.priority, _at("min_priority", self._min_priority, number))
        else:
            logs = np.log(info.probability) + (0.0 if self._formula == ACME else np.log(info.table_size))
        return self._scaled(-beta * logs)

    def _scaled(self, logs: Array) -> Array:
        """[B] float32 of the logarithms of the weights, which may be too large or too small for a number themselves."""
        if self._formula in (BATCH_MAX, ACME):
            logs = logs - logs.max()
        with np.errstate(over="ignore", under="ignore"):
            weights: Array = np.exp(logs).astype(np.float32)
        if not np.isfinite(weights).all():
            raise ConfigError(
                f'table "{self._table}": weights "{self._formula}": one is about exp({logs.max():.0f}), too large for '
                f'float32; use a smaller beta, or "{BATCH_MAX}"'
            )
        return weights

    def _over_smallest(self, priority: Array, smallest: float) -> Array:
        """[B] log(p_i / p_min). One of 0 counts as the smallest: it is drawn only while all are 0, and then alike."""
        there = np.where(priority > 0, priority, smallest)
        ratios: Array = np.log(there) - np.log(min(smallest, float(there.min())))
        return ratios

    def _check(self, probability: Array, priority: Array) -> None:
        wrong = np.flatnonzero(~((probability > 0) & (probability <= 1)))
        if len(wrong):
            at = int(wrong[0])
            raise WireError(
                f'table "{self._table}": the server drew an item of priority {priority[at]} with probability {probability[at]};'
                " expected more than 0 and at most 1. One infinite priority in a table makes all probabilities NaN"
            )


def alpha_of(sampler: str) -> float | None:
    """The exponent of a prioritised sampler; None of any other, whose weights are 1."""
    if not sampler.startswith(_PRIORITIZED):
        return None
    return float(sampler.removeprefix(_PRIORITIZED).rstrip(")"))


def _at(name: str, value: Changing | None, batch: int) -> float:
    return checked_number(name, value(batch) if callable(value) else value)
