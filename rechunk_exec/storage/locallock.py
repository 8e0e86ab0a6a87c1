"""The lock of a local array: the system gives it back when its holder dies. Layer: storage."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage.stores import local_path
from rechunk_exec.tasks import ArrayRef

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def local_lock(ref: ArrayRef) -> Iterator[None]:
    """Hold the lock of a local array, a file near it. One that a killed process left is free.

    Where the file system knows no locks, and for other stores, this does nothing.
    """
    lock = _lock_file(ref)
    if lock is None:
        yield
        return
    try:
        descriptor = _acquire(lock)
    except OSError as error:
        if error.errno in _TAKEN:
            raise taken(ref) from error
        raise StorageError(f"no lock can be made for the target {ref}: {error}") from error
    holder = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == holder:  # a fork that ends has a copy, and leaves the file to its holder
            with suppress(OSError):  # what cannot be removed, as on a disk that is read only by now, is free too
                lock.unlink()
        os.close(descriptor)


def lock_lies(ref: ArrayRef) -> bool:
    """Whether the lock of a local array lies there: a driver holds it, or was killed."""
    lock = _lock_file(ref)
    return lock is not None and lock.exists()


def _lock_file(ref: ArrayRef) -> Path | None:
    """Return the lock of an array, None if it is not on a local disk."""
    path = local_path(ref)
    if path is None:
        return None
    real = Path(os.path.realpath(path))
    root = local_path(replace(ref, path=""))
    return _lock_folder(real, root) / f".rechunk_exec-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}.lock"


def _lock_folder(real: Path, root: Path | None) -> Path:
    """Return where the lock of an array lies: outside the groups above it, as zarr warns of files that it finds in one.

    Who sees groups where another driver saw none yet has another lock; of these two the claims tell.
    """
    store = real if root is None else Path(os.path.realpath(root))
    folder = store.parent if store in real.parents else real.parent
    while any((folder / name).exists() for name in ("zarr.json", ".zgroup")):
        folder = folder.parent
    return folder if os.access(folder, os.W_OK) else real.parent


def taken(ref: ArrayRef, who: str = "") -> TargetExistsError:
    """Return the error for a target that another job has."""
    return TargetExistsError(
        f"one job at a time writes a target; another one{who} is writing {ref}; nothing was touched; wait for it, "
        "or give another target_store"
    )


def _acquire(lock: Path) -> int:
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if lock.parent.exists():
                raise
            continue  # another job that made the folder has just removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = lock.stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            same = False
        except OSError as error:
            if error.errno in _TAKEN:
                os.close(descriptor)
                raise
            same = True  # no locks on this file system
        if same:
            return descriptor
        os.close(descriptor)  # its last holder has just removed the file: begin again with a new one
