"""TorchRL's replay buffers as they are dumped: memory-mapped TensorDicts, their Flat, Nested and H5 forms, PyTrees. Read without torch.

| module | from | to |
| --- | --- | --- |
| `locate` | a path | which files a buffer has, and how they are laid out |
| `folders`, `pytrees` | `meta.json`, `storage_metadata.json` | leaves: files of known dtype and shape |
| `keys` | TED's keys | the ones that options ask for |
| `bounds` | trajectory ids or end flags | where trajectories begin and end |
| `ring`, `flat`, `h5` | leaves | the rows of one trajectory |
| `roles`, `recordings` | these rows | RLDS' columns |

Sources of the layout: torchrl/data/replay_buffers (checkpointers.py, utils.py, storages), tensordict (base.py, _td.py, tensorclass.py,
persistent.py), versions 0.14; probed with files that they wrote.
"""
