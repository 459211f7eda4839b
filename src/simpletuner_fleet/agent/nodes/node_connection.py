"""Connects two nodes by TLS, on which each proves that it has the machine's secret, and sends messages in frames.

The secret is a private key with its own certificate, made for this one machine and given to all its nodes. Each side
shows that certificate and takes no other: whoever does not have the key can neither join, nor listen, nor change a byte.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from simpletuner_fleet.agent.nodes.messages import FromFollower, ToFollower
from simpletuner_fleet.agent.state_dir import write_whole
from simpletuner_fleet.core.worker_errors import NodeSecretError

MAX_FRAME_BYTES = 32 * 1024 * 1024
BACKLOG_BYTES = 64 * 1024 * 1024
ROOM_BYTES = 4 * 1024 * 1024
LENGTH_BYTES = 4
OPEN_WITHIN_S = 15.0
CLOSE_WITHIN_S = 3.0
TAKEN_WITHIN_S = 120.0
"""A piece of a file: the node that asked for it has given up by then, or is frozen."""
Heard = TypeVar("Heard")

_encoder = msgspec.msgpack.Encoder()


class ConnectionLost(Exception):
    """The other end of the connection hung up, or sent what cannot be understood."""


class NodeConnection(Generic[Heard]):
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[Heard],
    ) -> None:
        self._reader, self._writer, self._decoder = reader, writer, decoder

    @property
    def own_address(self) -> str:
        """Returns the address by which the other end reaches this one."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def other_address(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, message: FromFollower | ToFollower) -> None:
        """Sends without waiting. An end that does not read is no better than one that is gone: it is cut off."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > BACKLOG_BYTES:
            transport.abort()
            return
        content = _encoder.encode(message)
        self._writer.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)

    @property
    def has_room(self) -> bool:
        """Tells whether what was sent before has gone on its way but for a little."""
        return self._writer.transport.get_write_buffer_size() <= ROOM_BYTES

    async def sent(self) -> None:
        """Waits until there is room for more. Raises ConnectionLost, also where the other end takes nothing."""
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await self._writer.drain()
        except TimeoutError as error:
            raise ConnectionLost("it takes no more") from error
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    async def receive(self) -> Heard:
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            if length > MAX_FRAME_BYTES:
                raise ConnectionLost("it says too much at once")
            return self._decoder.decode(await self._reader.readexactly(length))
        except (EOFError, OSError) as error:
            raise ConnectionLost(str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConnectionLost(f"it cannot be understood: {error}") from error

    def close(self) -> None:
        self._writer.close()

    def cut(self) -> None:
        """Ends it at once. TLS says goodbye and waits half a minute for the same; who is silent does not answer that."""
        self._writer.transport.abort()

    async def finish(self) -> None:
        """Closes it once everything was sent, or after a moment."""
        self.close()
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


FROM_FOLLOWER: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(FromFollower)
TO_FOLLOWER: msgspec.msgpack.Decoder[ToFollower] = msgspec.msgpack.Decoder(ToFollower)


async def dial(host: str, port: int, context: ssl.SSLContext) -> NodeConnection[ToFollower]:
    """Connects to a node; raises ConnectionLost where nobody answers who has the machine's secret."""
    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError as error:
        raise ConnectionLost("no answer") from error
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    return NodeConnection(reader, writer, TO_FOLLOWER)


def kept_secret(secret: str | None, file: Path | None, folder: Path) -> Path:
    """Returns the file that holds the secret; one that came by the environment is written down for nobody else to read."""
    if file is not None:
        return file
    if not secret:
        raise NodeSecretError("A worker of several nodes needs a secret that all its nodes share.")
    kept = folder / "node_secret.pem"
    write_whole(kept, secret.encode())
    return kept


def tls_context(secret: Path, *, is_first: bool) -> ssl.SSLContext:
    """Makes the TLS context from the secret; raises NodeSecretError where it cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_first else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes have many names; the key is what tells them
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_cert_chain(secret)
        context.load_verify_locations(secret)
    except (OSError, ssl.SSLError) as error:
        raise NodeSecretError(f"The nodes' secret in {secret} cannot be used: {error}.") from error
    return context
