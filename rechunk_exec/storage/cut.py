"""Documents of which a part came, or a page of a server's own, in an answer that says that all is well.

No request has failed then, so what came is looked at: a document is JSON, and a part of one never is. Where its store
tells that it holds as many bytes, it is damaged there, and asking again would not help. Layer: storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from rechunk_exec.storage.failures import ShortAnswerError, chain

_SAME_PAGES = 7
"""How often one page must come until it is taken for all that there is; by then some seconds have passed."""
PAGE_TEXT = (
    "its server gives a page for people, in HTML or XML, where metadata are expected; look whether the URL is right, "
    "and whether one must sign in there"
)


class Pages:
    """The pages that came one after the other in the place of an array's metadata."""

    def __init__(self) -> None:
        self._last = b""
        self._times = 0

    def is_all(self, page: bytes, others: Callable[[], Iterable[memoryview | None]]) -> bool:
        """Whether a page came again and again, and comes for other documents too: not from a server that is busy.

        ``others`` asks for those; it is called only when the page has come often.
        """
        self._times = self._times + 1 if page == self._last else 1
        self._last = page
        return self._times >= _SAME_PAGES and all(bytes(other or b"") == page for other in others())


def is_json(content: memoryview | bytes) -> bool:
    """Whether a document is whole, as far as its text shows."""
    try:
        json.loads(bytes(content))
    except (ValueError, RecursionError):
        return False
    return True


def is_page(content: memoryview | bytes) -> bool:
    """Whether what came is a page for people, in HTML or XML."""
    return bytes(content[:64]).lstrip().startswith(b"<")


def refuse_cut(content: memoryview | bytes, size: Callable[[], int | None]) -> None:
    """Raise :class:`ShortAnswerError` if what came as a document is no JSON, and not what its store holds.

    ``size`` asks for the bytes that it holds; None where it does not tell. A page is then taken for all that there is:
    some servers have one for whatever they do not know.
    """
    if is_json(content):
        return
    told = size()
    if told != len(content) and not (told is None and is_page(content)):
        held = "" if told is None else f"; it holds {told}"
        raise ShortAnswerError(f"it gave {len(content)} bytes that are no JSON{held}")


def undecoded(error: BaseException) -> bytes | None:
    """Return the document over which zarr has failed, if it is none in JSON."""
    for link in chain(error):
        if isinstance(link, json.JSONDecodeError):
            return link.doc.encode(errors="surrogatepass")
        if isinstance(link, UnicodeDecodeError):
            return link.object
    return None
