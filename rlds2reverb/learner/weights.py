"""Importance weights of prioritised samples, by formula.

P is the probability with which the server drew an item, N the number of items in its table, p the item's priority:

| weights | w_i | weight that is 1 |
| --- | --- | --- |
| "batch_max" | (N P_i)^-beta / max over the batch | the batch's largest |
| "unscaled" | (N P_i)^-beta | that of an item drawn with probability 1 / N |
| "acme" | (1 / P_i)^beta / max over the batch | the batch's largest |
| "table_min" | (p_i / p_min)^(-alpha beta) | that of the table's smallest priority |

"batch_max" is the paper's (Schaul et al., Prioritized Experience Replay, 2015) with a batch for the whole buffer. "acme" differs
from it only while a table grows within a batch, for N falls out of it otherwise (acme/agents/jax/dqn/losses.py). "table_min" is
what TorchRL (samplers/prioritized.py) and RLlib (prioritized_replay_buffer.py) compute. Both know the smallest probability of
the whole buffer. Reverb does not report it, so the caller must give the smallest priority. TF-Agents computes no weights.

Alpha is the table's: P_i = p_i^alpha / sum of them. Samplers that are not prioritised are uniform, or leave nothing to
chance: their weights are 1.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.learner.options import ACME, BATCH_MAX, TABLE_MIN, Changing, check_number, check_weights
from rlds2reverb.wire.messages import TableInfo, priority_exponent
from rlds2reverb.wire.sample.batches import SampleInfo


class Weights:
    """Computes the weights of the samples of one table, batch after batch.

    With "table_min", a batch that holds a priority below `min_priority` scales by its own smallest one.

    Raises:
      ConfigError: as `check_weights`.
    """

    def __init__(
        self, table: TableInfo, weights: str, beta: Changing | None, min_priority: Changing | None = None
    ) -> None:
        check_weights(weights, beta, min_priority)
        self._table, self._formula = table.name, weights
        self._beta, self._min_priority = beta, min_priority
        self._alpha = priority_exponent(table.sampler)
        self._batches = count()

    def next(self, info: SampleInfo) -> Array:
        """[B] float32 weights of the next batch.

        Raises:
          ConfigError: the value of a function for beta or min_priority is out of its range; or a weight is too large for float32.
          WireError: a probability outside (0, 1].
        """
        number = next(self._batches)
        beta = _at("beta", self._beta, number)
        if self._alpha is None:
            return np.ones(len(info.key), np.float32)
        is_possible = (info.probability > 0) & (info.probability <= 1)
        if not is_possible.all():
            at = int(np.argmin(is_possible))
            raise WireError(
                f'table "{self._table}": the server drew an item of priority {info.priority[at]} with probability {info.probability[at]};'
                " expected more than 0 and at most 1. One infinite priority in a table makes all probabilities NaN"
            )
        if self._formula == TABLE_MIN:
            smallest = _at("min_priority", self._min_priority, number)
            # A priority of 0 counts as the smallest: it is drawn only while all are 0, and then uniformly.
            there = np.where(info.priority > 0, info.priority, smallest)
            logs = self._alpha * (np.log(there) - np.log(min(smallest, float(there.min()))))
        else:
            logs = np.log(info.probability) + (0.0 if self._formula == ACME else np.log(info.table_size))
        logs = -beta * logs  # of the weights, which may be too large or too small for a float64 themselves
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


def _at(name: str, value: Changing | None, batch: int) -> float:
    return check_number(name, value(batch) if callable(value) else value)
