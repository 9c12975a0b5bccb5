"""LeRobot's ACT or diffusion policy, trained on a dataset, or on a table that holds its items.

python examples/make_reach.py data
python examples/learners/lerobot_policy.py tfds:data/reach/1.0.0 --policy diffusion --save policy
python examples/learners/lerobot_policy.py tfds:data/reach/1.0.0 --policy act --server localhost:8000 --table reach

At the end its error on held-out episodes stands beside that of the mean action. The networks are small, for a CPU.
"""

import argparse
from typing import Any

import torch
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.factory import make_policy, make_pre_post_processors
from torch.utils.data import DataLoader

import rlds2reverb
from rlds2reverb.adapters.lerobot import PolicyData, policy_view
from rlds2reverb.adapters.torch import LocalDataset, TableDataset

SMALL: dict[str, Any] = {"device": "cpu", "pretrained_backbone_weights": None}
ACT: dict[str, Any] = {"chunk_size": 8, "n_action_steps": 8, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128}
DIFFUSION: dict[str, Any] = {
    "n_obs_steps": 2,
    "horizon": 8,
    "n_action_steps": 4,
    "drop_n_last_frames": 3,
    "crop_shape": (44, 44),
}
UNET: dict[str, Any] = {"down_dims": (64, 128), "num_train_timesteps": 20, "use_group_norm": True}
WITHOUT: dict[str, Any] = {
    "where": "success",
    "idle": "by=value,dims=0:2,steps=5",
}  # failures, and stretches without a motion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--policy", choices=["act", "diffusion"], default="act")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--server", help="train on a table of this server; it is filled first")
    parser.add_argument("--table", default="reach")
    parser.add_argument("--save", help="folder for the policy and its processors")
    options = parser.parse_args()
    torch.manual_seed(0)

    config = ACTConfig(**SMALL, **ACT) if options.policy == "act" else DiffusionConfig(**SMALL, **DIFFUSION, **UNET)
    view = policy_view(config)
    train: dict[str, Any] = {"split": "train", "val_share": 0.1, **WITHOUT}
    if options.server:
        with rlds2reverb.connect(options.server) as client:
            client.push(options.source, options.table, view=view, encoded="all", **train)
        items = TableDataset(options.server, options.table, options.batch_size)
    else:
        items = LocalDataset(options.source, view, options.batch_size, encoded="all", shuffle="global", **train)
    statistics = rlds2reverb.statistics(options.source, **train)
    data = PolicyData(config, items, statistics)

    policy = make_policy(config, ds_meta=data)
    preprocessor, postprocessor = make_pre_post_processors(config, dataset_stats=data.stats)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=1e-4)
    loader = DataLoader(data.dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    step = 0
    policy.train()
    while step < options.steps:
        for batch in loader:  # an epoch; of a table without end
            loss, _ = policy.forward(preprocessor(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0 or step == options.steps:
                print(f"step {step}: loss {loss.item():.3f}")
            if step == options.steps:
                break

    held_out = LocalDataset(options.source, view, options.batch_size, encoded="all", **{**train, "split": "val"})
    policy.eval()
    mean = torch.tensor(data.stats["action"]["mean"], dtype=torch.float32)
    errors, constant, count = 0.0, 0.0, 0
    for batch in PolicyData(config, held_out, statistics):
        policy.reset()
        with torch.no_grad():
            predicted = postprocessor(policy.predict_action_chunk(preprocessor(dict(batch))))
        first = config.n_obs_steps - 1  # a diffusion policy's actions begin with the first observation
        kept = slice(first, first + predicted.shape[1])
        actions, is_real = batch["action"][:, kept], ~batch["action_is_pad"][:, kept, None]
        errors += ((predicted - actions).abs() * is_real).sum().item()
        constant += ((mean - actions).abs() * is_real).sum().item()
        count += int(is_real.sum()) * actions.shape[-1]
    print(f"held-out error {errors / count:.4f}, of the mean action {constant / count:.4f}")
    if options.save:
        policy.save_pretrained(options.save)
        preprocessor.save_pretrained(options.save)
        postprocessor.save_pretrained(options.save)


if __name__ == "__main__":
    main()
