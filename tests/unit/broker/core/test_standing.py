"""Which session and generation a start takes: R21, with a crash at each point of it."""

from __future__ import annotations

import pytest

from headrace.broker.core.model import Generation, Registration
from headrace.broker.core.standing import (
    Ending,
    LocalMeta,
    LocalState,
    Standing,
    former_process_is_gone,
    next_standing,
)

G00, G01, G10 = Generation(0, 0), Generation(0, 1), Generation(1, 0)


def registered(session: int = 4, generation: Generation = G00) -> Registration:
    return Registration(0, session, generation, "http://x")


def local(
    session: int = 4,
    *,
    generation: Generation = G00,
    ending: Ending = "clean",
    same_volume: bool = True,
) -> LocalState:
    return LocalState(LocalMeta("c", 0, generation, session), ending, same_volume)


@pytest.mark.parametrize(
    ("state", "registration", "expected"),
    [
        (LocalState(), None, Standing(1, G00, "nothing")),
        (LocalState(), registered(), Standing(5, G10, "disk")),
        (local(), registered(), Standing(5, G00, "nothing")),
        (local(ending="same_boot"), registered(), Standing(5, G00, "nothing")),
        (local(ending="other_boot"), registered(), Standing(5, G01, "tail")),
        (local(ending="same_boot", same_volume=False), registered(), Standing(5, G01, "tail")),
        (local(3), registered(), Standing(5, G10, "disk")),
        (local(5), registered(), Standing(6, G00, "nothing")),
        (local(5, generation=G10), registered(), Standing(6, G10, "nothing")),
        (local(4, generation=G01, ending="other_boot"), registered(),
         Standing(5, Generation(0, 2), "tail")),
        (local(7), None, Standing(8, G00, "nothing")),
    ],
)  # fmt: skip
def test_session_and_generation(
    state: LocalState, registration: Registration | None, expected: Standing
) -> None:
    assert next_standing(state, registration) == expected


def test_a_lost_disk_prepared_but_not_registered_is_still_a_lost_disk() -> None:
    first = next_standing(LocalState(), registered())
    crashed = local(first.session, generation=first.generation, ending="same_boot")
    again = next_standing(crashed, registered())
    assert again.generation == first.generation != registered().generation


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        (local(), True),
        (local(ending="same_boot"), True),
        (local(5, ending="same_boot"), True),
        (local(3, ending="same_boot"), False),
        (local(ending="other_boot"), False),
        (local(ending="same_boot", same_volume=False), False),
        (LocalState(), False),
    ],
)
def test_only_the_volume_itself_proves_that_the_former_process_is_gone(
    state: LocalState, gone: bool
) -> None:
    assert former_process_is_gone(state, registered()) is gone


@pytest.mark.parametrize(("beat", "lost"), [(6, "disk"), (7, "nothing"), (8, "nothing")])
def test_a_volume_put_back_within_its_session_shows_by_its_beat(beat: int, lost: str) -> None:
    state = LocalState(LocalMeta("c", 0, G00, 4, beat=beat), "same_boot")
    assert next_standing(state, registered(), told_beat=7).lost == lost
    assert former_process_is_gone(state, registered(), told_beat=7) == (lost == "nothing")
    later = LocalState(LocalMeta("c", 0, G00, 5, beat=0), "same_boot")  # crashed before registering
    assert next_standing(later, registered(), told_beat=7).lost == "nothing"
