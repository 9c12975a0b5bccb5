"""Small policies, and a training run that saves its position after each step and may be killed.

python tests/systems/lerobot/training.py '{"source": ..., "folder": ..., "killed_after": 3}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.factory import make_policy, make_pre_post_processors
from torch.utils.data import DataLoader

from rlds2reverb.adapters.lerobot import PolicyData, policy_view
from rlds2reverb.adapters.torch import LocalDataset

SMALL: dict[str, Any] = {"device": "cpu", "pretrained_backbone_weights": None}


def config_of(name: str, **options: Any) -> Any:
    """A policy that is trained in a second; chunks of 8 actions."""
    if name == "act":
        sizes: dict[str, Any] = {
            "dim_model": 32,
            "n_heads": 2,
            "dim_feedforward": 64,
            "n_encoder_layers": 1,
            "n_vae_encoder_layers": 1,
        }
        windows: dict[str, Any] = {"chunk_size": 8, "n_action_steps": 8}
        return ACTConfig(latent_dim=4, **{**SMALL, **sizes, **windows, **options})
    unet = {"down_dims": (16, 32), "diffusion_step_embed_dim": 16, "num_train_timesteps": 10, "use_group_norm": True}
    vision = {"crop_shape": (28, 28), "spatial_softmax_num_keypoints": 4}
    windows = {"horizon": 8, "n_obs_steps": 2, "n_action_steps": 4, "drop_n_last_frames": 3}
    return DiffusionConfig(**{**SMALL, **unet, **vision, **windows, **options})


def policy_of(config: Any, meta: Any) -> tuple[Any, Any]:
    """A policy with its first weights, and its preprocessor; `meta` is of a dataset of LeRobot's, or `PolicyData`."""
    torch.manual_seed(7)
    policy = make_policy(config, ds_meta=meta)
    preprocessor, _ = make_pre_post_processors(config, dataset_stats=meta.stats)
    return policy, preprocessor


def train(policy: Any, preprocessor: Any, batches: Iterable[Any]) -> dict[str, Any]:
    """Takes one step for each batch; the weights afterwards."""
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    torch.manual_seed(11)
    policy.train()
    for batch in batches:
        optimizer.zero_grad()
        loss, _ = policy.forward(preprocessor(batch))
        loss.backward()
        optimizer.step()
    return {name: values.clone() for name, values in policy.state_dict().items()}


def main(source: str, folder: str, workers: int, killed_after: int | None = None) -> None:
    """Two epochs of ACT; continues where a run before it was killed."""
    config = config_of("act")
    dataset = LocalDataset(source, policy_view(config), 8, shuffle="global", seed=5)
    data = PolicyData(config, dataset, Path(folder) / "stats.json")
    policy, preprocessor = policy_of(config, data)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    checkpoint, step = Path(folder) / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        data.dataset.load_state_dict(saved["dataset"])
        step = saved["step"]
    policy.train()
    epoch = data.dataset.state_dict()["epoch"]
    loader = DataLoader(data.dataset, batch_size=None, num_workers=workers)
    for _ in range(epoch, 2):
        for count, batch in enumerate(loader, 1):
            step += 1
            torch.manual_seed(step)  # of dropout and the VAE: a resumed step draws as it would have
            optimizer.zero_grad()
            loss, _ = policy.forward(preprocessor(batch))
            loss.backward()
            optimizer.step()
            saved = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**saved, "dataset": data.dataset.state_dict(batches=count)}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
            if step == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
