"""Emulators of Google Cloud Storage and of Azure Blob Storage on this machine, and buckets in them.

Clients find credentials in the environment only, and they are real ones for them: a service account's key, with which
they ask a service of ours for a token or sign requests themselves, and a storage account's key, which Azurite checks.
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from zarr.storage import FsspecStore, ObjectStore

from tests.faults.proxy import running_proxy
from tests.webserver import served

ROOT = Path(__file__).parents[1]
EMULATORS = {"gs": ".ci/fake-gcs-server", "az": ".ci/azurite"}
"""What makes the emulator of a scheme, or says where it would be."""

TOKEN = "ya29.token-of-nobody-that-must-not-be-found"
ACCOUNT = "nobody1"
ACCOUNT_KEY = "a2V5K29mL25vYm9keSt0aGF0L211c3Qrbm90L2JlK2ZvdW5kK2FueXdoZXJlK2luL2ZpbGVzNDQ0NDQ0NDQ0NA=="
_NUMBERS = itertools.count()
_KEPT: list[FsspecStore] = []
"""Clients of gcsfs fail to close their connections when they are forgotten."""


@dataclass(frozen=True)
class Addresses:
    """Where the emulators are."""

    google: str
    azure: str
    signing: str
    """Of the first, through a proxy that makes its uploads by the XML API possible, which obstore uses."""
    account_file: Path
    """The service account's key."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the clients of both clouds need to know."""
        nowhere = "127.0.0.1:9"
        return {
            "STORAGE_EMULATOR_HOST": self.google,
            "GOOGLE_BASE_URL": self.signing,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.account_file),
            "GOOGLE_SERVICE_ACCOUNT": str(self.account_file),
            **dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"), nowhere),
            "NO_GCE_CHECK": "true",
            "AZURE_STORAGE_CONNECTION_STRING": azure_connection(self.azure),
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.azure}/{ACCOUNT}",
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be found nowhere: a part of each key, and the token."""
        private_key: str = json.loads(self.account_file.read_text())["private_key"]
        return TOKEN, ACCOUNT_KEY, *private_key.splitlines()[1:3]


def azure_connection(address: str) -> str:
    """What adlfs is told of an account."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
        f"BlobEndpoint={address}/{ACCOUNT};"
    )


@contextmanager
def running_emulators(programs: Mapping[str, str], folder: Path) -> Iterator[Addresses]:
    """Run both emulators while the context lasts."""
    with ExitStack() as stack:
        google = stack.enter_context(_running_google(programs["gs"]))
        azure = stack.enter_context(_running_azurite(programs["az"], folder))
        signing = stack.enter_context(running_proxy(google))
        signing.signs_uploads = True
        tokens = stack.enter_context(_token_service())
        account_file = folder / "service-account.json"
        account_file.write_text(json.dumps(_service_account(tokens)))
        yield Addresses(google, azure, signing.address, account_file)


