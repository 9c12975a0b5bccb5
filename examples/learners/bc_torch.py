"""Behavioural cloning in PyTorch: in each state, the action that the data took.

python examples/learners/bc_torch.py --server localhost:8000 --table cartpole --plot bc.png
"""

import numpy as np
import torch
from cartpole import Run
from torch import nn
from torch.utils.data import DataLoader

from rlds2reverb.adapters.torch import TableDataset

BATCH_SIZE = 64


def main() -> None:
    run = Run(__doc__, steps=1_000)
    torch.manual_seed(run.seed)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def policy(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(observations)).argmax(1).numpy()

    dataset = TableDataset(run.server, run.table, BATCH_SIZE, samples=run.steps * BATCH_SIZE, timeout_seconds=60)
    for data, _ in run.watched(DataLoader(dataset, batch_size=None), policy):
        # A row of the batch is two steps: [64, 2, ...]. The first has the action that was taken.
        loss = nn.functional.cross_entropy(network(data.observation[:, 0]), data.action[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.report(policy)


if __name__ == "__main__":
    main()
