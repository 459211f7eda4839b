"""Lists the settings that several programs have."""

from simpletuner_fleet.settings import values
from simpletuner_fleet.settings.setting import Setting

DATA_DIR = Setting(
    "data_dir",
    values.path,
    "Where the orchestrator keeps everything (or SIMPLETUNER_HOME; default: ~/.simpletuner)",
    flags=("--data-dir",),
    env="SIMPLETUNER_HOME",
    default="~/.simpletuner",
    metavar="DIR",
    on_console=False,
)
VERBOSE = Setting(
    "verbose",
    values.boolean,
    "Enable debug logging",
    flags=(
        "-v",
        "--verbose",
    ),
    env="SIMPLETUNER_VERBOSE",
    default=False,
    action="switch",
    on_console=False,
)
LOG_FORMAT = Setting(
    "log_format",
    values.log_format,
    "text or json (or SIMPLETUNER_LOG_FORMAT; default: text)",
    flags=("--log-format",),
    env="SIMPLETUNER_LOG_FORMAT",
    default="text",
    metavar="FORMAT",
    on_console=False,
)
SSL_NO_VERIFY = Setting(
    "ssl_no_verify",
    values.boolean,
    "Do not verify the server's certificate (development only)",
    flags=("--ssl-no-verify",),
    env="SIMPLETUNER_SSL_NO_VERIFY",
    default=False,
    action="switch",
)
SSL_FINGERPRINT = Setting(
    "ssl_fingerprint",
    values.fingerprint,
    "Trust only this certificate, or what this CA signed: sha256:… as the server printed it",
    flags=("--ssl-fingerprint",),
    env="SIMPLETUNER_SSL_FINGERPRINT",
    metavar="SHA256",
)
PLAIN_HTTP = Setting(
    "plain_http",
    values.boolean,
    "Talk to an orchestrator on another machine without TLS: anybody on the way can read the token",
    flags=("--plain-http",),
    env="SIMPLETUNER_PLAIN_HTTP",
    default=False,
    action="switch",
)
CA_CERT = Setting(
    "ca_cert",
    values.path,
    "Trust the CA in this PEM file",
    flags=("--ca-cert",),
    env="SIMPLETUNER_CA_CERT",
    metavar="FILE",
)
