"""Makes tests/data/reverb: a checkpoint of Reverb's own server, with data of its own writers and of TF-Agents' observers.

Made with dm-reverb 0.14.0, tf-agents 0.19.0, tensorflow 2.15.1, Python 3.11. Run: python tests/data/make_reverb.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory

TARGET = Path(__file__).parent / "reverb"
EPISODES, ROWS = 3, 6


def tables() -> list[reverb.Table]:
    signature = {"observation": tf.TensorSpec([None, 2], tf.float32), "action": tf.TensorSpec([None], tf.int64)}
    names = {"windows": signature, "delta": None, "single": None, "pairs": None, "stream": None, "empty": None}
    return [
        reverb.Table(
            name,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            100,
            reverb.rate_limiters.MinSize(1),
            signature=label,
        )
        for name, label in names.items()
    ]


def write_windows(client: reverb.Client) -> None:
    """Windows of two rows by the TrajectoryWriter, a chunk per column; of episode 2 the windows at rows 2 and 3 are left out."""
    for episode in range(EPISODES):
        with client.trajectory_writer(num_keep_alive_refs=4) as writer:
            for row in range(ROWS):
                writer.append({"observation": np.full(2, 10 * episode + row, np.float32), "action": np.int64(row)})
                if row and not (episode == 2 and row in (3, 4)):
                    window = {name: writer.history[name][-2:] for name in ("observation", "action")}
                    writer.create_item("windows", float(row), window)
            writer.end_episode()


def write_delta(client: reverb.Client) -> None:
    """Windows of three rows by the old Writer, delta encoded: all columns in one chunk."""
    with client.writer(max_sequence_length=3, chunk_length=2, delta_encoded=True) as writer:
        for row in range(ROWS):
            writer.append([np.arange(4) + row, np.float32(row)])
            if row >= 2:
                writer.create_item("delta", 3, 1.0)


def write_trajectories(client: reverb.Client) -> None:
    """What TF-Agents' observers make of steps; every second episode ends terminal."""
    observers = [
        reverb_utils.ReverbAddTrajectoryObserver(client, "pairs", sequence_length=2),
        reverb_utils.ReverbTrajectorySequenceObserver(client, "stream", sequence_length=3),
    ]
    for episode in range(EPISODES):
        for row in range(ROWS):
            step_type = 0 if row == 0 else 2 if row == ROWS - 1 else 1
            following = 0 if row == ROWS - 1 else 2 if row == ROWS - 2 else 1
            discount = np.float32(0 if following == 2 and episode % 2 == 0 else 1)
            observation = np.full(2, 10 * episode + row, np.float32)
            step = trajectory.Trajectory(
                np.int32(step_type), observation, np.int64(row), (), np.int32(following), np.float32(row), discount
            )
            for observer in observers:
                observer(step)
    for observer in observers:
        observer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(folder)
        server = reverb.Server(tables(), checkpointer=checkpointer)
        client = reverb.Client(f"localhost:{server.port}")
        write_windows(client)
        write_delta(client)
        for number in range(3):
            client.insert([np.full(2, number), np.float32(number)], {"single": 1.0})
        write_trajectories(client)
        written = client.checkpoint()
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(written, TARGET)
        server.stop()


if __name__ == "__main__":
    main()
