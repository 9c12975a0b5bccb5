"""Offline DQN in PyTorch: double Q-learning that mistrusts what the data did not try.

    python examples/learners/dqn_torch.py --server localhost:8000 --table cartpole --plot dqn.png

No step is taken in an environment, so no error in a Q-value is ever found out: without the conservative term (CQL), the
largest of them is mostly the most wrong one.
"""

import copy

import numpy as np
import torch
from cartpole import Run
from torch import nn
from torch.utils.data import DataLoader

from rlds2reverb.adapters.torch import TableDataset

BATCH_SIZE = 64
DISCOUNT = 0.95  # so no value is over 20, and the data's choices weigh something beside it
CONSERVATIVE = 1.0


def main() -> None:
    run = Run(__doc__, steps=1_000)
    torch.manual_seed(run.seed)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def policy(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(observations)).argmax(1).numpy()

    dataset = TableDataset(run.server, run.table, BATCH_SIZE, samples=run.steps * BATCH_SIZE, timeout_seconds=60)
    for data, _ in run.watched(DataLoader(dataset, batch_size=None), policy):
        first, second = data.observation.unbind(1)
        action, reward, discount = data.action[:, 0], data.reward[:, 0], data.discount[:, 0]
        with torch.no_grad():  # discount is 0 where the pole fell, and 1 where only the time was over
            best = network(second).argmax(1, keepdim=True)
            wanted = reward + DISCOUNT * discount * target(second).gather(1, best)[:, 0]
        values = network(first)
        taken = values.gather(1, action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(taken, wanted) + CONSERVATIVE * (values.logsumexp(1) - taken).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for old, new in zip(target.parameters(), network.parameters(), strict=True):
            old.lerp_(new.detach(), 0.01)
    run.report(policy)


if __name__ == "__main__":
    main()
