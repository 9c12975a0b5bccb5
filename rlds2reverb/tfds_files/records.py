"""The records of one shard, whatever the file format: `bytes` of one `tf.train.Example` each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.array_records import array_records
from rlds2reverb.tfds_files.parquet import parquet_records
from rlds2reverb.tfds_files.tfrecord import tfrecords

TFRECORD = "tfrecord"
ARRAY_RECORD = "array_record"
PARQUET = "parquet"
RIEGELI = "riegeli"

REFUSE = "refuse"
SKIP = "skip"
LOST_RECORDS = (REFUSE, SKIP)
"""What to do about records that a shard should have and has not, see `open_records`."""

_READERS: dict[str, Callable[[Path, int, int], Iterator[bytes]]] = {
    TFRECORD: tfrecords,
    ARRAY_RECORD: array_records,
}


def open_records(
    path: Path, file_format: str, skip: int, take: int, *, total: int = 0, lost_records: str = REFUSE
) -> Iterator[bytes]:
    """Reads records `skip` to `skip + take` of one shard. Nothing is read ahead.

    Args:
      path: a local file.
      file_format: as dataset_info.json has it: "tfrecord", "array_record" or "parquet".
      skip: how many records to leave out at the beginning.
      take: how many to read after those.
      total: how many records the shard should have in all, where known: what is lost of a parquet file is noticed then
        also when only a part is read.
      lost_records: what to do when a parquet file has fewer rows than that, which TFDS 4.9.10 writes: "refuse"
        them, or "skip" what is lost: then fewer come, and the caller counts.

    Raises:
      SourceError: a format that is not read, a library that is missing, a file that cannot be read or has fewer records,
        or a damaged record; says which. The format is refused before the first record is asked for.
    """
    if file_format == PARQUET:
        return parquet_records(path, skip, take, total=total, skips_lost=lost_records == SKIP)
    check_format(file_format, str(path))
    return _READERS[file_format](path, skip, take)


def check_format(file_format: str, where: str) -> None:
    """Refuses a file format that cannot be read.

    Raises:
      SourceError: with what to do about it.
    """
    if file_format == RIEGELI:
        raise SourceError(
            f"{where}: riegeli files are not read here, nor by tensorflow-datasets' wheels; prepare the dataset again "
            f'with file_format="{TFRECORD}" or "{ARRAY_RECORD}"'
        )
    if file_format != PARQUET and file_format not in _READERS:
        known = ", ".join((*_READERS, PARQUET))
        raise SourceError(f'{where}: unknown file format "{file_format}"; expected one of {known}')
