"""What the failure of a request to a store means: that it may pass, that it will not, or neither. Layer: storage.

Clients of stores raise their own classes, chained or not. They are told by what they carry - an ``errno``, an HTTP
status, an error code of S3 - and only where they carry nothing by the names of their classes or, last, by their text.
No client is imported for that.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from rechunk_exec.errors import StorageError


class Outlook(Enum):
    """What to expect of making a failed request again."""

    PASSING = "passing"
    """It may go well: the store was busy, or the way to it was cut."""
    PERMANENT = "permanent"
    """It cannot: no room, no access, damaged bytes, no bucket."""
    UNKNOWN = "unknown"
    """Nothing says so. It is not made again; the task may be."""


class ShortAnswerError(OSError):
    """A store gave less of an object than it holds."""


class NotThereYetError(OSError):
    """A store does not show an object that is known to have been written."""


_PASSING_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "EINTR", "ESTALE", "EPIPE", "ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED"),
        *("ENOTCONN", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)
# s3fs says so where the service says "slow down" and "internal error", and also where it knows no better.
_VAGUE_ERRNOS = frozenset(getattr(errno, name) for name in ("EIO", "EBUSY", "EREMOTEIO") if hasattr(errno, name))
FULL_ERRNOS = frozenset(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""There is no room for what is written."""
_PERMANENT_ERRNOS = FULL_ERRNOS | {errno.EROFS, errno.EACCES, errno.EPERM}

_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524})
_PERMANENT_STATUSES = frozenset({401, 402, 403, 405, 407, 451})
_NOTHING_STATUSES = frozenset({410, 416})
"""There was an object, or it holds nothing: no range of bytes is in that."""

# Error codes of S3 that come with a status that says nothing of the kind, or with none.
_PASSING_CODES = frozenset(
    {
        *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"),
        *("InternalError", "ServiceUnavailable", "OperationAborted", "RequestTimeout", "RequestTimeoutException"),
        *("IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "ServerBusy", "OperationTimedOut"),
    }
)
_PERMANENT_CODES = frozenset(
    {
        *("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
        *("ExpiredToken", "InvalidToken", "NoSuchBucket", "QuotaExceeded"),
    }
)

# Where there is neither errno nor status: botocore, aiohttp, http.client, urllib3, requests, google, azure, fsspec.
_PASSING_NAMES = frozenset(
    {
        *("HTTPClientError", "ResponseStreamingError", "IncompleteReadError", "ResponseParserError", "IncompleteRead"),
        *("ServerDisconnectedError", "ClientPayloadError", "ClientConnectionError", "ServerTimeoutError"),
        *("RemoteDisconnected", "ProtocolError", "ChunkedEncodingError", "ConnectionError", "Timeout", "TimeoutError"),
        *("TransportError", "ServiceRequestError", "ServiceResponseError", "FSTimeoutError", "ChecksumError"),
    }
)
_PERMANENT_NAMES = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"),
        *("PermissionDeniedError", "UnauthenticatedError", "ClientAuthenticationError", "DefaultCredentialsError"),
        *("BadZipFile", "InvalidPathError"),
    }
)

