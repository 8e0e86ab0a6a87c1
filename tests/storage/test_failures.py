from __future__ import annotations

import errno
import http.client
import socket
import ssl
import urllib.error
import zipfile
from typing import Any

import pytest

from rechunk_exec.storage.failures import NotThereYetError, Outlook, ShortAnswerError, outlook
from tests.conftest import needed_module


def remote(error: BaseException) -> Outlook:
    return outlook(error, remote=True)


def local(error: BaseException) -> Outlook:
    return outlook(error, remote=False)


@pytest.mark.parametrize(
    "name", ["ESTALE", "EINTR", "EAGAIN", "ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "EPIPE", "ENOTCONN"]
)
def test_errors_that_pass_everywhere(name: str) -> None:
    error = OSError(getattr(errno, name), "x")
    assert local(error) is remote(error) is Outlook.PASSING


@pytest.mark.parametrize("name", ["EIO", "EBUSY"])
def test_an_error_of_a_disk_stays_and_one_of_a_network_may_pass(name: str) -> None:
    error = OSError(getattr(errno, name), "x")
    assert local(error) is Outlook.UNKNOWN
    assert remote(error) is Outlook.PASSING


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM"])
def test_errors_that_stay(name: str) -> None:
    error = OSError(getattr(errno, name), "x")
    assert local(error) is remote(error) is Outlook.PERMANENT


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "x"), KeyError("x"), ValueError("x"), RuntimeError("x"), IsADirectoryError(21, "x")],
    ids=repr,
)
def test_errors_that_say_nothing_are_not_tried_again(error: Exception) -> None:
    assert local(error) is remote(error) is Outlook.UNKNOWN


def test_our_own_findings() -> None:
    assert remote(ShortAnswerError("x")) is Outlook.PASSING
    assert local(NotThereYetError("x")) is Outlook.PASSING
    assert remote(zipfile.BadZipFile("x")) is Outlook.PERMANENT
    assert remote(http.client.IncompleteRead(b"")) is Outlook.PASSING
    assert remote(TimeoutError()) is Outlook.PASSING


@pytest.mark.parametrize(
    "error,wanted",
    [
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), Outlook.PASSING),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), Outlook.PASSING),
        (ssl.SSLSyscallError(5, "Some I/O error occurred"), Outlook.PASSING),
        (ssl.SSLCertVerificationError(1, "certificate has expired"), Outlook.PERMANENT),
        (ssl.SSLError(1, "wrong version number"), Outlook.UNKNOWN),  # 1 is EPERM as a number of the system
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), Outlook.PASSING),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), Outlook.UNKNOWN),
    ],
    ids=repr,
)
def test_tls_and_name_resolution_have_numbers_of_their_own(error: OSError, wanted: Outlook) -> None:
    assert local(error) is remote(error) is wanted
    assert remote(urllib.error.URLError(error)) is wanted  # which need not have been raised from it


def test_what_urllib3_gives_up_after_is_told_by_its_reason() -> None:
    urllib3 = needed_module("urllib3.exceptions")
    pool: Any = None
    reasons = {
        urllib3.ReadTimeoutError(pool, "x", "read timed out"): Outlook.PASSING,
        urllib3.ConnectTimeoutError(pool, "connect timed out"): Outlook.PASSING,
        urllib3.ProtocolError("Connection aborted."): Outlook.PASSING,
        urllib3.ResponseError("too many redirects"): Outlook.UNKNOWN,
    }
    for reason, wanted in reasons.items():
        assert remote(reason) is wanted, reason
        assert remote(urllib3.MaxRetryError(pool, "x", reason)) is wanted, reason
    assert remote(urllib3.MaxRetryError(pool, "x")) is Outlook.UNKNOWN
    for number, wanted in ((socket.EAI_AGAIN, Outlook.PASSING), (socket.EAI_NONAME, Outlook.UNKNOWN)):
        unresolved = socket.gaierror(number, "x")
        error = raised_from(urllib3.NameResolutionError("host", pool, unresolved), unresolved)
        assert remote(urllib3.MaxRetryError(pool, "x", error)) is wanted


def test_a_certificate_that_is_refused_is_no_cut_connection_whatever_clients_make_of_it() -> None:
    botocore, requests = needed_module("botocore.exceptions"), needed_module("requests.exceptions")
    refused = ssl.SSLCertVerificationError(1, "certificate has expired")
    cut = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    for wrapped in (botocore.SSLError(endpoint_url="x", error="y"), requests.SSLError("y")):
        assert remote(raised_from(wrapped, cut)) is Outlook.PASSING, wrapped
        assert remote(raised_from(wrapped, refused)) is Outlook.PERMANENT, wrapped


def test_numbers_of_the_system_in_a_text_of_rust() -> None:
    assert local(RuntimeError("No space left on device (os error 28)")) is Outlook.PERMANENT
    assert local(RuntimeError("Stale file handle (os error 116)")) is Outlook.PASSING
    assert local(RuntimeError("Input/output error (os error 5)")) is Outlook.UNKNOWN


