"""LeRobot datasets: versions 2.0, 2.1 and 3.0 are read, version 3.0 is written, without lerobot, datasets and torch.

| chapter | content |
| --- | --- |
| `features` | the features of info.json, and the columns they become |
| `meta` | the folder meta/: info.json, episodes, tasks |
| `values` | rows of the Parquet files |
| `videos` | frames of videos, and images in tables |
| `read` | the source `lerobot:PATH[?OPTIONS]` |
| `clips` | frames to videos |
| `write` | the destination `lerobot:PATH[?OPTIONS]`: rows as Parquet, images as PNG or JPEG inside or as videos |

Importing this module loads no other.

Sources of the layout: datasets/utils.py, lerobot_dataset.py and video_utils.py of lerobot 0.3.3; dataset_metadata.py, dataset_reader.py,
dataset_writer.py and feature_utils.py of lerobot 0.6.1.
"""

LOSSES = {  # code -> what LeRobot's datasets cannot hold
    "column": "LeRobot has no feature for it: a size that is free, more than five axes, no values, whole numbers from 2^63 on, a list of texts, or another dtype; it is left out",
    "feature": "a feature of the episode that is neither a number nor a text; it is left out",
    "renumbered": "LeRobot numbers episodes, rows and tasks itself; this number is left out",
    "time": "no column timestamp: rows count as evenly spaced in time (fps=)",
    "last_observation": "the last observation: LeRobot's rows end with the last action; last_step=keep writes it",
    "last_row": "a value of the last row, which RLDS calls undefined; last_step=keep writes it",
    "float64": "LeRobot stores it exactly, and gives it to learners as float32: torch's dtype of Python's numbers",
    "video": "frames of a video are near to the images, not equal (video=); verify (--verify) tells how near: the PSNR of each camera",
    "text": "a text that is not UTF-8: its invalid bytes are written as \\xNN",
}
