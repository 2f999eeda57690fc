"""What signs say of a kitchen, by door and by thing: the same."""

from __future__ import annotations

from random import Random

import pytest

from marft.common.types import Observation
from marft.envs.scripted_policy import PolicyInput
from marft_envs.rooms.environment import Rooms, RoomsScript
from marft_envs.rooms.views import parse_view
from tests.marft_envs.test_rooms_world import HARD, acted
from tests.nights import some

FEW = {"train_tasks": 1, "held_out_tasks": 5}


def _seen(shown: Observation, role: str, environment: Rooms) -> list[object]:
    """What a role can read off its view, in whatever order things are listed; but for who is with it."""
    views = []
    names = environment.players if environment.controller else ()
    for name in [one for one in names if f"\n{one}: " in "\n" + shown.for_role(role)] or [""]:
        read = parse_view(shown.for_role(role), name, names if name else ())
        here = sorted(thing for thing in read.room_items if thing not in environment.players)
        ways = [(way.room, way.narrow, way.obstacle, sorted(way.items)) for way in read.doors]
        views.append((read.room, read.narrow, read.holds, here, ways, read.dishes, read.messages))
    return views


@pytest.mark.parametrize("table", [{}, *some(HARD, of=2)], ids=str)
def test_signs_by_thing_say_what_signs_by_door_say(table: dict[str, object]) -> None:
    by_door, by_thing = (Rooms.model_validate({**FEW, **table, "signs": f"by {what}"}) for what in ("door", "thing"))
    for task in by_door.tasks("validation")[:5]:
        shifts = [environment.start(task, 0) for environment in (by_door, by_thing)]
        shown, over = [shift.reset_sync() for shift in shifts], False
        while not over:
            one, other = ([_seen(view, role, by_door) for role in view.turn] for view in shown)
            assert one == other
            said = {}
            for role in shown[0].turn:
                chat = [{"role": "user", "content": shown[0].for_role(role)}]
                random = Random(f"{task.id} {shifts[0].kitchen.time}")
                said[role] = by_door.script(0.8)(
                    PolicyInput(task, role, 0, chat, random, shown[0].options.get(role, ()))
                )
            steps = [acted(shift, **said) for shift in shifts]
            shown, over = [step.observation for step in steps], steps[0].terminated
            assert steps[0].reward == steps[1].reward


def test_who_names_a_thing_does_what_is_to_be_done_for_it() -> None:
    environment = Rooms.model_validate({**FEW, "signs": "by thing"})
    done = set()
    for task in environment.tasks("validation")[:5]:
        named, told = (environment.start(task, 0) for _ in range(2))
        shown, over = named.reset_sync(), False
        assert told.reset_sync() == shown
        while not over:
            cues = {
                role: PolicyInput(task, role, 0, [{"role": "user", "content": shown.for_role(role)}], Random(0))
                for role in shown.turn
            }
            by_thing = {role: environment.script()(cue) for role, cue in cues.items()}
            in_words = {role: RoomsScript(environment.players)(cue) for role, cue in cues.items()}
            done |= {in_words[role].partition(";")[0] for role in cues if by_thing[role] != in_words[role]}
            step = acted(named, **by_thing)
            assert acted(told, **in_words) == step
            shown, over = step.observation, step.terminated
        assert step.success
    assert {act.partition(" ")[0] for act in done} == {"go", "take", "put", "serve"}
    assert {"put pot", "take soup"} < done


def test_by_door_a_thing_is_no_action() -> None:
    shift = Rooms().start(Rooms.model_validate(FEW).tasks("validation")[0], 0)
    shown = shift.reset_sync()
    told = acted(shift, cook="plate", waiter="wait").observation.for_role("cook")
    assert "You cannot plate." in told
    assert shown.turn == ("cook", "waiter")
