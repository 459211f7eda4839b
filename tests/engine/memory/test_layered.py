"""A map whose changed copy costs little says the same as a dict."""

from simpletuner_fleet.engine.memory.layered import MOST_ABOVE, Layered


def test_each_copy_has_its_own_entry_and_all_before_it() -> None:
    copies, plain = [Layered({"u_0": "admin"})], {"u_0": "admin"}
    for number in range(2 * MOST_ABOVE + 5):
        key = f"u_{number % (MOST_ABOVE + 20)}"
        copies.append(copies[-1].with_one(key, f"role {number}"))
        plain[key] = f"role {number}"
    assert dict(copies[0]) == {"u_0": "admin"}, "what was copied is as it was"
    assert dict(copies[2]) == {"u_0": "role 0", "u_1": "role 1"}
    assert (dict(copies[-1]), len(copies[-1])) == (plain, len(plain))
    assert sorted(copies[-1].values()) == sorted(plain.values())
    assert (copies[-1].get("u_none"), "u_1" in copies[-1]) == (None, True)
