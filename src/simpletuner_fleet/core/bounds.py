"""Bounds the numbers, times and texts that come from outside: one type for each, checked as it is decoded.

What a rule allows is mostly narrower and said with the rule. These bounds see to it that no number overflows a column, a
date or a float, and that no text of a stranger fills a page, before any rule looks at it.
"""

from typing import Annotated

from msgspec import Meta

MOST = 2**53
"""The largest whole number that every reader of JSON keeps."""
LATEST_AT = 253_402_300_799.0
"""The end of the year 9999."""
MAX_SECONDS = 1e10
MAX_READING = 1e12
MAX_AMOUNT = 1e15
MAX_FREE_CHARS = 256 * 1024
MAX_REMARK_CHARS = 1_000

Count = Annotated[int, Meta(ge=0, le=MOST)]
"""Of bytes, rows, steps, tries: nothing below zero."""
Whole = Annotated[int, Meta(ge=-MOST, le=MOST)]
Version = Annotated[int, Meta(ge=1, le=MOST)]
"""Of what is counted from 1."""
Moment = Annotated[float, Meta(ge=0, le=LATEST_AT)]
"""Seconds since 1970."""
Seconds = Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""How long; whether it may be 0 or less is for a rule to say, in words."""
Reading = Annotated[float, Meta(ge=-MAX_READING, le=MAX_READING)]
"""Of a sensor, or a size in gigabytes."""
Amount = Annotated[float, Meta(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]
"""Of bytes, hours or jobs that a quota allows, or a weight."""
Name = Annotated[str, Meta(max_length=256)]
Path = Annotated[str, Meta(max_length=4096)]
Remark = Annotated[str, Meta(max_length=MAX_REMARK_CHARS)]
"""A sentence or two, shown as they are."""
FreeText = Annotated[str, Meta(max_length=MAX_FREE_CHARS)]
"""What a worker or a trainer says. What is stored of it is cut, not refused: it may come with the end of a job."""
