"""D4RL: one HDF5 file of rows; terminals and timeouts end episodes.

Source of the layout: d4rl/offline_env.py, d4rl/__init__.py and scripts/generation of D4RL (commit 89141a6).
"""
