"""Real receivers of what we send: a webhook that checks signatures, a mail server, a log receiver. Each may misbehave."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from simpletuner_fleet.http.server import tls

PATIENCE_S = 5.0


class Certificates(Struct, frozen=True):
    """A private authority, and a certificate of it for localhost."""

    ca: str
    context: ssl.SSLContext


def certificates(folder: Path) -> Certificates:
    files = tls.private_authority(folder)
    assert files.ca is not None
    return Certificates(str(files.ca), tls.server_context(files))


class Posted(Struct):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    def is_signed_with(self, key: str) -> bool:
        """As a receiver would check it, from the text of Standard Webhooks alone."""
        secret = base64.b64decode(key.removeprefix("whsec_"))
        text = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        good = base64.b64encode(hmac.new(secret, text, hashlib.sha256).digest()).decode()
        return f"v1,{good}" in self.headers["webhook-signature"].split()


class Hook(Struct):
    """Answers with `statuses` in turn, then with 200; keeps what it got."""

    url: str = ""
    got: list[Posted] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    frozen: bool = False
    """It takes what is sent and never answers."""
    tail: bytes = b""
    """What it says after its head."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            self.got.append(Posted(first.split()[1], headers, body))
            if self.frozen:
                await reader.read()
                return
            status = self.statuses.pop(0) if self.statuses else 200
            extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            writer.write(f"HTTP/1.1 {status} Some\r\n{extra}content-length: 0\r\n\r\n".encode() + self.tail)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def has(self, count: int) -> list[Posted]:
        await until(lambda: len(self.got) >= count)
        return self.got


class Mail(Struct):
    sender: str
    to: list[str]
    text: str
    user: str
    secure: bool


class MailServer(Struct):
    """Speaks SMTP with STARTTLS and AUTH PLAIN; `password` None lets everybody in."""

    port: int = 0
    got: list[Mail] = field(default_factory=list)
    password: str | None = None
    context: ssl.SSLContext | None = None
    refuses: int = 0
    refuses_sender: int = 0
    """As one whose quota for the day is used up, or that takes mail from others alone."""
    speaks_early: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mail = Mail("", [], "", "", writer.get_extra_info("sslcontext") is not None)
        writer.write(b"220 ready\r\n")
        while line := (await reader.readline()).decode().strip():
            if line == "QUIT":
                return
            if line == "STARTTLS":
                writer.write(b"220 go\r\n" + b"250 injected\r\n" * self.speaks_early)
                assert self.context
                await writer.start_tls(self.context)
                mail.secure = True
            elif line == "DATA":
                writer.write(b"354 go on\r\n")
                mail.text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                self.got.append(mail)
                writer.write(b"250 taken\r\n")
            else:
                writer.write(f"{self._answer(line, mail)}\r\n".encode())

    def _answer(self, line: str, mail: Mail) -> str:
        match line.upper().split()[0]:
            case "EHLO":
                return "250-me\r\n" + ("250 AUTH PLAIN LOGIN" if self.password else "250 HELP")
            case "AUTH":
                _, mail.user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                return "235 welcome" if password == self.password else "535 no"
            case "MAIL":
                mail.sender = line
                if self.refuses_sender:
                    return f"{self.refuses_sender} not from you"
                return "250 ok" if mail.user or not self.password else "530 who are you"
            case _:
                mail.to.append(line.partition("<")[2].rstrip(">"))
                return f"{self.refuses} no" if self.refuses else "250 ok"


class LogReceiver(Struct):
    """Takes frames counted by their length."""

    port: int = 0
    lines: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while length := await reader.readuntil(b" "):
                self.lines.append((await reader.readexactly(int(length))).decode())
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Yields the port."""
    talks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        talks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            talks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@asynccontextmanager
async def hook(context: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    receiver = Hook()
    async with listening(receiver.serve, context) as port:
        scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
        receiver.url = f"{scheme}://{host}:{port}/hook"
        yield receiver


async def until(is_so: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)
