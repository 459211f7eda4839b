"""Signs webhooks as Standard Webhooks 1.0 says, once for each secret that is valid."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
KEY_BYTES = 32


def new_key() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def signed(keys: Sequence[str], message_id: str, at: float, body: bytes) -> dict[str, str]:
    """Returns the three headers of a webhook."""
    timestamp = str(int(at))
    text = f"{message_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(_raw(key), text, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


def _raw(key: str) -> bytes:
    try:
        return base64.b64decode(key.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return key.encode()
