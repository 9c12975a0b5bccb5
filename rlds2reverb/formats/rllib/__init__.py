"""RLlib's offline data: JSON lines of sample batches, and Parquet files of steps, of sample batches or of whole episodes.

| chapter | content |
| --- | --- |
| `keys` | names of columns |
| `index` | the files, and which rows belong to which episode |
| `values` | recorded values as columns |
| `records` | the base of all kinds of files, and JSON lines |
| `tables` | Parquet files |
| `states` | whole episodes in them |
| `read` | the source `rllib:PATH[?OPTIONS]` |
"""
