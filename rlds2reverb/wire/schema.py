"""The messages of Reverb's protocol, built at import from one table.

Sources: reverb_service.proto, schema.proto and checkpoint.proto of dm-reverb 0.14; tensor.proto, tensor_shape.proto and
struct.proto of TensorFlow 2.15. Field numbers are the protocol.

Only the fields that this package reads or writes are here; protobuf keeps or skips all others.
"""

from __future__ import annotations

from typing import Any

from rlds2reverb.protobuf import message_classes

PACKAGE = "rlds2reverb.wire"

# message -> fields: "[repeated] type name = number"; a capitalised type is a message of this table.
MESSAGES: dict[str, tuple[str, ...]] = {
    # tensor_shape.proto, tensor.proto
    "Dim": ("int64 size = 1", "string name = 2"),
    "TensorShape": ("repeated Dim dim = 2", "bool unknown_rank = 3"),
    "Tensor": (
        "int32 dtype = 1",
        "TensorShape tensor_shape = 2",
        "bytes tensor_content = 4",
        "repeated float float_val = 5",
        "repeated double double_val = 6",
        "repeated int32 int_val = 7",
        "repeated bytes string_val = 8",
        "repeated float scomplex_val = 9",
        "repeated int64 int64_val = 10",
        "repeated bool bool_val = 11",
        "repeated double dcomplex_val = 12",
        "repeated int32 half_val = 13",
        "repeated uint32 uint32_val = 16",
        "repeated uint64 uint64_val = 17",
    ),
    # struct.proto
    "TensorSpec": ("string name = 1", "TensorShape shape = 2", "int32 dtype = 3"),
    "BoundedTensorSpec": (
        "string name = 1",
        "TensorShape shape = 2",
        "int32 dtype = 3",
        "Tensor minimum = 4",
        "Tensor maximum = 5",
    ),
    "NoneValue": (),
    "ListValue": ("repeated StructuredValue values = 1",),
    "DictEntry": ("string key = 1", "StructuredValue value = 2"),
    "DictValue": ("repeated DictEntry fields = 1",),  # a map on the wire is a repeated entry
    "NamedTupleValue": ("string name = 1", "repeated DictEntry values = 2"),
    "StructuredValue": (
        "NoneValue none_value = 1",
        "TensorSpec tensor_spec_value = 33",
        "BoundedTensorSpec bounded_tensor_spec_value = 35",
        "ListValue list_value = 51",
        "ListValue tuple_value = 52",
        "DictValue dict_value = 53",
        "NamedTupleValue named_tuple_value = 54",
    ),
    # schema.proto
    "SequenceRange": ("uint64 episode_id = 1", "int32 start = 2", "int32 end = 3", "bool sparse = 4"),
    "ChunkTensors": ("repeated Tensor tensors = 1",),
    "ChunkData": (
        "uint64 chunk_key = 1",
        "SequenceRange sequence_range = 2",
        "bool delta_encoded = 4",
        "ChunkTensors data = 5",
        "int32 data_tensors_len = 6",
        "int64 data_uncompressed_size = 7",
    ),
    "ChunkSlice": ("uint64 chunk_key = 1", "int32 offset = 2", "int32 length = 3", "int32 index = 4"),
    "Column": ("repeated ChunkSlice chunk_slices = 1", "bool squeeze = 2"),
    "FlatTrajectory": ("repeated Column columns = 1",),
    "PrioritizedItem": (
        "uint64 key = 1",
        "string table = 2",
        "double priority = 5",
        "int32 times_sampled = 6",
        "FlatTrajectory flat_trajectory = 8",
    ),
    "Prioritized": ("double priority_exponent = 1",),
    "Heap": ("bool min_heap = 1",),
    "KeyDistribution": (
        "bool fifo = 1",
        "bool uniform = 2",
        "Prioritized prioritized = 3",
        "Heap heap = 4",
        "bool lifo = 6",
    ),
    "CallStats": ("int64 completed = 2",),
    "RateLimiter": (
        "double samples_per_insert = 1",
        "double min_diff = 2",
        "double max_diff = 3",
        "int64 min_size_to_sample = 4",
        "CallStats insert_stats = 5",
        "CallStats sample_stats = 6",
    ),
    "WorkerTime": (
        "int64 running_ms = 1",
        "int64 sampling_ms = 2",
        "int64 inserting_ms = 3",
        "int64 sleeping_ms = 4",
        "int64 waiting_for_sampling_ms = 5",
        "int64 waiting_for_inserts_ms = 6",
    ),
    "Table": (
        "KeyDistribution sampler_options = 1",
        "KeyDistribution remover_options = 2",
        "int64 max_size = 3",
        "int32 max_times_sampled = 4",
        "RateLimiter rate_limiter_info = 5",
        "StructuredValue signature = 6",
        "int64 current_size = 7",
        "string name = 8",
        "int64 num_episodes = 9",
        "int64 num_deleted_episodes = 10",
        "int64 num_unique_samples = 11",
        "WorkerTime table_worker_time = 12",
    ),
    "Uint128": ("uint64 high = 1", "uint64 low = 2"),
    # reverb_service.proto
    "ServerInfoRequest": (),
    "ServerInfoResponse": ("Uint128 tables_state_id = 1", "repeated Table table_info = 2"),
    "CheckpointRequest": (),
    "CheckpointResponse": ("string checkpoint_path = 1",),
    "InsertStreamRequest": (
        "repeated ChunkData chunks = 1",
        "repeated PrioritizedItem items = 2",
        "repeated uint64 keep_chunk_keys = 3",
    ),
    "InsertStreamResponse": ("repeated uint64 keys = 1",),
    "KeyWithPriority": ("uint64 key = 1", "double priority = 2"),
    "MutatePrioritiesRequest": (
        "string table = 1",
        "repeated KeyWithPriority updates = 2",
        "repeated uint64 delete_keys = 3",
    ),
    "ResetRequest": ("string table = 1",),
    "RateLimiterTimeout": ("int64 milliseconds = 1",),
    "SampleStreamRequest": ("string table = 1", "int64 num_samples = 2", "RateLimiterTimeout rate_limiter_timeout = 3"),
    # checkpoint.proto: what describes a table there
    "RateLimiterCheckpoint": (
        "double samples_per_insert = 2",
        "double min_diff = 3",
        "double max_diff = 4",
        "int64 min_size_to_sample = 5",
        "int64 sample_count = 6",
        "int64 insert_count = 7",
        "int64 delete_count = 8",
    ),
    "PriorityTableCheckpoint": (
        "string table_name = 1",
        "RateLimiterCheckpoint rate_limiter = 3",
        "KeyDistribution sampler = 4",
        "KeyDistribution remover = 5",
        "int64 max_size = 6",
        "int32 max_times_sampled = 7",
        "StructuredValue signature = 9",
    ),
    # A sampled item: its trajectory stays bytes, read for many items at once (`sample.trajectories`). So do the tensors of a chunk,
    # which are parsed only where the chunk is new.
    "SampledItem": (
        "uint64 key = 1",
        "double priority = 5",
        "int32 times_sampled = 6",
        "bytes flat_trajectory = 8",
    ),
    "SampleInfo": (
        "SampledItem item = 1",
        "double probability = 2",
        "int64 table_size = 3",
        "bool rate_limited = 4",
    ),
    "SampledChunk": ("uint64 chunk_key = 1", "bool delta_encoded = 4", "bytes data = 5"),
    "SampleEntry": ("SampleInfo info = 1", "repeated SampledChunk data = 2", "bool end_of_sequence = 3"),
    "SampleStreamResponse": ("repeated SampleEntry entries = 1",),
}

_CLASSES = message_classes(PACKAGE, MESSAGES)


def message_class(name: str) -> Any:
    """The protobuf class of a message of `MESSAGES`."""
    return _CLASSES[name]
