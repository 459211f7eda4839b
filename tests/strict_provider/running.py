"""A strict OpenID provider that is not ours: node's oidc-provider, in the node that the browser's driver brings."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import playwright

from tests.openid_provider import CLIENT, SECRET
from tests.strict_provider.npm_packages import installed

NODE = Path(playwright.__file__).parent / "driver" / "node"
PATIENCE_S = 60.0


class StrictProvider:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.issuer = ""

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert line, "the provider has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def tell(self, **changed: Any) -> dict[str, Any]:
        """Changes its clients, its people by subject, or its keys (`rotate=True`). Returns which keys it has now."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(changed).encode() + b"\n")
        return await self.hear()

    async def has_client(self, server: str, name: str) -> None:
        """Registers the server at this address, whose settings call this provider so."""
        await self.tell(
            clients=[
                {
                    "client_id": CLIENT,
                    "client_secret": SECRET,
                    "redirect_uris": [f"{server}/login/back/{name}"],
                    "post_logout_redirect_uris": [f"{server}/login"],
                    "backchannel_logout_uri": f"{server}/api/login/providers/{name}/logout",
                    "backchannel_logout_session_required": True,
                    "id_token_signed_response_alg": "ES256",
                }
            ]
        )


@asynccontextmanager
async def strict_provider(log_file: Path) -> AsyncIterator[StrictProvider | None]:
    """None where its packages cannot be had."""
    folder = await asyncio.to_thread(installed, Path(__file__).parent)
    if folder is None:
        yield None
        return
    pipe = asyncio.subprocess.PIPE
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            NODE, folder / "provider.mjs", stdin=pipe, stdout=pipe, stderr=log
        )
    provider = StrictProvider(process)
    try:
        provider.issuer = str((await provider.hear())["issuer"])
        yield provider
    finally:
        assert process.stdin
        process.stdin.close()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