@contextmanager
def _running_google(program: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = f"127.0.0.1:{port}"
    words = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", host]
    server = subprocess.Popen(
        [program, *words, "-external-url", f"http://{host}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            assert server.poll() is None, "fake-gcs-server has ended"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://{host}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def _running_azurite(program: str, folder: Path) -> Iterator[str]:
    # Clients are newer than what Azurite knows by name.
    words = ["--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck", "--blobPort", "0"]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with subprocess.Popen(
        ["node", program, *words], stdout=subprocess.PIPE, env=os.environ | accounts, cwd=folder, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[-1] for line in server.stdout if "successfully listens" in line)
            yield address
        finally:
            server.kill()


@contextmanager
def _token_service() -> Iterator[str]:
    """Give a token to whoever asks, as Google does to who has signed the question."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            return

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with served(Handler) as address:
        yield f"{address}/token"


def _service_account(token_uri: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "project_id": "project-of-nobody",
        "private_key_id": "0",
        "private_key": text,
        "client_email": "nobody@example.com",
        "token_uri": token_uri,
    }


@dataclass(frozen=True)
class Cloud(ABC):
    """A bucket, or container, of its own. The environment must be that of :class:`Addresses`."""

    addresses: Addresses
    name: str
    scheme: ClassVar[str]

    @classmethod
    def at(cls, addresses: Addresses) -> Cloud:
        cloud = cls(addresses, f"bucket-{next(_NUMBERS)}")
        cloud.make()
        return cloud

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.name}/{path}"

    def store(self, path: str) -> FsspecStore:
        """A store in the bucket, by fsspec, which has asked for nothing before. Its client is kept to the end."""
        return self.kept(FsspecStore.from_url(self.url(path), storage_options={"skip_instance_cache": True}))

    @staticmethod
    def kept(store: FsspecStore) -> FsspecStore:
        """Keep the store's client to the end."""
        _KEPT.append(store)
        return store

    @property
    @abstractmethod
    def server(self) -> str:
        """The address that requests by URL go to."""

    @property
    @abstractmethod
    def secret_options(self) -> dict[str, str]:
        """Options of fsspec's file system that hold credentials."""

    @property
    @abstractmethod
    def obstore_secrets(self) -> dict[str, str]:
        """Options of obstore's store that hold credentials."""

    @abstractmethod
    def moved_to(self, address: str) -> Mapping[str, str]:
        """The environment of clients that find the bucket, by URL and by obstore, at another address."""

    @abstractmethod
    def obstore(self, **options: Any) -> ObjectStore[Any]:
        """The bucket as a store by obstore."""

    @abstractmethod
    def make(self) -> None: ...

    @abstractmethod
    def contents(self) -> dict[str, bytes]:
        """All objects, by key."""


class GoogleBucket(Cloud):
    """A bucket of fake-gcs-server."""

    scheme = "gs"

    @property
    def secret_options(self) -> dict[str, str]:
        return {"token": str(self.addresses.account_file)}

    @property
    def obstore_secrets(self) -> dict[str, str]:
        return {"service_account_key": self.addresses.account_file.read_text()}

    @property
    def server(self) -> str:
        return self.addresses.google

    def moved_to(self, address: str) -> Mapping[str, str]:
        return {"STORAGE_EMULATOR_HOST": address, "GOOGLE_BASE_URL": address}

    def obstore(self, **options: Any) -> ObjectStore[Any]:
        from obstore.store import GCSStore

        return ObjectStore(GCSStore(self.name, client_options={"allow_http": True}, **options))

    def make(self) -> None:
        self._ask("/storage/v1/b?project=nobody", json.dumps({"name": self.name}).encode())

    def contents(self) -> dict[str, bytes]:
        listed = json.loads(self._ask(f"/storage/v1/b/{self.name}/o"))
        keys = [entry["name"] for entry in listed.get("items", ())]
        return {key: self._ask(f"/download/storage/v1/b/{self.name}/o/{quote(key, '')}?alt=media") for key in keys}

    def _ask(self, path: str, content: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.server + path, content, headers)) as answer:
            return bytes(answer.read())


class AzureContainer(Cloud):
    """A container of Azurite."""

    scheme = "az"

    @property
    def secret_options(self) -> dict[str, str]:
        return {"connection_string": azure_connection(self.server)}

    @property
    def obstore_secrets(self) -> dict[str, str]:
        return {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}

    @property
    def server(self) -> str:
        return self.addresses.azure

    def moved_to(self, address: str) -> Mapping[str, str]:
        return {
            "AZURE_STORAGE_CONNECTION_STRING": azure_connection(address),
            "AZURE_STORAGE_ENDPOINT": f"{address}/{ACCOUNT}",
        }

    def obstore(self, **options: Any) -> ObjectStore[Any]:
        from obstore.store import AzureStore

        return ObjectStore(
            AzureStore(self.name, **{"account_name": ACCOUNT, "client_options": {"allow_http": True}} | options)
        )

    def make(self) -> None:
        with self._client() as client:
            client.create_container()

    def contents(self) -> dict[str, bytes]:
        with self._client() as client:
            return {str(key): client.download_blob(key).readall() for key in client.list_blob_names()}

    def _client(self) -> Any:
        from azure.storage.blob import ContainerClient

        return ContainerClient.from_connection_string(azure_connection(self.server), self.name)


CLOUDS: dict[str, type[Cloud]] = {kind.scheme: kind for kind in (GoogleBucket, AzureContainer)}
