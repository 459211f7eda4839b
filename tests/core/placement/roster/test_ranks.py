from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.placement.roster import ranks
from simpletuner_fleet.core.placement.roster.ranks import Ranks

numbers = st.integers(0, 20).map(float)


@given(st.lists(st.tuples(st.booleans(), numbers)), numbers)
def test_counts_are_those_of_a_sorted_list(story: list[tuple[bool, float]], asked: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "LARGEST_CHUNK", 3)
        bag, plain = Ranks(), list[float]()
        for add, number in story:
            if add:
                bag.add(number)
                plain.append(number)
            else:
                bag.remove(number)
                if number in plain:
                    plain.remove(number)
            assert len(bag) == len(plain)
            assert bag.up_to(asked) == bisect_right(sorted(plain), asked)
