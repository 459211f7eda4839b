from simpletuner_fleet.store.writing.remembered import RememberedBytes


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    memory = RememberedBytes(10)
    memory.put("a", b"1234")
    memory.put("b", b"1234")
    assert memory.get("a") == b"1234"
    memory.put("c", b"1234")
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (b"1234", None, b"1234")


def test_what_is_put_again_is_counted_once() -> None:
    memory = RememberedBytes(10)
    for _ in range(5):
        memory.put("a", b"1234")
    memory.put("b", b"123456")
    assert (memory.get("a"), memory.get("b")) == (b"1234", b"123456")


def test_what_is_larger_than_the_memory_is_not_kept() -> None:
    memory = RememberedBytes(3)
    memory.put("a", b"1234")
    assert memory.get("a") is None
    memory.put("b", b"123")
    assert memory.get("b") == b"123"
    memory.clear()
    assert memory.get("b") is None


def test_what_was_dropped_leaves_room() -> None:
    memory = RememberedBytes(4)
    memory.put("a", b"1234")
    memory.drop("a")
    memory.drop("never there")
    memory.put("b", b"1234")
    assert (memory.get("a"), memory.get("b")) == (None, b"1234")
