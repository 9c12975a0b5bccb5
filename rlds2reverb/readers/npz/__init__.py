"""NumPy's .npz files: a dataset in one file, or a file for each episode.

Source of the layout: numpy/lib/_format_impl.py ("NPY format"); a .npz file is a zip archive of .npy files.
"""
