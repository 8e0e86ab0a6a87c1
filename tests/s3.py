"""An S3 server on this machine, in a process of its own, and a bucket in it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

KEY = "AKIATESTKEYOFNOBODY1"
SECRET = "secret+of/nobody+that/must+not/be+found4"

# The application of one service: what is in front of it in a server of all services looks through all of them for each
# request, which is a fifth of its time.
_SERVER = """
import logging, sys, threading
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("http://%s:%d" % server.server_address[:2], flush=True)
sys.stdin.read()  # until whoever started this ends
"""
_NUMBERS = itertools.count()


@contextmanager
def running_server() -> Iterator[str]:
    """Run a server while the context lasts; its address."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        address = server.stdout.readline().decode().strip()
        assert address.startswith("http://127.0.0.1:"), address
        try:
            yield address
        finally:
            server.kill()


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3 server."""

    address: str
    """Of the server."""
    name: str

    @classmethod
    def at(cls, address: str) -> Bucket:
        return cls(address, f"bucket-{next(_NUMBERS)}")

    @property
    def environment(self) -> Mapping[str, str]:
        """What a client needs to know."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        }

    def url(self, path: str) -> str:
        return f"s3://{self.name}/{path}"

    def store(self, path: str) -> Any:
        """A store in the bucket, by a client that knows the address whatever the environment says."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(self.url(path), storage_options={"endpoint_url": self.address})

    def obstore(self, **config: Any) -> Any:
        """A store of the whole bucket, by obstore."""
        from zarr.storage import ObjectStore

        from tests.conftest import needed_module

        stores = needed_module("obstore.store")
        options = {"allow_http": True}
        return ObjectStore(stores.S3Store(self.name, client_options=options, endpoint=self.address, **config))

    @property
    def client(self) -> Any:
        return _client(self.address)

    def make(self) -> None:
        self.client.create_bucket(Bucket=self.name)

    def remove(self) -> None:
        """Remove the bucket and all that is in it."""
        client = self.client
        for key in self.listed():
            client.delete_object(Bucket=self.name, Key=key)
        client.delete_bucket(Bucket=self.name)

    def listed(self) -> list[str]:
        """The keys of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def contents(self) -> dict[str, bytes]:
        """All objects, by key."""
        client = self.client
        return {key: client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in self.listed()}


@cache
def _client(address: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
