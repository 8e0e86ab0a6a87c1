"""A web server of a test's own, in a thread of it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
