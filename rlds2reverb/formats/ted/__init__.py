"""TorchRL's replay buffers, written without torch: `ted:PATH[?OPTIONS]`.

`layout=h5` (or a path that ends in ".h5") is what TorchRL's H5StorageCheckpointer writes, `layout=memmap` what `ReplayBuffer.dumps`
writes of a LazyMemmapStorage. A step's row: see `layout`.

Importing this loads nothing.
"""

LOSSES = {
    "metadata": "TED has no place for what a dataset says of whole episodes",
    "text": "a TensorDict holds texts as pickles or JSON only; they are left out",
    "dtype": "torch's storages hold no values of this dtype; it is left out",
    "bfloat16": "HDF5 has no bfloat16; it is written as float32, which holds the same values. layout=memmap keeps it",
    "name": "TED gives this name another meaning, or no file can have it; it is left out",
    "empty_values": "memory-mapped TensorDicts hold no values without a size; they are left out. layout=h5 keeps them",
    "unknown_end": "it is not known which episodes end in a terminal state: all are written as truncated",
    "shape": "TED has numbers as [1]: a reward or a discount of that shape comes back as a number",
    "discount": "discount=drop leaves it out",
    "last_row": "the last row of an episode has no step in TED: its action and reward are left out, and they are not 0",
    "last_discount": "the last row of an episode has no step in TED: its discount is left out, and it is not what its end says",
}
"""Code -> what the format cannot hold."""


# TorchRL's replay buffers as they are dumped: memory-mapped TensorDicts, their Flat, Nested and H5 forms, PyTrees. Read without torch.
#
# | module | from | to |
# | --- | --- | --- |
# | `locate` | a path | which files a buffer has, and how they are laid out |
# | `folders`, `pytrees` | `meta.json`, `storage_metadata.json` | leaves: files of known dtype and shape |
# | `keys` | TED's keys | the ones that options ask for |
# | `bounds` | trajectory ids or end flags | where trajectories begin and end |
# | `ring`, `flat`, `h5` | leaves | the rows of one trajectory |
# | `roles`, `recordings` | these rows | RLDS' columns |
#
# Sources of the layout: torchrl/data/replay_buffers (checkpointers.py, utils.py, storages), tensordict (base.py, _td.py, tensorclass.py,
# persistent.py), versions 0.14; probed with files that they wrote.
