"""Values that are almost what a message asks for: right in shape, wrong in one place, or wrong altogether."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from devtools.fuzz.chance import NASTY_TEXTS

NASTY_NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 1.5, -0.0, 1e308, 5e-324)

texts = st.one_of(st.sampled_from(NASTY_TEXTS), st.text(max_size=20))
numbers = st.one_of(
    st.sampled_from(NASTY_NUMBERS), st.integers(-5, 500), st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
garbage = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def near(kind: Any, known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what the type wants; `known` gives ids that exist, wherever a text is wanted."""
    return _near(msgspec.inspect.type_info(kind), known, 3)


def _near(info: Any, known: st.SearchStrategy[Any], depth: int) -> st.SearchStrategy[Any]:
    right = _right(info, known, depth)
    return st.one_of(right, right, right, right, garbage)


def _right(info: Any, known: st.SearchStrategy[Any], depth: int) -> st.SearchStrategy[Any]:
    kinds = msgspec.inspect
    match info:
        case kinds.StructType() if depth:
            return st.fixed_dictionaries(
                {},
                optional={field.encode_name: _near(field.type, known, depth - 1) for field in info.fields},
            )
        case kinds.UnionType():
            return st.one_of([_right(one, known, depth) for one in info.types])
        case kinds.ListType() | kinds.VarTupleType() if depth:
            return st.lists(_near(info.item_type, known, depth - 1), max_size=3)
        case kinds.DictType() if depth:
            return st.dictionaries(
                st.one_of(known, texts), _near(info.value_type, known, depth - 1), max_size=3
            )
        case kinds.StrType():
            return st.one_of(known, texts)
        case kinds.IntType() | kinds.FloatType():
            return st.one_of(known.filter(lambda one: not isinstance(one, str)), numbers)
        case kinds.BoolType():
            return st.booleans()
        case kinds.EnumType():
            return st.sampled_from([one.value for one in info.cls])
        case kinds.LiteralType():
            return st.sampled_from(list(info.values))
        case kinds.NoneType():
            return st.none()
    return garbage
