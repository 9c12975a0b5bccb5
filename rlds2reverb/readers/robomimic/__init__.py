"""robomimic: one HDF5 file, a group of datasets for each demonstration; also as MimicGen and LIBERO write it.

Source of the layout: robomimic 0.5.0, docs/datasets/overview.md, scripts/ and utils/dataset.py; MimicGen (commit 72bd767); LIBERO
(commit 8f1084e), scripts/create_dataset.py.
"""
