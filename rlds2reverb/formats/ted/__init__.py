"""TorchRL's replay buffers as `ReplayBuffer.dumps` writes them, read and written without torch.

| chapter | from | to |
| --- | --- | --- |
| `keys` | TED's keys | the keys that options ask for |
| `folders` | `meta.json`, `storage_metadata.json` | leaves: files of known dtype and shape |
| `memory` | TensorDicts of a program | the same leaves |
| `torch_files` | files of `torch.save` | the same leaves |
| `trajectories`, `h5` | leaves, trajectory ids, end flags | the rows of one trajectory |
| `sampler` | the folder of a prioritised sampler | priorities of rows, and back |
| `read` | these rows | RLDS' columns: the source `ted:PATH[?OPTIONS]` |
| `write` | episodes | the destination `ted:PATH[?OPTIONS]` |

`layout=h5` (or a path that ends in ".h5") writes what TorchRL's H5StorageCheckpointer writes, `layout=memmap` what `ReplayBuffer.dumps`
writes of a LazyMemmapStorage. Importing this module loads no other.

Sources of the layout: torchrl/data/replay_buffers (checkpointers.py, utils.py, storages), tensordict (base.py, _td.py, tensorclass.py,
persistent.py), versions 0.14; probed with files that they wrote.
"""

LOSSES = {  # code -> what the format cannot hold
    "metadata": "TED has no place for the metadata of episodes",
    "text": "a TensorDict holds texts as pickles or JSON only; they are left out",
    "dtype": "torch's storages hold no values of this dtype; it is left out",
    "bfloat16": "HDF5 has no bfloat16; it is written as float32, which holds the same values. layout=memmap keeps it",
    "name": "TED gives this name another meaning, or no file can have it; it is left out",
    "empty_values": "values without a size: TorchRL loads no buffer that has them; they are left out",
    "unknown_end": "it is not known which episodes end in a terminal state: all are written as truncated",
    "shape": "TED has numbers as [1]: a reward or a discount of that shape comes back as a number",
    "discount": "discount=drop leaves it out",
    "last_row": "the last row of an episode has no step in TED: its action and reward are left out, and they are not 0",
    "last_discount": "the last row of an episode has no step in TED: its discount is left out, and differs from that of its end",
}
