"""Lists every setting of the commands that talk to an orchestrator."""

from simpletuner_fleet.settings import values
from simpletuner_fleet.settings.setting import Setting
from simpletuner_fleet.settings.shared import CA_CERT, DATA_DIR, PLAIN_HTTP, SSL_FINGERPRINT, SSL_NO_VERIFY

CLIENT = (
    Setting(
        "url",
        values.urls,
        "Orchestrator to talk to (or SIMPLETUNER_URL); of several all, with commas",
        flags=("--url",),
        env="SIMPLETUNER_URL",
        metavar="URL",
    ),
    Setting(
        "api_token",
        values.text,
        "API token (SIMPLETUNER_API_TOKEN)",
        env="SIMPLETUNER_API_TOKEN",
        secret=True,
    ),
    SSL_FINGERPRINT,
    CA_CERT,
    SSL_NO_VERIFY,
    PLAIN_HTTP,
    DATA_DIR,
)
