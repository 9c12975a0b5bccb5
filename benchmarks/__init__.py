"""Speed and size against TF-Agents' converter and Reverb's own writers: `python -m benchmarks`.

One benchmark a file; each has `FULL` and `SHORT` (a `common.Size`) and `run(size)`, which yields results. A result is
one JSON line. What was measured, and when a figure counts, is told in docs/benchmarks.md.
"""
