"""Stores on which a process may die, with what is in them: in memory, on a local disk, in a bucket."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from tests.faults.dying import Dying, DyingMemoryStore, DyingS3Store, Fuse, die_on_disk, die_on_store
from tests.s3 import Bucket

Objects = Mapping[str, bytes]


class Place(ABC):
    """A store that holds all but the source, and on which a process may die."""

    @abstractmethod
    def at(self, path: str) -> Any:
        """What users give to name a place in the store."""

    @abstractmethod
    def objects(self) -> dict[str, bytes]:
        """All that is stored, by name."""

    @abstractmethod
    def restore(self, objects: Objects) -> None:
        """Store this and nothing else."""

    @abstractmethod
    def die(self, fuse: Fuse, call: Callable[[], object]) -> None:
        """Make a call that dies when the fuse says so."""

    def bury(self) -> None:
        """Have claims look as those of a process that has ended; so they do on a local disk, where it has."""
        claims = {name: text for name, text in self.objects().items() if "/drivers/" in name}
        for name, text in claims.items():
            with suppress(ValueError):  # half a claim
                self.put(name, json.dumps(json.loads(text) | {"pid_began": 0.0, "beat": 0.0}).encode())

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Store an object."""


class StorePlace(Place):
    """A zarr store that dies in this process."""

    def __init__(self, store: Dying) -> None:
        self.store = store

    def at(self, path: str) -> StorePath:
        return StorePath(self.store, path)

    def die(self, fuse: Fuse, call: Callable[[], object]) -> None:
        die_on_store(self.store, fuse, call)

    def put(self, name: str, content: bytes) -> None:
        buffer = default_buffer_prototype().buffer.from_bytes(content)
        sync(self.store.set(name, buffer))


class MemoryPlace(StorePlace):
    """A store in memory."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        super().__init__(DyingMemoryStore(self.held))

    def objects(self) -> dict[str, bytes]:
        return {name: value.to_bytes() for name, value in self.held.items()}

    def restore(self, objects: Objects) -> None:
        self.held.clear()
        for name, content in objects.items():
            self.put(name, content)


class DiskPlace(Place):
    """A folder of a local disk, where a process dies of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, path: str) -> Path:
        return self.folder / path

    def objects(self) -> dict[str, bytes]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def restore(self, objects: Objects) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, content in objects.items():
            self.put(name, content)

    def die(self, fuse: Fuse, call: Callable[[], object]) -> None:
        die_on_disk(fuse, call)

    def put(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def bury(self) -> None:
        for partial in self.folder.rglob("*.partial"):
            os.utime(partial, (0, 0))  # as of long ago


class BucketPlace(StorePlace):
    """A bucket, through s3fs."""

    def __init__(self, bucket: Bucket) -> None:
        self.name, self.client = bucket.name, bucket.client
        options = {"endpoint_url": bucket.address, "use_listings_cache": False}
        store: Any = DyingS3Store.from_url(bucket.url("place"), storage_options=options)
        super().__init__(store)

    def objects(self) -> dict[str, bytes]:
        return {
            name.removeprefix("place/"): self.client.get_object(Bucket=self.name, Key=name)["Body"].read()
            for name in self._names()
        }

    def restore(self, objects: Objects) -> None:
        for name in self._names():
            self.client.delete_object(Bucket=self.name, Key=name)
        for name, content in objects.items():
            self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"place/{name}", Body=content)

    def _names(self) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=self.name).get("Contents", ())]
