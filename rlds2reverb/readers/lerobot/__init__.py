"""LeRobot's datasets, versions 2.0, 2.1 and 3.0, read without lerobot, datasets and torch.

`info` and `episodes` read what stands in meta/; `features` says which column becomes which; `tables`, `values`, `pictures` and `videos`
read steps; `recordings` puts an episode together.
Sources of the layout: datasets/utils.py, lerobot_dataset.py and video_utils.py of lerobot 0.3.3; dataset_metadata.py, dataset_reader.py,
dataset_writer.py and feature_utils.py of lerobot 0.6.1.
"""
