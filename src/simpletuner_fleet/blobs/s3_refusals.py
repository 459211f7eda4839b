"""Explains what a bucket's refusal means, and what to look at."""

from xml.etree import ElementTree

MEANINGS = {
    "RequestTimeTooSkewed": "this machine's clock and the bucket's differ by too much",
    "RequestExpired": "this machine's clock and the bucket's differ by too much, or the call took too long",
    "ExpiredToken": "the session token of the credentials has run out",
    "InvalidAccessKeyId": "the bucket does not know the access key",
    "SignatureDoesNotMatch": "the secret key is wrong, or something in between changes what is sent",
    "AccessDenied": "the credentials or the bucket's policy do not allow it, or the link came too late",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region: name its region and endpoint in SIMPLETUNER_STORAGE_URL",
    "AuthorizationHeaderMalformed": "the bucket is in another region: name it in SIMPLETUNER_STORAGE_URL",
    "AuthorizationQueryParametersError": "the bucket is in another region, or this machine's clock is ahead of its",
    "NotImplemented": "the storage cannot do it",
}
MEANINGS["TemporaryRedirect"] = MEANINGS["Redirect"] = MEANINGS["PermanentRedirect"]
REDIRECTS = range(300, 400)


def said_with(status: int, content: bytes) -> str:
    """Returns the status, S3's own code and what it means.

    The code is a word of S3's own list; what else it says may hold addresses and keys, and is not repeated.
    """
    code = code_of(content)
    meaning = MEANINGS.get(code) or (MEANINGS["PermanentRedirect"] if status in REDIRECTS else "")
    named = code if code.isascii() and code.isalnum() and len(code) <= 64 else "no S3 error"
    return f"HTTP {status}, {named}" + (f": {meaning}" if meaning else "")


def code_of(content: bytes) -> str:
    try:
        document = ElementTree.fromstring(content)
    except ElementTree.ParseError:
        return ""
    return next((one.text or "" for one in document if one.tag.rpartition("}")[2] == "Code"), "")