_PASSING_OF_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""A connection was cut. They carry numbers of TLS, as name resolution has its own, which are none of the system."""

# obstore and other clients in Rust say all in one text.
_OPAQUE_MODULES = ("obstore", "_obstore", "zarrs", "icechunk", "builtins")
_PASSING_TEXT = re.compile(
    r"status(?: code)?:? (?:408|425|429|500|502|503|504)\b|error sending request|operation timed out"
    r"|connection (?:reset|closed)|error decoding response body|request or response body error"
    r"|IncompleteMessage|IncompleteBody",
    re.IGNORECASE,
)
_NOTHING_TEXT = re.compile(r"status(?: code)?:? (?:410|416)\b")
_QUERY = re.compile(r"(?<=://)([^\s?'\"]+)\?[^\s'\")>]+")
_CODE_IN_TEXT = re.compile(r"<Code>(\w+)</Code>")
_RUST_ERRNO = re.compile(r"\(os error (\d+)\)")
# The last is how gcsfs begins, which raises an OSError without a number.
_PERMANENT_TEXT = re.compile(r"status(?: code)?:? (?:401|403)\b|NoSuchBucket|AccessDenied|^Forbidden: ")


def outlook(error: BaseException, *, remote: bool) -> Outlook:
    """Return what to expect of making a request again that ended in ``error``.

    Parameters
    ----------
    error : BaseException
        What was raised; what it was raised from is looked at too, outermost first.
    remote : bool
        Whether the store is at the other end of a network, where an I/O error is no broken disk.

    Examples
    --------
    >>> import errno
    >>> outlook(OSError(errno.EIO, "input/output error"), remote=False)
    <Outlook.UNKNOWN: 'unknown'>
    >>> outlook(OSError(errno.EIO, "input/output error"), remote=True)
    <Outlook.PASSING: 'passing'>
    """
    vague = Outlook.UNKNOWN
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain(error)):
        return Outlook.PERMANENT  # clients raise what they raise for a cut connection
    for link in chain(error):
        found = _outlook_of(link, remote=remote)
        if found is not None:
            return found
        if remote and _errno(link) in _VAGUE_ERRNOS:
            vague = Outlook.PASSING
    return vague


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or _reason(link) or (None if link.__suppress_context__ else link.__context__)


def _reason(error: BaseException) -> BaseException | None:
    """What urllib3 and urllib wrap in an error that they raise."""
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, BaseException) else None


def as_told(error: Exception) -> Exception:
    """Return an error to raise another one from: itself, or one that says the same without queries of URLs.

    A server may have sent the client on to a URL that is signed, and clients name it.
    """
    if all(without_queries(str(link)) == str(link) for link in chain(error)):
        return error
    told = ToldError(f"{type(error).__name__}: {without_queries(str(error))}")
    told.outlook, told.says_nothing = outlook(error, remote=True), says_nothing_is_there(error)
    return told


class ToldError(RuntimeError):
    """What stands for an error that named a signed URL."""

    outlook: Outlook | None = None
    """That of the error itself, of a store at the other end of a network."""
    says_nothing: bool = False


def says_nothing_is_there(error: BaseException) -> bool:
    """Whether a failed request says that an object is gone, or holds nothing, in other words than most do."""
    return any(
        link.says_nothing if isinstance(link, ToldError) else _http_status(link) in _NOTHING_STATUSES
        for link in chain(error)
    ) or any(_is_opaque(link) and _NOTHING_TEXT.search(str(link)) for link in chain(error))


def has_outlasted(error: StorageError) -> bool:
    """Whether a request failed for a reason that may pass, and did each time it was made."""
    return error.__cause__ is not None and outlook(error.__cause__, remote=True) is Outlook.PASSING


def without_queries(text: str) -> str:
    """Return a text whose URLs have no queries, which may be signatures.

    Examples
    --------
    >>> without_queries("403, message='Forbidden', url='https://host/a?X-Amz-Signature=5f3a'")
    "403, message='Forbidden', url='https://host/a?...'"
    """
    return _QUERY.sub(r"\1?...", text)


def is_full(error: BaseException) -> bool:
    """Whether a disk or a quota is full."""
    return any(_errno(link) in FULL_ERRNOS for link in chain(error))


def _outlook_of(error: BaseException, *, remote: bool) -> Outlook | None:
    """Return what one link of a chain says for sure."""
    if isinstance(error, (ShortAnswerError, NotThereYetError)):
        return Outlook.PASSING
    if isinstance(error, ToldError):
        return error.outlook
    names = {kind.__name__ for kind in type(error).__mro__[:-2]}
    if isinstance(error, PermissionError) or names & _PERMANENT_NAMES:
        return Outlook.PERMANENT
    if isinstance(error, (TimeoutError, ConnectionError, *_PASSING_OF_TLS)):
        return Outlook.PASSING
    if isinstance(error, socket.gaierror):
        return Outlook.PASSING if error.errno == socket.EAI_AGAIN else None
    if "NameResolutionError" in names:  # of urllib3, which calls it a timeout; what it was raised from says more
        return None
    number = _errno(error)
    if number in _PERMANENT_ERRNOS:
        return Outlook.PERMANENT
    if number in _PASSING_ERRNOS:
        return Outlook.PASSING
    if names & _PASSING_NAMES:
        return _of_answer(error) or Outlook.PASSING
    return _of_answer(error) or (_of_text(error) if remote else None)


def _errno(error: BaseException) -> int | None:
    """Return the error number of the system, which Rust gives in its text only."""
    if isinstance(error, (ssl.SSLError, socket.gaierror)):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    told = _RUST_ERRNO.search(str(error)) if isinstance(error, (RuntimeError, OSError)) else None
    return None if told is None else int(told[1])


def _of_answer(error: BaseException) -> Outlook | None:
    """Return what an HTTP status or an error code says."""
    code, status = _error_code(error), _http_status(error)
    if code in _PERMANENT_CODES:
        return Outlook.PERMANENT
    if code in _PASSING_CODES or status in _PASSING_STATUSES:
        return Outlook.PASSING
    if status in _PERMANENT_STATUSES:
        return Outlook.PERMANENT
    return Outlook.UNKNOWN if status is not None and 400 <= status < 600 else None


def _of_text(error: BaseException) -> Outlook | None:
    if _is_opaque(error):
        text = str(error)
        told = _CODE_IN_TEXT.search(text)
        code = "" if told is None else told[1]
        if code in _PERMANENT_CODES or _PERMANENT_TEXT.search(text):
            return Outlook.PERMANENT
        if not isinstance(error, FileNotFoundError) and (code in _PASSING_CODES or _PASSING_TEXT.search(text)):
            return Outlook.PASSING
    return None


def _is_opaque(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _OPAQUE_MODULES


def _error_code(error: BaseException) -> object:
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping) and isinstance(response.get("Error"), Mapping):
        return str(response["Error"].get("Code", ""))
    return str(getattr(error, "error_code", ""))


def _http_status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        return _number(metadata.get("HTTPStatusCode")) if isinstance(metadata, Mapping) else None
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            number = _number(getattr(holder, name, None))
            if number is not None:
                return number
    return None


def _number(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, (int, str)) else None
    except ValueError:
        return None
