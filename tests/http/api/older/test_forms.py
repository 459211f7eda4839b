"""A form is read as clients send it, and no form keeps the server busy for longer than its size explains."""

import time

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import Malformed
from simpletuner_fleet.http.api.older.forms import MAX_FIELDS, form_fields
from simpletuner_fleet.http.edge.bodies import FORM
from simpletuner_fleet.http.edge.routes import DEFAULT_MAX_BODY_BYTES

IN_PARTS = "multipart/form-data; boundary=x"
DISPOSITION = b"--x\r\nContent-Disposition: form-data; "
END = b"\r\n\r\nv\r\n--x--\r\n"
MOST_CPU_S = 0.1
MOST_CPU_S_OF_ESCAPES = 0.4
"""The standard library decodes 90,000 escapes in some 70 ms."""

values = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=60
)


def whole(request: httpx2.Request) -> tuple[bytes, str]:
    return request.read(), request.headers["content-type"]


def refused(body: bytes, content_type: str = IN_PARTS) -> bool:
    try:
        form_fields(body, content_type)
    except Malformed:
        return True
    return False


@given(st.dictionaries(names, values, min_size=1, max_size=20))
def test_whatever_a_client_sends_is_read_in_both_encodings(fields: dict[str, str]) -> None:
    in_parts = httpx2.Request(
        "POST", "http://x", files={name: (None, value.encode()) for name, value in fields.items()}
    )
    assert form_fields(*whole(in_parts)) == fields
    assert form_fields(*whole(httpx2.Request("POST", "http://x", data=fields))) == fields


@given(st.binary(max_size=300), st.text(st.characters(max_codepoint=255), max_size=60))
def test_nonsense_is_read_as_fields_or_refused(body: bytes, parameters: str) -> None:
    for whole_body in (body, DISPOSITION + body, DISPOSITION + b'name="a"' + body + END):
        for content_type in (IN_PARTS, f"multipart/form-data{parameters}"):
            if not refused(whole_body, content_type):
                assert all(isinstance(value, str) for value in form_fields(whole_body, content_type).values())


@pytest.mark.parametrize(
    "part",
    [
        b'Content-Disposition: form-data; name="a b"',
        b'content-disposition:form-data;name="a b"',
        b'Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="a b"',
        b'Content-Disposition: form-data; name="a b"\r\nContent-Transfer-Encoding: 8bit',
    ],
)
def test_a_field_may_have_further_headers_in_any_order(part: bytes) -> None:
    assert form_fields(b"--x\r\n" + part + END, IN_PARTS) == {"a b": "v"}


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="x"',
        "multipart/form-data; charset=utf-8; boundary=x",
        "Multipart/Form-Data;Boundary=x ; charset=utf-8",
    ],
)
def test_the_boundary_is_found_wherever_it_stands(content_type: str) -> None:
    body = b"a preamble\r\n" + DISPOSITION + b"name=job_id" + END + b"and an epilogue"
    assert form_fields(body, content_type) == {"job_id": "v"}


def test_a_value_may_look_like_a_boundary_of_another_form() -> None:
    body = DISPOSITION + b'name="a"\r\n\r\n--y\r\n\r\n--X--\r\n --x--\r\n--x--'
    assert form_fields(body, IN_PARTS) == {"a": "--y\r\n\r\n--X--\r\n --x--"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        DISPOSITION + b'name="a"\r\n\r\nv',
        DISPOSITION + b'name="a"\r\n\r\nv\r\n--x\r\n',
        DISPOSITION + b'name="a"\r\n\r\nv\r\n--xy--',
        DISPOSITION + b'name="a"; filename="b"' + END,
        DISPOSITION + b"name=\"a\"; filename*=utf-8''b" + END,
        DISPOSITION + b'filename="b"; name="a"' + END,
        DISPOSITION + b'name="a"\r\nContent-Transfer-Encoding: base64' + END,
        DISPOSITION + b'name="\xff"' + END,
        DISPOSITION + b'name="a"\r\n\r\n\xff\r\n--x--',
        DISPOSITION + b'name="a"\n' + END,
        DISPOSITION + b'name="a"\r\nX: ' + b"y" * 1000 + END,
        b"--x\r\n\r\nv\r\n--x--",
        b'--xContent-Disposition: form-data; name="a"' + END,
        b"".join(DISPOSITION + b'name="%d"\r\n\r\nv\r\n' % at for at in range(MAX_FIELDS + 1)) + b"--x--",
    ],
)
def test_what_is_no_form_of_plain_fields_is_refused(body: bytes) -> None:
    assert refused(body)


@pytest.mark.parametrize("boundary", ["", '""', "é", '"x', "y" * 71, f'"{"y" * 71}"'])
def test_a_boundary_that_no_form_may_have_is_refused(boundary: str) -> None:
    body = b"--%b\r\nContent-Disposition: form-data; name=a" % boundary.strip('"').encode()
    assert refused(body + END.replace(b"x", boundary.encode()), f"multipart/form-data; boundary={boundary}")


def test_as_many_fields_as_are_allowed_are_read() -> None:
    body = b"".join(DISPOSITION + b'name="%d"\r\n\r\nv\r\n' % at for at in range(MAX_FIELDS)) + b"--x--"
    assert len(form_fields(body, IN_PARTS)) == MAX_FIELDS


def filled(unit: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    """A body of the largest size that is taken."""
    return before + unit * ((DEFAULT_MAX_BODY_BYTES - len(before) - len(after)) // len(unit)) + after


LONG = "y" * 69
HOSTILE = {
    "parameters": (filled(b"a=b;", DISPOSITION + b'name="job_id"; ', END), IN_PARTS),
    "comments": (filled(b"(", DISPOSITION + b'name="a" ', END), IN_PARTS),
    "spaces": (filled(b" ", DISPOSITION, END), IN_PARTS),
    "quotes": (filled(b'"', DISPOSITION + b"name=", END), IN_PARTS),
    "lines": (filled(b"\r\n", DISPOSITION + b'name="a"', END), IN_PARTS),
    "headers": (filled(b"\r\ncontent-disposition:form-data;name=", b"--x", END), IN_PARTS),
    "boundaries": (filled(b"\r\n--x"), IN_PARTS),
    "empty parts": (filled(b"--x\r\n"), IN_PARTS),
    "full heads": (
        b"".join(DISPOSITION + b"name=a;" * 130 + b"\r\n\r\n\r\n" for _ in range(270)),
        IN_PARTS,
    ),
    "almost boundaries": (filled(f"\r\n--{LONG}".encode()), f"multipart/form-data; boundary={LONG}z"),
    "a boundary's letters": (filled(b"y"), f"multipart/form-data; boundary={LONG}z"),
    "a long type": (filled(b"--x"), "multipart/form-data" + "; boundary=" * 6000),
    "a type of spaces": (filled(b"--x"), "multipart/form-data;" + " " * 60_000),
    "a type of spaces and signs": (filled(b"--x"), "multipart/form-data" + "; boundary=x   " * 4000 + "y"),
    "pairs": (filled(b"a=b&"), FORM),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_the_largest_form_of_any_shape_is_read_or_refused_soon(shape: str) -> None:
    body, content_type = HOSTILE[shape]
    began = time.process_time()
    refused(body, content_type)
    assert time.process_time() - began < MOST_CPU_S


@pytest.mark.parametrize("unit", [b"%41", b"%ff", b"+=%"])
def test_a_form_of_escapes_alone_is_read_soon(unit: bytes) -> None:
    began = time.process_time()
    assert form_fields(filled(unit), FORM)
    assert time.process_time() - began < MOST_CPU_S_OF_ESCAPES
