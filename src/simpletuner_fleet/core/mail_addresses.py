"""Defines what an e-mail address looks like.

It imports nothing of ours, since the command line reads settings with it.
"""

import re

MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)
