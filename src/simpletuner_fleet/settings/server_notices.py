"""Lists the server's settings for notifications: its mail server, and where it may connect."""

from simpletuner_fleet.settings import values
from simpletuner_fleet.settings.setting import Setting

NOTICES = (
    Setting(
        "smtp_url",
        values.mail_server,
        "Mail server for notifications: smtps://USER@HOST:465, smtp://USER@HOST:587 (with STARTTLS) or smtp+plain://HOST:25",
        flags=("--smtp-url",),
        env="SIMPLETUNER_SMTP_URL",
        metavar="URL",
        on_console=False,
    ),
    Setting(
        "smtp_password",
        values.text,
        "Password of the mail server",
        env="SIMPLETUNER_SMTP_PASSWORD",
        secret=True,
        on_console=False,
    ),
    Setting(
        "smtp_from",
        values.mail_address,
        "Address that notifications are sent from (default: the user of --smtp-url where that is an address)",
        flags=("--smtp-from",),
        env="SIMPLETUNER_SMTP_FROM",
        metavar="ADDRESS",
        on_console=False,
    ),
    Setting(
        "notify_networks",
        values.networks,
        "Private networks that webhooks and providers to log in with may be in, for example 10.0.0.0/8 (default: none)",
        flags=("--notify-network",),
        env="SIMPLETUNER_NOTIFY_NETWORKS",
        default=[],
        metavar="CIDR",
        action="append",
        on_console=False,
    ),
    Setting(
        "notify_ca",
        values.path,
        "Further certificate authorities to trust for webhooks, the mail server, syslog and providers that were added (PEM)",
        flags=("--notify-ca",),
        env="SIMPLETUNER_NOTIFY_CA",
        metavar="FILE",
        on_console=False,
    ),
)
