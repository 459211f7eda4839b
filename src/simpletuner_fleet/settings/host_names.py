"""Spells host names as browsers and HTTP clients send them."""


def as_sent(name: str) -> str:
    """Returns a name that people wrote, such as 'straße.example', as it is sent: in ASCII.

    Python's own codec knows only the older rules, by which 'ß' is 'ss': that is another host. A browser takes any letter
    and sign that these rules (UTS 46, nontransitional) do not forbid, so each part is spelled without asking further.
    """
    if name.isascii():
        return name
    import idna  # its table is large, and hardly anybody's name needs it

    try:
        plain = idna.uts46_remap(name, std3_rules=False, transitional=False)
        return ".".join(map(_part, plain.split(".")))
    except UnicodeError:
        return name  # no name server knows it, and no browser sends it


def _part(part: str) -> str:
    return part if part.isascii() else f"xn--{part.encode('punycode').decode('ascii')}"
