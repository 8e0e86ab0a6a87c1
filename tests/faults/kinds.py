"""Stores of several kinds, and what lies in them as others see it: to be changed and damaged from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, ObjectStore, StorePath

from tests.conftest import needed_module
from tests.faults.stores import FaultyStore
from tests.s3 import Bucket


class Kind(ABC):
    """A store of one kind."""

    @abstractmethod
    def at(self, name: str) -> Any:
        """A place in it, as it is given to a job."""

    def written(self, name: str) -> Any:
        """The same, as zarr writes to it whatever the environment says."""
        return self.at(name)

    @abstractmethod
    def contents(self) -> dict[str, bytes]:
        """All objects, by key."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Write an object."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object."""


@dataclass
class Folder(Kind):
    """A folder of a local disk."""

    path: Path

    def at(self, name: str) -> Any:
        return self.path / name

    def contents(self) -> dict[str, bytes]:
        files = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}

    def put(self, key: str, content: bytes) -> None:
        (self.path / key).write_bytes(content)

    def delete(self, key: str) -> None:
        (self.path / key).unlink()


@dataclass
class Memory(Kind):
    """A store in memory, by zarr itself or inside another store, which tells nothing but keys."""

    wrapped: bool = False
    store: MemoryStore = field(default_factory=lambda: MemoryStore({}))

    def at(self, name: str) -> Any:
        return StorePath(FaultyStore(self.store) if self.wrapped else self.store, name)

    def contents(self) -> dict[str, bytes]:
        return {key: value.to_bytes() for key, value in self.store._store_dict.items()}

    def put(self, key: str, content: bytes) -> None:
        self.store._store_dict[key] = default_buffer_prototype().buffer.from_bytes(content)

    def delete(self, key: str) -> None:
        del self.store._store_dict[key]


@dataclass
class OnS3(Kind):
    """A bucket, by URL or by obstore."""

    bucket: Bucket
    by_obstore: bool = False

    def at(self, name: str) -> Any:
        if not self.by_obstore:
            return self.bucket.url(name)
        stores = needed_module("obstore.store")
        options = {"endpoint": self.bucket.address, "client_options": {"allow_http": True}}
        return StorePath(ObjectStore(stores.S3Store(self.bucket.name, **options)), name)

    def written(self, name: str) -> Any:
        return self.bucket.store(name)

    def contents(self) -> dict[str, bytes]:
        return self.bucket.contents()

    def put(self, key: str, content: bytes) -> None:
        self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)


KINDS = ("local", "memory", "s3", "obstore")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """A new store of each kind."""
    match request.param:
        case "local":
            return Folder(tmp_path / "store")
        case "memory" | "wrapped":
            return Memory(wrapped=request.param == "wrapped")
        case _:
            return OnS3(request.getfixturevalue("s3"), by_obstore=request.param == "obstore")
