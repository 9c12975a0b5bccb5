"""PyTorch: batches of tables, datasets and mixes as tensors, made in this process or by the workers of a DataLoader.

| dataset for a DataLoader | reads | its workers |
| --- | --- | --- |
| `TableDataset` | a table of a server | sample by themselves |
| `LocalDataset` | a dataset on disk | make the batches in turn, in the order of a single process |
| `MixDataset` | several of both | the same for what is on disk |

Columns:

| numpy | tensor |
| --- | --- |
| bool, int8 to int64, uint8, float16/32/64, complex | the same dtype, over the same memory |
| uint16, uint32, uint64 | torch.uint16, uint32, uint64, over the same memory; PyTorch has few operations for them |
| bfloat16 | torch.bfloat16, over the same memory |
| text, encoded images | a numpy array of `bytes` |
| info.key, uint64 | int64 of the same bits, on the host, for `update_priorities` and `delete` of a client |
| a list of arrays (`ragged="list"`) | a list of tensors |

Its chapters, from the bottom:

tensors    arrays as tensors
passes     the number of a pass, which all workers of a DataLoader share
ordered    batches in one order, and positions in it
tables     `TableDataset`
datasets   `LocalDataset`, `MixDataset`
"""

from rlds2reverb.extras import needing

with needing("the adapter for PyTorch", "torch", ModuleNotFoundError):
    import torch as _torch  # noqa: F401  # first, so that its absence is told

from rlds2reverb.adapters.torch.datasets import LocalDataset as LocalDataset
from rlds2reverb.adapters.torch.datasets import MixDataset as MixDataset
from rlds2reverb.adapters.torch.ordered import BatchFunction as BatchFunction
from rlds2reverb.adapters.torch.ordered import check_map as check_map
from rlds2reverb.adapters.torch.tables import TableDataset as TableDataset
from rlds2reverb.adapters.torch.tensors import TensorBatch as TensorBatch
from rlds2reverb.adapters.torch.tensors import batches as batches
from rlds2reverb.adapters.torch.tensors import on_host as on_host
from rlds2reverb.adapters.torch.tensors import tensor_of as tensor_of
from rlds2reverb.adapters.torch.tensors import tensors as tensors
from rlds2reverb.adapters.torch.tensors import update_priorities as update_priorities
