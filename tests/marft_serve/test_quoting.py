"""Which action depends on which follows from whose words its prompt shows, however a program passes them on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from marft.agents.chat import Chat
from marft.agents.quote_tracker import QuoteSource, QuoteTracker, iter_texts, normalize_words
from marft.common.types import Action, Observation
from marft.config.interfaces.organization import Agents
from tests.chatting import asked, talked
from tests.episodes import make_action
from tests.marft_serve.test_gateway_chats import scripted, user
from tests.marft_serve.test_gateway_tokens import format_named
from tests.nights import by_day
from tests.quoting_worlds import ROLES, World

TASK = "Add the numbers 17 and 25, and then say whether the sum is even: is it 42? Say yes or no."


def dependencies(turns: Sequence[tuple[str, str, str]], *given: str) -> list[set[int]]:
    """Which earlier turns each one depends on.

    Args:
        turns: of which role, what it is asked, what it says.
        given: texts that are nobody's: the task.
    """
    quoting, actions = QuoteTracker(), list[Action]()
    for number, (role, prompt, text) in enumerate(turns):
        seen = quoting.find_quoted([prompt], [*given, f"You are {role}."], actions)
        sees = tuple(action.id for action in actions if action.id in seen)
        action = make_action(role, call=number, index=number, sees=sees, text=text)
        quoting.add_action(action, {"role": "assistant", "content": text}, Chat((user(prompt),)))
        actions.append(action)
    numbers = {action.id: number for number, action in enumerate(actions)}
    return [{numbers[name] for name in action.sees} for action in actions]


def recorded(turns: Sequence[tuple[str, str, str]], task: str, *roles: str) -> list[set[int]]:
    """The same, of an episode in which a program asks agents."""

    async def talk(_: Observation, agents: Agents) -> None:
        for role, prompt, _text in turns:
            await asked(agents[role], [user(prompt)], shown=task)

    texts = [text for _, _, text in turns]
    episode, _ = talked(format_named("list"), scripted(*texts), talk, *roles, longest=10_000)
    assert (episode.status, episode.error) == ("terminated", "")
    numbers = {action.id: number for number, action in enumerate(episode.actions)}
    return [{numbers[name] for name in action.sees} for action in episode.actions]


def depends(said: str, prompt: str, *, task: str = TASK) -> bool:
    """Whether a prompt depends on what somebody said who was asked the task."""
    return 0 in dependencies([("a", task, said), ("b", prompt, "Hm.")], task)[1]


@pytest.mark.slow
def test_of_many_conversations_nearly_all_dependencies_are_found_and_few_others() -> None:
    right, found, true, conversations = 0, 0, 0, by_day(40, 100)
    for seed in range(conversations):
        world = World(seed)
        turns = [(turn.role, turn.prompt, turn.text) for turn in world.turns]
        for number, (sees, turn) in enumerate(zip(recorded(turns, world.task, *ROLES), world.turns, strict=True)):
            assert all(other < number for other in sees)
            right, found, true = right + len(sees & turn.sees), found + len(sees), true + len(turn.sees)
    assert true > 4 * conversations
    assert right / true > 0.98, f"{right} of {true} dependencies were found"
    assert right / found > 0.98, f"{found - right} of {found} are none"


class TestWhatShowsAnAction:
    @pytest.mark.parametrize(
        ("said", "prompt"),
        [
            (f"The task is: {TASK} I think so.", "{task}\n\nMessage from a:\n{said}"),
            (f"{TASK}\n\n42", "Message from a:\n{said}\n\n{task}"),
            ("Say yes or no.", "{task}\n\nMessage from a:\n{said}"),
            (TASK, "{task}\n\nMessage from a:\n{said}"),
            ("42", "{task}\n\nMessage from a: {said}"),
            ("42", "Message from a: {said}\n\n{task}"),
            ("yes", "{said}\n{task}\n{said}"),
            ("It is **42**, I think.", "{task} They say: It is 42, I think"),
            ("答案是四十二", "{task}\n请检查{said}是否正确"),
            ("✅", "{task}\n\ncritic: {said}"),
            ("größer", "{task}\n\na: gro\u0308ßer"),
            ("हाँ", "{task}\n\na: {said}"),
            ("don't & won't", "{task}\n\n<a>don&#x27;t &amp; won&amp;#39;t</a>"),
            ("größer", "{task}\n\na: gr\\xf6\\xdfer"),
        ],
    )
    def test_it_is_its_words_beside_those_of_the_task(self, said: str, prompt: str) -> None:
        assert depends(said, prompt.format(task=TASK, said=said))

    @pytest.mark.parametrize(
        ("said", "prompt"),
        [
            ("42", "{task}"),
            ("yes", "{task}\n\n{task}"),
            ("Say yes or no.", "{task}"),
            ("no", "Add the numbers 17 and 25, and then say whether the sum is even: is it 42? Say yes or no"),
            ("yes", "What is asked: Say yes or no."),
            (f"The task is: {TASK} I think so, for 17 and 25 make 42 in my book.", "{task}"),
            (f"{TASK} The sum is even.", "The numbers 17 and 25 are to be added. {task}"),
            ("42", "{task} Or is it 142, 42nd, 4.42 or 42,5?"),
            ("है", "{task}\n\nहम हैं"),
        ],
    )
    def test_the_words_of_the_task_alone_show_nobody(self, said: str, prompt: str) -> None:
        assert not depends(said, prompt.format(task=TASK, said=said))

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text[: len(text) * 2 // 3] + "…",
            lambda text: text.replace(" ", "\n  "),
            lambda text: json.dumps({"content": text}),
            lambda text: json.dumps({"body": json.dumps({"content": text}, ensure_ascii=False)}),
            lambda text: "> " + text.replace("\n", "\n> "),
            lambda text: text.replace("orchard", "garden"),
            lambda text: text.partition("</think>")[2],
        ],
    )  # fmt: skip
    def test_it_may_be_cut_edited_escaped_and_set_otherwise(self, change: object) -> None:
        said = '<think>Hm.</think>We pick "ripe" pears – all of them –\nfrom the big orchard, ümläuts \\frac{1}{2} and so on.'
        assert callable(change)
        assert depends(said, f"{TASK}\n\n{change(said)}\n\nGo on.")

    def test_it_may_stand_among_sentences_of_the_task(self) -> None:
        said = "Seventeen is a prime of the first kind. Its sum with the other makes an even one."
        first, second = said.split(". ")
        assert depends(said, f"Add the numbers 17 and 25. {first}. Say yes or no. {second}")

    def test_short_sentences_may_be_set_apart_and_words_be_changed(self) -> None:
        said = "It is five. Then add seven. So it makes twelve."
        assert depends(said, f"First: It is five. {TASK} Second: Then add seven. Third: So it makes twelve.")
        said = "The orchard by the river has pears of all kinds but the green ones are best"
        assert depends(said, "The orchard by the [hill] has pears of all [sorts] but the green ones are [good]")
        assert not depends(said, "The orchard by the hill is old. I count all kinds but none of pears.")

    def test_what_stands_in_the_arguments_of_calls_is_seen(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            await asked(agents.a, [user("?")])
            call = {"id": "x", "type": "function", "function": {
                "name": "tell", "arguments": json.dumps({"to": {"all": ["It is \"42\",\nI think."]}})}}  # fmt: skip
            answer = {"role": "tool", "tool_call_id": "x", "content": "done"}
            await asked(agents.b, [user("!"), {"role": "assistant", "tool_calls": [call]}, answer])

        episode, _ = talked(format_named("list"), scripted('It is "42",\nI think.', "Yes."), talk, "a", "b")
        assert episode.actions[1].sees == ("0/a/0",)

    def test_what_a_program_has_always_said_is_nobodys(self) -> None:
        rule = "Reply with yes or no, and nothing else."
        turns = [("a", f"Even? {rule}", "yes"), ("b", f"Odd? {rule}", "no"), ("b", f"a: yes\n{rule}", "Hm.")]
        assert dependencies(turns, "?") == [set(), set(), {0}]

    def test_what_follows_on_the_task_by_chance_does_not_hide_an_answer(self) -> None:
        task, rule = "Which one is it, A or B?", "Say so in a word."
        turns = [("a", f"{task}\n\n{rule}", "B"), ("b", f"a: B\n\n{rule}", "Hm"), ("b", f"{task}\n\n{rule}", "Hm")]
        assert dependencies(turns, task) == [set(), {0}, set()]


class TestWhoOfSeveral:
    def test_who_is_quoted_is_seen_through_the_one_who_quotes(self) -> None:
        first = "The pears are ripe, and all of them are green."
        second = f"Somebody has claimed: {first} I doubt that they are."
        third = f"Two of us differ. {second} So let us look again."
        turns = [
            ("a", "?", first),
            ("b", f"a: {first}", second),
            ("c", f"b: {second}", third),
            ("a", f"c: {third}", "Hm"),
        ]
        assert dependencies(turns, "?") == [set(), {0}, {0, 1}, {0, 1, 2}]

    def test_who_says_the_same_without_having_seen_it_is_not_quoted(self) -> None:
        turns = [
            ("a", "1 + 2?", "3"),
            ("b", "1 + 2?", "It must be 3, for 1 and 2 make that."),
            ("c", "b: It must be 3, for 1 and 2 make that.", "Hm"),
        ]
        assert dependencies(turns, "1 + 2?")[2] == {1}

    @pytest.mark.parametrize(
        ("prompt", "seen"),
        [
            ("a: 42", {0}), ("b: 42", {1}), ("a: 42\nb: 42", {0, 1}), ("b: 42\na: 42", {0, 1}), ("Somebody: 42", {1}),
        ],
    )  # fmt: skip
    def test_equal_answers_count_once_for_each_place(self, prompt: str, seen: set[int]) -> None:
        turns = [("a", "6 * 7?", "42"), ("b", "6 * 7?", "42"), ("c", f"6 * 7?\n{prompt}", "Hm")]
        assert dependencies(turns, "6 * 7?")[2] == seen

    @pytest.mark.parametrize(
        ("prompt", "seen"),
        [
            ('[{"content": "42", "role": "a"}]', {0}), ('[{"content": "42", "role": "b"}]', {1}),
            ('[{"content": "42", "role": "a"}, {"content": "42", "role": "b"}]', {0, 1}), ("42 (said by a)", {0}),
            ("a and b both say: 42", {0, 1}), ("a, b: 42", {0, 1}), ("a says 41. b says: 42", {1}),
        ],
    )  # fmt: skip
    def test_who_is_named_after_an_answer_or_beside_another_has_said_it(self, prompt: str, seen: set[int]) -> None:
        turns = [("a", "6 * 7?", "42"), ("b", "6 * 7?", "42"), ("c", f"6 * 7?\n{prompt}", "Hm")]
        assert dependencies(turns, "6 * 7?")[2] == seen

    def test_agents_that_are_named_in_a_row_have_all_said_it(self) -> None:
        turns = [(role, "?", "42") for role in ("a", "b", "c", "a")]
        for prompt, seen in (
            ("a, b, c: 42", {1, 2, 3}), ("b and a: 42", {1, 3}), ("a and a: 42", {0, 3}), ("c (a, too): 42", {2, 3}),
            ("42, said by a, not by b", {3}), ("42, said by b, not by a", {1}), ("c or b: 42", {1}),
        ):  # fmt: skip
            assert dependencies([*turns, ("d", prompt, "Hm")])[4] == seen

    def test_who_is_named_more_than_eight_words_away_is_not_named(self) -> None:
        turns = [("a", "?", "42"), ("b", "?", "42")]
        for count, seen in ((7, {0}), (8, {1})):
            for prompt in (f"a {words('x', 1, count)}: 42", f"42. {words('x', 1, count)} a"):
                assert dependencies([*turns, ("c", prompt, "Hm")])[2] == seen

    def test_a_sentence_is_of_the_one_who_said_all_of_it_though_another_said_a_part(self) -> None:
        first = "Jacket adds many small pieces. Basin returns red tokens after the first hour. Garnet leaves our old yard with very cold grams."
        second = "Marble needs long units after noon. Quarry returns blue units after the first hour."
        shown = "A: Garnet leaves our old yard with very cold grams. B: Quarry returns blue units after the first hour."
        turns = [("a", "?", first), ("b", "?", second), ("c", shown, "Hm")]
        assert dependencies(turns, "?")[2] == {0, 1}

    def test_of_equal_answers_of_one_agent_the_last_is_seen(self) -> None:
        turns = [("a", "?", "42"), ("b", "?", "41"), ("a", "b: 41. Sure?", "42"), ("b", "a: 42\nb: 41", "Hm")]
        assert dependencies(turns, "?")[3] >= {1, 2}

    def test_a_part_of_two_drafts_that_begin_alike_shows_the_one_that_goes_on(self) -> None:
        begin = "Let me think about this one step by step. First, the pears"
        turns = [
            ("a", "?", f"{begin} are ripe."),
            ("b", "?", f"{begin} are all still green."),
            ("c", f"{begin} are ripe.", "Hm"),
        ]
        assert dependencies(turns, "?")[2] == {0}


def speech(*texts: str, prompt: Sequence[str] = ()) -> QuoteSource:
    return QuoteSource(make_action(), tuple(map(normalize_words, texts)), tuple(map(normalize_words, prompt)))


class TestOwnWords:
    def test_words_in_a_row_that_the_prompt_or_the_task_held_are_not_own(self) -> None:
        one = speech("a b c d e f g h i", prompt=["x a b c y"])
        assert one.count_new_words(normalize_words("a b c d e f g h i"), []) == 6
        assert (
            one.count_new_words(
                normalize_words("a b c d e f g h i"), [normalize_words("nothing of it"), normalize_words("z g h i")]
            )
            == 3
        )
        assert (
            one.count_new_words(normalize_words("d e f x"), []) == 1
        )  # beside a word of others all three are in doubt

    def test_a_message_of_three_words_has_no_parts(self) -> None:
        assert speech("a b c").windows == frozenset()
        assert speech("a b c d").windows == {"a b c", "b c d"}
        assert speech("z y", "a b c d").windows == {"a b c", "b c d"}  # of its longest form

    @pytest.mark.parametrize(
        ("length", "parts", "shown"),
        [
            (5, [3], False), (5, [4], True),  # never fewer than four words
            (9, [4], False), (9, [5], True),  # half of them in a row, rounded up
            (10, [4], False), (10, [5], True),
            (20, [5], False), (20, [6], True),  # or six
            (10, [3, 3], False), (10, [3, 4], True),  # or two thirds in all, rounded up
            (11, [4, 3], False), (11, [4, 4], True),
            (4, [], False),
        ],
    )  # fmt: skip
    def test_half_of_them_in_a_row_or_two_thirds_in_all_show_a_message(
        self, length: int, parts: list[int], shown: bool
    ) -> None:
        words = [f"w{number}" for number in range(length)]
        ends = np.cumsum(parts).tolist()
        stretches = [
            normalize_words(" ".join(words[end - count : end])) for count, end in zip(parts, ends, strict=True)
        ]
        assert speech(" ".join(words)).is_identified(stretches, []) is shown


class TestWhatIsLookedFor:
    def test_calls_hold_texts_and_a_message_may_hold_none(self) -> None:
        call = {"function": {"name": "tell", "arguments": {"to": ["b", {"n": 7}], "text": "Hm"}}}
        assert list(iter_texts([{"role": "assistant", "content": None, "tool_calls": [call]}])) == ["", "b", "7", "Hm"]
        assert list(iter_texts([user("a"), {"role": "user", "content": "b", "tool_calls": None}])) == ["a", "b"]

    def test_an_action_that_no_client_was_told_is_known_by_its_text(self) -> None:
        action = make_action(text="42")
        assert QuoteTracker().find_quoted(["a: 42"], [], [action]) == {action.id}

    @pytest.mark.parametrize(
        ("prompt", "found"), [("a: 7", True), ("a: Hm 7", True), ("a: Hm", False), ("a: 8", False)]
    )
    def test_a_message_may_be_passed_on_without_its_thought(self, prompt: str, found: bool) -> None:
        action = make_action(text="<think>Hm</think>7")
        assert bool(QuoteTracker().find_quoted([prompt], [], [action])) is found

    @pytest.mark.parametrize(
        ("prompt", "found"), [("Done: I go", True), ("ripe pears", True), ("42", False), ("far away", True)]
    )
    def test_arguments_of_calls_are_looked_for_if_they_hold_two_words(self, prompt: str, found: bool) -> None:
        action, quoting = make_action(text="I go"), QuoteTracker()
        call = {"function": {"name": "tell", "arguments": {"n": 42, "what": "ripe pears", "where": "far away"}}}
        quoting.add_action(action, {"role": "assistant", "content": "I go", "tool_calls": [call]}, Chat((user("?"),)))
        assert bool(quoting.find_quoted([prompt], [], [action])) is found

    def test_an_answer_that_a_client_began_is_looked_for_as_it_was_told(self) -> None:
        action, quoting = make_action(text="2"), QuoteTracker()
        quoting.add_action(action, {"role": "assistant", "content": "42"}, Chat((user("?"),), prefix="4"))
        assert (
            quoting.find_quoted(["a: 42"], [], [action]) == quoting.find_quoted(["a: 2"], [], [action]) == {action.id}
        )
        assert not quoting.find_quoted(["a: 4"], [], [action])

    def test_an_empty_answer_is_nowhere(self) -> None:
        assert dependencies([("a", "?", ""), ("b", "a: . Hm", "?!"), ("c", "", "Hm")]) == [set(), set(), set()]

    def test_the_task_as_somebody_says_it_again_is_the_second_one(self) -> None:
        assert not depends(TASK, TASK)
        assert depends(TASK, f"{TASK} {TASK}")
        assert not depends("Yes", "Yes or no? Yes or no?", task="Yes or no?")
        assert depends("Yes", "Yes or no? Yes. Yes or no?", task="Yes or no?")

    def test_longer_texts_are_looked_for_first(self) -> None:
        turns = [("a", "?", "yes"), ("b", "?", "It is yes"), ("c", "b: It is yes", "Hm"), ("d", "yes. It is yes", "Hm")]
        assert dependencies(turns)[2:] == [{1}, {0, 1}]

    def test_of_equally_long_texts_the_first_is_looked_for_first(self) -> None:
        for first, second in (("3 4", "4 5"), ("4 5", "3 4")):
            assert dependencies([("a", "?", first), ("b", "?", second), ("c", "So: 3 4 5", "Hm")])[2] == {0}

    def test_answers_may_stand_side_by_side(self) -> None:
        turns = [("a", "?", "42"), ("b", "?", "42"), ("c", "Two say: 42 42", "Hm"), ("c", "One says: 42", "Hm")]
        assert dependencies(turns)[2:] == [{0, 1}, {1}]

    def test_what_stands_beside_a_quote_is_read_word_by_word(self) -> None:
        quote = "Apples and pears, as we have seen before, are fine"
        around = "x y z w", "y z w v"
        for prompt in (f"42. {quote}", f"{quote}. 42", f"{quote}. 42. {quote}"):
            assert dependencies([("a", "?", "42"), ("b", "?", quote), ("c", prompt, "Hm")])[2] == {0, 1}
        for said, prompt in (
            (f"{around[0]} Apples b c d e f", f"{around[0]} {quote}"),
            (f"{around[0]} A b c d e f", f"{around[0]} {quote}"),
            (f"a b c d e fine {around[1]}", f"{quote} {around[1]}"),
            (f"a b c d f e {around[1]}", f"{quote} {around[1]}"),
        ):  # four words in a row of ten do not show it, five would
            assert dependencies([("a", "?", said), ("b", "?", quote), ("c", prompt, "Hm")])[2] == {1}

    def test_words_of_another_agent_are_not_those_of_the_program(self) -> None:
        """Else who says the same later, without having seen them, would have brought nothing."""
        first, later = "Well, the pears are ripe now", "I think that the pears are ripe now"
        last = ("d", "Somebody holds: the pears are ripe now.", "Hm")
        assert dependencies([("a", "?", first), ("b", f"a: {first}", "Hm"), ("c", "?", later), last])[3] == {2}
        assert dependencies([("a", "?", first), ("b", first, "Hm"), ("c", "?", later), last])[3] == {2}
        longer = f"{first} and so are all of the plums"  # of which b is shown a part
        assert dependencies([("a", "?", longer), ("b", first, "Hm"), ("c", "?", later), last])[3] == {2}

    def test_words_that_the_program_showed_others_before_are_nobodys(self) -> None:
        rule, quoting = "Reply with yes or no, and nothing else.", QuoteTracker()
        assert not quoting.find_quoted(["Even?", rule, "Odd?"], [], [])
        action = make_action(text="Maybe: Reply with yes or no, and go.")
        quoting.add_action(action, {"role": "assistant", "content": action.text}, Chat((user("?"),)))
        assert not quoting.find_quoted([f"Odd? {rule}"], [], [action])


RULE = "then say yes or no at once"


class TestWordsThatAProgramHasShown:
    """Words that a program showed before an action are its own, unless they stand apart from those around them."""

    def max_results(self, said: str, asked: str, before: Sequence[str], after: Sequence[str], prompt: str) -> bool:
        """Whether a prompt shows an action of an agent that was asked something.

        Args:
            before: lines that the program showed others before the action, and ``after`` after it.
        """
        quoting, action = QuoteTracker(), make_action(text=said)
        assert not quoting.find_quoted(before, [], [])
        quoting.add_action(action, {"role": "assistant", "content": said}, Chat((user(asked),)))
        assert not quoting.find_quoted(after, [], [action])
        return bool(quoting.find_quoted([prompt], [], [action]))

    @pytest.mark.parametrize(
        ("before", "after", "prompt", "found"),
        [
            ([RULE], [], RULE, False),
            ([RULE], [], "then say yes or no", True),  # nothing of what stood around it
            ([RULE], [], "then say yes or no: that is b", True),
            ([RULE], [], f"First, {RULE}", False),
            ([f"First, {RULE}"], [], "First, then say yes or no", False),
            ([f"First, {RULE}"], [], "First, then say yes or no. Hm", False),
            ([RULE], [], "First, then say yes or no at last", False),
            ([], [], RULE, True),
            (["yes or no at once", "then say yes or"], [], RULE, True),  # not all of it was shown
            (["then say yes or no"], [], RULE, True),  # nothing around it was
            (["then say yes or no"], ["yes or no at once"], RULE, True),  # or not before
            (["then say yes or no", "First then say yes"], ["yes or no at once"], f"First {RULE}", False),
            (["yes or no at once", "then say yes or"], ["say yes or no"], RULE, True),  # not all of it was shown before
        ],
    )
    def test_a_piece_of_them_is_theirs(self, before: list[str], after: list[str], prompt: str, found: bool) -> None:
        assert self.max_results("then say yes or no", "say yes or no", before, after, prompt) is found

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("no", "x y z no"), ("no", "x y no z"), ("no", "x no y z"), ("no", "no x y z"),
            ("or no", "x y or no"), ("or no", "x or no y"), ("or no", "or no x y"),
            ("yes or no", "x yes or no"), ("yes or no", "yes or no x"),
        ],
    )  # fmt: skip
    def test_so_is_a_word_or_two_within_four_of_them(self, said: str, shown: str) -> None:
        assert not self.max_results(said, "?", [shown], [], f"a b {shown} c d")
        assert not self.max_results(said, "?", [shown], [], shown)
        assert self.max_results(said, "?", [shown], [], said)
        assert self.max_results(said, "?", [shown], [], f"a b c {said} d e f")
        assert self.max_results(said, "?", [shown.replace("x", "w")], [], f"a b {shown} c d")
        assert self.max_results(said, "?", [], [], f"a b {shown} c d")

    def test_so_is_a_part_that_holds_no_others(self) -> None:
        rule, said = "pick ripe pears first", "I pick ripe pears first then go"
        assert not self.max_results(said, "?", [rule], [], rule)
        assert self.max_results(said, "?", [], [], rule)
        assert self.max_results(said, "?", [rule], [], f"They {rule} then")


def words(letter: str, first: int, last: int) -> str:
    """Return words that stand nowhere else.

    >>> words("x", 1, 3)
    'x1 x2 x3'
    """
    return " ".join(f"{letter}{number}" for number in range(first, last + 1))


def shows(prompt: str, *texts: str) -> set[int]:
    """Return which of some texts a prompt shows, each of an agent of its own that saw nothing."""
    turns = [(f"agent {number}", "?", text) for number, text in enumerate(texts)]
    return dependencies([*turns, ("reader", prompt, "Hm")])[-1]


class TestPartsOfSeveral:
    """Of parts that overlap the longest counts first, and of the others what is left."""

    def test_what_is_left_behind_a_longer_one_counts(self) -> None:
        first, second = f"{words('x', 0, 11)} end", f"{words('x', 10, 11)} {words('y', 1, 3)} {words('z', 1, 4)}"
        prompt = f"{words('x', 1, 11)} {words('y', 1, 3)}. And {words('z', 1, 4)}"
        assert shows(prompt, first, second) == {0, 1}  # seven of its nine words, in two parts
        assert shows(prompt.replace("y3", ""), first, second) == {0}  # two words are no part

    def test_what_is_left_before_a_longer_one_counts(self) -> None:
        first, second = f"end {words('x', 1, 12)}", f"{words('z', 1, 4)} {words('y', 1, 3)} {words('x', 1, 2)}"
        prompt = f"{words('z', 1, 4)} and {words('y', 1, 3)} {words('x', 1, 11)}"
        assert shows(prompt, first, second) == {0, 1}
        assert shows(prompt.replace("y1", ""), first, second) == {0}

    def test_what_is_left_between_two_counts(self) -> None:
        first, second = f"end {words('x', 1, 15)}", f"{words('c', 1, 12)} end"
        between = f"{words('y', 1, 4)} {words('x', 1, 2)}"
        prompt = f"{words('c', 1, 12)} {words('y', 1, 4)} {words('x', 1, 14)}"
        assert shows(prompt, first, second, f"{between} end") == {0, 1, 2}  # four of seven words
        assert shows(prompt, first, second, f"a {words('c', 10, 12)} {between} b") == {0, 1}  # four of eleven

    def test_a_part_of_one_piece_is_not_cut_out_of_another(self) -> None:
        quote = f"{words('q', 1, 40)}"
        first, second = f"{words('x', 1, 9)} end", f"end {words('y', 1, 6)}"
        for prompt in (
            f"{words('x', 1, 9)} {quote} {words('y', 1, 5)}",
            f"{words('y', 1, 5)} {quote} {words('x', 1, 9)}",
        ):
            assert shows(prompt, first, second, quote) == {0, 1, 2}

    def test_the_longest_is_looked_for_first(self) -> None:
        first, second = f"{words('x', 1, 8)} {words('z', 1, 3)} e", f"{words('x', 6, 8)} {words('y', 1, 5)}"
        prompt = f"{words('x', 1, 8)} {words('y', 1, 2)}"
        for said in (first, second), (second, first):
            assert shows(prompt, *said) == {said.index(first)}
            assert shows(f"{prompt}. And {words('z', 1, 3)}", *said) == {said.index(first)}

    def test_a_part_that_begins_like_a_longer_one_of_another_is_of_that(self) -> None:
        shared = words("s", 1, 4)
        first, second = f"{shared} end {words('x', 1, 9)}", f"{shared} {words('y', 1, 5)} end"
        assert shows(f"{words('x', 1, 9)}. But {shared} {words('y', 1, 3)}", first, second) == {0, 1}

    def test_words_may_be_left_out_between_parts(self) -> None:
        said = f"{words('x', 1, 3)} and {words('x', 4, 6)} and {words('x', 7, 9)}"
        assert shows(words("x", 1, 9), said) == {0}
        assert shows(words("x", 1, 6), said) == set()  # six of eleven words, where eight would show it

    def test_each_word_of_a_part_counts_once(self) -> None:
        said = words("x", 1, 12)
        assert (
            shows(f"{words('x', 1, 3)} and {words('x', 5, 8)}", said) == set()
        )  # seven words, where eight would show it
        assert shows(f"{words('x', 1, 3)} and {words('x', 5, 9)}", said) == {0}

    def test_words_that_one_has_only_repeated_stay_those_of_another(self) -> None:
        shared = f"{words('x', 5, 6)} w"
        turns = [
            ("a", "?", words("x", 1, 20)),
            ("b", f"{shared}?", f"{words('y', 1, 9)} {shared} end"),
            ("c", f"{words('y', 1, 9)}. And {words('x', 1, 6)} w", "Hm"),
        ]
        assert dependencies(turns) == [set(), set(), {0, 1}]

    def test_who_is_quoted_in_part_in_a_part_is_seen(self) -> None:
        first = f"{words('x', 1, 5)} end"
        second = f"{words('x', 1, 4)} {words('y', 1, 9)} end"
        turns = [
            ("a", "?", first),
            ("b", f"a: {first}", second),
            ("c", f"b: {words('x', 1, 4)} {words('y', 1, 9)}", "Hm"),
        ]
        assert dependencies(turns) == [set(), {0}, {0, 1}]

    def test_what_is_quoted_in_a_quote_is_seen_wherever_else_its_author_is_quoted(self) -> None:
        quoting, letter = QuoteTracker(), words("z", 1, 30)
        first = make_action("a", text="pears")
        second = make_action("b", call=1, index=1, sees=(first.id,), text=f"{words('x', 1, 6)} pears")
        third = make_action("c", call=2, index=2, sees=(first.id, second.id), text=f"They say {second.text} so far")
        calls = [{"function": {"name": "send", "arguments": {"letter": letter}}}]
        told = {"role": "assistant", "content": second.text, "tool_calls": calls}
        quoting.add_action(second, told, Chat((user("?"),)))
        actions = [first, second, third]
        assert quoting.find_quoted([f"b: {letter} c: {third.text}"], [], actions) == {action.id for action in actions}

    def test_words_that_one_was_asked_with_are_no_part_of_its_own(self) -> None:
        asked = words("p", 1, 3)
        said = f"{asked} {words('n', 1, 4)}"
        assert dependencies([("a", asked, said), ("b", f"{asked} n1. Then {words('n', 2, 4)}", "Hm")])[1] == {0}
        assert dependencies([("a", asked, said), ("b", f"{asked} or {words('n', 2, 4)}", "Hm")])[1] == set()


@pytest.mark.parametrize(
    ("text", "part", "held"),
    [
        ("pi is 3.142", "142", False), ("0.5", "5", False), ("0.5", ".5", False), ("1,000", "1", False),
        ("It is 1, or 2.", "1", True), ("It is 1, or 2.", "2", True), ("end.", "end", True),
        ("请检查答案是四是否正确", "答案是四", True), ("答案是42吗", "42", True), ("答案是142吗", "42", False),
        ("ends", "end", False), ("a (b) c", "(b)", True), ("1" * 2_000_000, "1", False),
        ('{"a": "x\\ny"}', "x\ny", True), ('"\\u00fcm \\ud83e\\uddee"', "üm 🧮", True), ("\\\\theta", "\\theta", True),
    ],
)  # fmt: skip
def test_a_piece_of_a_longer_word_or_number_is_no_text_of_its_own(text: str, part: str, held: bool) -> None:
    assert (normalize_words(part) in normalize_words(text)) is held
