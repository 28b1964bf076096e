"""Trails: a sequence in chunks that is, however it grew, the same sequence."""

from __future__ import annotations

from perdure.kernel import CHUNK_LENGTH, Trail

EMPTY: Trail[int] = Trail()
LENGTHS = range(3 * CHUNK_LENGTH + 2)


def test_a_trail_has_the_items_it_was_given_in_order() -> None:
    for length in LENGTHS:
        trail = EMPTY.extended(range(length))
        assert list(trail) == list(range(length))
        assert len(trail) == length


def test_a_trail_is_the_same_value_however_it_was_extended() -> None:
    for length in LENGTHS:
        whole = EMPTY.extended(range(length))
        for cut in LENGTHS[: length + 1]:
            assert EMPTY.extended(range(cut)).extended(range(cut, length)) == whole


def test_every_chunk_but_the_tail_is_full_and_the_tail_never_is() -> None:
    trail = EMPTY
    for item in LENGTHS:
        trail = trail.extended([item])
        assert all(len(chunk) == CHUNK_LENGTH for chunk in trail.sealed)
        assert len(trail.tail) < CHUNK_LENGTH


def test_a_full_chunk_is_the_same_object_in_every_longer_trail() -> None:
    before = EMPTY.extended(range(2 * CHUNK_LENGTH))
    after = before.extended(range(CHUNK_LENGTH))
    assert all(kept is chunk for kept, chunk in zip(after.sealed, before.sealed, strict=False))


def test_extending_a_trail_leaves_it_as_it_was() -> None:
    before = EMPTY.extended(range(CHUNK_LENGTH - 1))
    before.extended(range(CHUNK_LENGTH))
    assert list(before) == list(range(CHUNK_LENGTH - 1))


def test_extending_a_trail_by_nothing_gives_the_very_same_trail() -> None:
    for length in LENGTHS:
        trail = EMPTY.extended(range(length))
        assert trail.extended([]) is trail
