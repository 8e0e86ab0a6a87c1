"""An HTTP proxy before a real server that answers some requests with an error, cuts answers short, or hangs up."""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.webserver import served

# Google and Azure clients read of the status; Azure's the code in a header too.
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
ANSWERS = {"SlowDown": 503, "InternalError": 500, "ServiceUnavailable": 503, "ServerBusy": 503, "AccessDenied": 403}


@dataclass
class Proxy:
    """What the proxy does, and what it has done."""

    server: str
    """The address that it hands requests on to."""
    address: str = ""
    kinds: tuple[str, ...] = ()
    """Of faults: names of :data:`ANSWERS`, ``cut``, ``hang up``, or ``hang``: no answer before ``over``."""
    rate: float = 0.0
    burst: range = range(0)
    """Numbers of requests that all fail, whatever the rate."""
    done: dict[str, int] = field(default_factory=dict)
    """Faults so far, by kind."""
    over: threading.Event = field(default_factory=threading.Event)
    authorizations: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    signs_uploads: bool = False
    """Whether uploads get a name of a signature, without which fake-gcs-server takes none by the XML API, and their
    answers the tag that the service itself gives."""

    def fault(self) -> str:
        """Draw what happens to the next request."""
        number = next(self.numbers)
        luck = random.Random(number)
        lucky = luck.random() >= self.rate and number not in self.burst
        return luck.choice(self.kinds) if self.kinds and not lucky else ""

    def note(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1


@contextmanager
def running_proxy(server: str) -> Iterator[Proxy]:
    """Run a proxy while the context lasts."""
    proxy = Proxy(server)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one piece: else each waits 40 ms for its head to be acknowledged

        def log_message(self, *args: object) -> None:
            return

        def handle_expect_100(self) -> bool:
            goes_on = super().handle_expect_100()
            self.wfile.flush()  # the client sends no body before it has this
            return goes_on

        def handle_one_request(self) -> None:
            with suppress(ConnectionError):
                super().handle_one_request()

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.authorizations.append(self.headers.get("Authorization", ""))
            kind = proxy.fault()
            if kind in ANSWERS:
                proxy.note(kind)
                self.answer(ANSWERS[kind], {"Content-Type": "application/xml"}, _ERROR.format(code=kind).encode())
                return
            if kind in ("hang up", "hang"):
                proxy.note(kind)
                if kind == "hang":
                    proxy.over.wait()
                self.close_connection = True
                return
            there = http.client.HTTPConnection(urlsplit(proxy.server).netloc)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            uploads = proxy.signs_uploads and self.command == "PUT"
            path = f"{self.path}{'&' if '?' in self.path else '?'}X-Goog-Algorithm=none" if uploads else self.path
            there.request(self.command, path, body, {**headers, "Host": urlsplit(proxy.server).netloc})
            got = there.getresponse()
            content = got.read()
            there.close()
            answered = {k: v for k, v in got.getheaders() if k.lower() not in ("connection", "transfer-encoding")}
            if uploads and got.status == 200:
                answered["ETag"] = json.loads(content)["etag"]
            if kind == "cut" and self.command == "GET" and len(content) > 1:
                proxy.note(kind)
                self.answer(got.status, answered | {"Content-Length": str(len(content))}, content[: len(content) // 2])
                self.close_connection = True
                return
            self.answer(got.status, answered, content)

        def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            named = {name.lower() for name in headers}
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in named:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815 - names that the base class looks for

    with served(Handler) as proxy.address:
        try:
            yield proxy
        finally:
            proxy.over.set()
