"""A web server of a test's own, in a thread of it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def served(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on this machine while the context lasts; yield the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True  # a client may keep its connection
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that serves files, whole only, and writes no log."""

    def log_message(self, *args: object) -> None:
        return


class Ranged(Quiet):
    """A handler that serves ranges, as real servers do."""

    def send_head(self) -> Any:
        asked = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return super().send_head()
        content = path.read_bytes()
        first, last = asked.removeprefix("bytes=").split("-")
        part = content[-int(last) :] if not first else content[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None
