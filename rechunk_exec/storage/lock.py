"""One job at a time on a local target: a lock that the system gives back when its process dies."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage.stores import local_path
from rechunk_exec.tasks import ArrayRef

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def sole_writer(ref: ArrayRef) -> Iterator[None]:
    """Be the only job that writes an array on a local disk, while the context lasts.

    Two jobs on one target would remove each other's arrays and mix their chunks. The lock is a file beside the array,
    ``.rechunk_exec-….lock``, gone afterwards; one that a killed process left is free. Where the file system knows no
    locks, and for other stores, nobody is kept out.

    Raises
    ------
    TargetExistsError
        If another job holds the lock.
    StorageError
        If no file can be made beside the array.
    """
    path = local_path(ref)
    if path is None:
        yield
        return
    real = Path(os.path.realpath(path))
    lock = real.parent / f".rechunk_exec-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(lock)
    except OSError as error:
        if error.errno in _TAKEN:
            raise TargetExistsError(
                f"one job at a time writes a target; another one is writing {ref}; nothing was touched; wait for it, "
                "or give another target_store"
            ) from error
        raise StorageError(f"no lock can be made beside the target {ref}: {error}") from error
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            lock.unlink()
        os.close(descriptor)


def _acquire(lock: Path) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
