"""Lists the services that may be told through Apprise: their plugins were reviewed.

Each speaks HTTPS alone and starts nothing. Apprise knows far more: schemes that run programs, write files, speak other
protocols, or fetch what an address names. None of those is listed, and of the options of an address only these are
allowed.
"""

from collections.abc import Iterable

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid


class Service(Struct, frozen=True):
    name: str
    module: str
    """The file of Apprise's plug-in, and the class in it."""
    plugin: str
    example: str
    options: frozenset[str] = frozenset()
    renders: bool = False
    """It shows Markdown, and an @ calls people: what a job is called must do neither."""
    most_chars: int = 0
    """The longest message that it takes, where Apprise says less; 0: as Apprise says."""


def _service(
    name: str,
    module: str,
    plugin: str,
    example: str,
    *options: str,
    renders: bool = False,
    most_chars: int = 0,
) -> Service:
    return Service(name, module, plugin, example, frozenset(options), renders, most_chars)


SERVICES = {
    "tgram": _service(
        *("Telegram", "telegram", "NotifyTelegram", "tgram://BOT_TOKEN/CHAT_ID"),
        *("silent", "preview", "topic", "thread", "to"),
    ),
    "pover": _service(
        *("Pushover", "pushover", "NotifyPushover", "pover://USER@TOKEN"), *("priority", "sound", "to")
    ),
    "pbul": _service("Pushbullet", "pushbullet", "NotifyPushBullet", "pbul://TOKEN", "to"),
    "pagerduty": _service(
        *("PagerDuty", "pagerduty", "NotifyPagerDuty", "pagerduty://KEY@API_KEY"),
        *("region", "severity", "source", "component", "group", "class"),
    ),
    "mmosts": _service(
        *("Mattermost", "mattermost", "NotifyMattermost", "mmosts://HOST/TOKEN"),
        *("channel", "channels", "to", "botname"),
        renders=True,
    ),
    "rockets": _service(
        *("Rocket.Chat", "rocketchat", "NotifyRocketChat", "rockets://WEBHOOK@HOST/%23CHANNEL"),
        *("mode", "to"),
        renders=True,
        most_chars=5_000,
    ),
    "gotifys": _service("Gotify", "gotify", "NotifyGotify", "gotifys://HOST/TOKEN", "priority"),
    "zulip": _service(
        *("Zulip", "zulip", "NotifyZulip", "zulip://BOT@ORGANISATION/TOKEN/STREAM"), "to", renders=True
    ),
    "gchat": _service(
        *("Google Chat", "google_chat", "NotifyGoogleChat", "gchat://SPACE/KEY/TOKEN"),
        *("thread", "threadkey"),
    ),
    "twilio": _service(
        *("Twilio (SMS)", "twilio", "NotifyTwilio", "twilio://SID:TOKEN@FROM/TO"),
        *("from", "to"),
        most_chars=1_600,
    ),
    "line": _service("LINE", "line", "NotifyLine", "line://TOKEN/USER", "to"),
    "feishu": _service("Feishu", "feishu", "NotifyFeishu", "feishu://TOKEN"),
    "wecombot": _service("WeCom", "wecombot", "NotifyWeComBot", "wecombot://KEY"),
}
"""By the scheme of their address."""


def service_of(address: str) -> Service:
    """Returns the service of an address, or raises Invalid where no listed service has such addresses."""
    scheme, separator, rest = address.partition("://")
    service = SERVICES.get(scheme)
    if not separator or service is None:
        known = ", ".join(sorted(SERVICES))
        raise Invalid(
            f"Through Apprise these services can be told: {known}.",
            path="$.address",
            next_step="Write its address as Apprise does, for example tgram://BOT_TOKEN/CHAT_ID.",
        )
    _, asked, query = rest.partition("?")
    if "?" in query or ";" in query or (asked and not query):
        raise Invalid("The options of the address cannot be read.", path="$.address")
    check_options(service, (part.partition("=")[0] for part in query.split("&")) if query else ())
    return service


def check_options(service: Service, options: Iterable[str]) -> None:
    """Refuses options that are not listed: some of Apprise name a file or page to fetch, or weaken checks."""
    strange = next((option for option in options if option not in service.options), None)
    if strange is not None:
        possible = ", ".join(sorted(service.options)) or "-"
        raise Invalid(
            f"An address of {service.name} cannot have the option '{strange[:40]}'.",
            path="$.address",
            next_step=f"It can have these: {possible}.",
        )
