"""RLlib's offline data: JSON lines of sample batches, and Parquet files of steps, of sample batches or of whole episodes.

What each kind of file holds becomes `batches.PolicyRows`s; `index` finds the pieces of episodes in them and joins them; `recordings` reads
an episode's pieces and puts them in rows.
"""
