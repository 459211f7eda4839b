"""A bucket that refuses what is sent by signed links: whoever is told so is told what to look at, and no link."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from xml.sax.saxutils import escape

import pytest

from simpletuner_fleet.blobs.opening import open_direct
from simpletuner_fleet.cli.doctor.checks_server import direct_storage
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from tests.quiet_server import QuietServer
from tests.s3_server import CREDENTIALS

BEGUN = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
REFUSALS = [
    ("PUT", 403, "AccessDenied", "policy"),
    ("PUT", 403, "RequestTimeTooSkewed", "clock"),
    ("PUT", 400, "ExpiredToken", "session token"),
    ("PUT", 403, "SignatureDoesNotMatch", "secret key"),
    ("PUT", 307, "TemporaryRedirect", "another region"),
    ("PUT", 301, "", "another region"),
    ("PUT", 501, "NotImplemented", "cannot do it"),
    ("POST", 403, "RequestTimeTooSkewed", "clock"),
    ("POST", 301, "PermanentRedirect", "another region"),
    ("POST", 400, "AuthorizationHeaderMalformed", "another region"),
    ("POST", 403, "InvalidAccessKeyId", "access key"),
]


@contextmanager
def refusing_bucket(method: str, status: int, code: str) -> Iterator[str]:
    """It begins uploads and takes what removes them, and says no to one method."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            refused = self.command == method
            error = (
                f"<Error><Code>{code}</Code><Message>{escape(self.path)}</Message></Error>".encode()
                if code
                else b""
            )
            content = error if refused else BEGUN if self.command == "POST" else b""
            self.send_response(status if refused else 200)
            if status in (301, 307) and refused:
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *words: object) -> None:
            pass

    with QuietServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"s3://models?endpoint=http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(("method", "status", "code", "words"), REFUSALS)
async def test_the_server_says_why_files_do_not_go_straight_to_the_bucket(
    method: str, status: int, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with refusing_bucket(method, status, code) as url:
        blobs = open_direct(url, "workers", None, CREDENTIALS)
        assert blobs
        direct = DirectStorage(blobs=blobs)
        await direct.prove()
        await blobs.close()
    assert f"HTTP {status}, {code or 'no S3 error'}: " in direct.trouble
    assert words in direct.trouble
    assert direct.trouble in caplog.text
    assert "X-Amz-Signature" not in caplog.text


def test_doctor_believes_no_bucket_that_only_answers() -> None:
    with refusing_bucket("PUT", 403, "RequestTimeTooSkewed") as url:
        [finding] = direct_storage(url, "workers", None, CREDENTIALS)
    assert "clock" in str(finding)
    assert "go through the server" in str(finding)
