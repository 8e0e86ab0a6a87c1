"""What is copied, as a plan needs it, from arrays as they are stored. Layer: above fitting and storage."""

from __future__ import annotations

from dataclasses import replace

from rechunk_exec import storage
from rechunk_exec.fitting import Layouts
from rechunk_exec.request import RAW_SHARD_WRITE, SourceLayout, TargetLayout
from rechunk_exec.tasks import ArrayRef


def layouts_of(
    stored: storage.StoredArray,
    design: storage.Design,
    wishes: storage.TargetWishes,
    *,
    target: ArrayRef,
    temp: storage.TempForm,
) -> Layouts:
    """Return the layouts of a copy, with what reading and writing them holds.

    Parameters
    ----------
    stored : StoredArray
        The source.
    design : Design
        The target's, made of ``wishes``.
    wishes : TargetWishes
    target : ArrayRef
        Where the target will be, or what is stored like it.
    temp : TempForm
        How intermediates are stored; that there is a place for them is taken for granted.
    """
    source = SourceLayout(chunk=stored.chunk, scratch=storage.read_scratch(stored))
    found = storage.finer_read(stored)
    finer = None
    if found is not None:
        finer = replace(source, read_unit=found[0], together=True, scratch=found[1])
    return Layouts(
        shape=stored.shape,
        itemsize=stored.dtype.itemsize,
        source=source,
        finer=finer,
        target=TargetLayout(chunk=wishes.chunk, shard=wishes.shard, scratch=storage.write_scratch(design.like, target)),
        has_temp_place=True,
        sharded_temp=temp.pieces is not None,
        shard_scratch=temp.pieces or RAW_SHARD_WRITE,
        temp_reading=temp.reading,
        temp_writing=temp.writing,
        compressed_temp=bool(temp.codecs),
    )
