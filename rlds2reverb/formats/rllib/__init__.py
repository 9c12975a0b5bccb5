"""RLlib's offline data: JSON lines of sample batches, and Parquet files of steps, of sample batches or of whole episodes.

| chapter | what it holds |
| --- | --- |
| `index` | names of columns, the files, and which rows belong to which episode |
| `values` | recorded values as columns |
| `records` | what files of every kind share, and JSON lines |
| `tables` | Parquet files |
| `read` | the source `rllib:PATH[?OPTIONS]` |
"""