class AnswerError(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("answer")
        self.__dict__.update(attributes)


STATUSES = {
    **dict.fromkeys((408, 429, 500, 502, 503, 504), Outlook.PASSING),
    **dict.fromkeys((401, 403), Outlook.PERMANENT),
    **dict.fromkeys((400, 404, 409, 412, 416, 501), Outlook.UNKNOWN),
}


@pytest.mark.parametrize("status", STATUSES)
def test_statuses_wherever_a_client_puts_them(status: int) -> None:
    class Holder:
        status_code = status

    carried = (
        {"status": status},
        {"status_code": status},
        {"code": status},
        {"code": str(status)},
        {"response": Holder()},
        {"response": {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": "Strange"}}},
    )
    for attributes in carried:
        assert remote(AnswerError(**attributes)) is STATUSES[status], attributes


@pytest.mark.parametrize(
    "code,wanted",
    [
        ("SlowDown", Outlook.PASSING),
        ("RequestTimeout", Outlook.PASSING),
        ("AccessDenied", Outlook.PERMANENT),
        ("NoSuchBucket", Outlook.PERMANENT),
        ("NoSuchKey", Outlook.UNKNOWN),
    ],
)
def test_error_codes_of_s3_as_s3fs_hands_them_on(code: str, wanted: Outlook) -> None:
    botocore = needed_module("botocore.exceptions")
    errors = needed_module("s3fs.errors")
    status = {"NoSuchKey": 404, "NoSuchBucket": 404, "AccessDenied": 403}.get(code, 400)
    answer = {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = botocore.ClientError(answer, "GetObject")
    assert remote(error) is wanted
    assert remote(errors.translate_boto_error(error)) is wanted


def test_an_answer_that_s3fs_does_not_know_is_no_reason_to_go_on() -> None:
    # It becomes an I/O error, as "slow down" does; the status below says what it was.
    botocore, errors = needed_module("botocore.exceptions"), needed_module("s3fs.errors")
    answer = {"Error": {"Code": "Peculiar", "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    translated = errors.translate_boto_error(botocore.ClientError(answer, "GetObject"))
    assert translated.errno == errno.EIO
    assert remote(translated) is Outlook.UNKNOWN


def test_errors_of_clients_that_carry_nothing() -> None:
    botocore = needed_module("botocore.exceptions")
    aiohttp = needed_module("aiohttp")
    fsspec = needed_module("fsspec.exceptions")
    passing = [
        botocore.EndpointConnectionError(endpoint_url="x"),
        botocore.ReadTimeoutError(endpoint_url="x"),
        botocore.ConnectionClosedError(endpoint_url="x"),
        botocore.ResponseStreamingError(error="x"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("x"),
        aiohttp.ServerTimeoutError(),
        fsspec.FSTimeoutError(),
    ]
    for error in passing:
        assert remote(error) is Outlook.PASSING, error
    assert remote(botocore.NoCredentialsError()) is Outlook.PERMANENT


def test_errors_of_obstore_are_told_by_their_text() -> None:
    exceptions = needed_module("obstore.exceptions")
    texts = {
        "Generic S3 error: Server returned non-2xx status code: 503 Service Unavailable": Outlook.PASSING,
        "Generic S3 error: after 10 retries - HTTP error: error sending request": Outlook.PASSING,
        "Generic S3 error: status code: 400 Bad Request: status 5030": Outlook.UNKNOWN,
        "Generic S3 error: something else": Outlook.UNKNOWN,
        "status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>": Outlook.PASSING,
        "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>": Outlook.PERMANENT,
        "status code: 400 Bad Request: <Error><Code>Peculiar</Code></Error>": Outlook.UNKNOWN,
    }
    for text, wanted in texts.items():
        assert remote(exceptions.GenericError(text)) is wanted, text
    for kind in (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        assert remote(kind("status code: 503")) is Outlook.PERMANENT


def raised_from(outer: Exception, inner: Exception, *, hidden: bool = False) -> Exception:
    try:
        try:
            raise inner
        except Exception:  # noqa: BLE001
            if hidden:
                raise outer from None
            raise outer  # noqa: B904 - the context is what is tested
    except Exception as error:  # noqa: BLE001
        return error


def test_what_an_error_was_raised_from_counts_the_outermost_first() -> None:
    reset = ConnectionResetError(errno.ECONNRESET, "x")
    assert remote(raised_from(RuntimeError("x"), reset)) is Outlook.PASSING
    assert remote(raised_from(RuntimeError("x"), reset, hidden=True)) is Outlook.UNKNOWN
    assert remote(raised_from(PermissionError("x"), reset)) is Outlook.PERMANENT
    assert remote(raised_from(reset, PermissionError("x"))) is Outlook.PASSING


def test_a_circle_of_causes_ends() -> None:
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    assert remote(one) is Outlook.UNKNOWN


@pytest.mark.parametrize(
    "status,wanted",
    [
        *((status, Outlook.PASSING) for status in (408, 429, 500, 503, 504)),
        (400, Outlook.UNKNOWN),
        (401, Outlook.PERMANENT),
        (416, Outlook.UNKNOWN),
    ],
)
def test_statuses_of_google_and_azure_as_their_clients_hand_them_on(status: int, wanted: Outlook) -> None:
    google = needed_module("gcsfs.retry").HttpError({"code": status, "message": "x"})
    azure = needed_module("azure.core.exceptions").HttpResponseError("x")
    azure.status_code = status
    assert remote(google) is remote(azure) is wanted


def test_what_clients_of_google_and_azure_raise_without_a_status() -> None:
    google, azure = needed_module("gcsfs.retry"), needed_module("azure.core.exceptions")
    gateway = _raised(google.validate_response, 502, b"", "a")
    denied = _raised(google.validate_response, 403, b'{"error": {"message": "no storage.objects.get access"}}', "a")
    wrapped = RuntimeError("Failed to remove a")
    wrapped.__cause__ = azure.ServiceResponseError("cut")
    for error in (gateway, google.ChecksumError("x"), azure.ServiceRequestError("x"), wrapped):
        assert remote(error) is Outlook.PASSING, error
    for error in (denied, azure.ClientAuthenticationError("x")):
        assert remote(error) is Outlook.PERMANENT, error
    assert remote(google.NonRetryableError("x")) is Outlook.UNKNOWN


def _raised(call: Any, *arguments: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        call(*arguments)
    return caught.value
