"""What is read in the answers of judges: never a score that the judge did not give."""

from typing import Any

import pytest

from verl_omni.reward_loop.judge_answers import JudgeAnswer, UnusableAnswer, rating, read, without_fence


def choice(content: Any, ending: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **message}, "finish_reason": ending}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("OPEN", "OPEN"),
        ("", ""),
        ("<think>A sign. Final Score: 1?</think>\n\nOPEN", "\n\nOPEN"),
        ("It says so.</think>OPEN", "OPEN"),
        ("a < think > b", "a < think > b"),
    ],
)
def test_the_thoughts_of_a_judge_are_no_part_of_its_answer(content: str, text: str) -> None:
    assert read(choice(content)) == JudgeAnswer(text)


def test_an_answer_may_end_at_the_limit() -> None:
    assert read(choice("OPE", "length")) == JudgeAnswer("OPE", is_cut=True)
    assert read({"message": {"content": "OPEN"}}) == JudgeAnswer("OPEN")
    assert read(choice("", reasoning="There is no text.")) == JudgeAnswer("")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (choice("<think>Final Score: 2? No", "length"), r"ends within the judge's thoughts .*: a larger max_tokens"),
        (choice("<think>a</think><think>b", "stop"), "ends within the judge's thoughts"),
        (choice("", "length", reasoning="Final Score: 2?"), "ends within the judge's thoughts"),
        (choice(" ", "length", reasoning_content="It is"), "ends within the judge's thoughts"),
        (choice("", "content_filter"), "refused to answer, by a content filter"),
        (choice(None, refusal="I cannot"), "refused to answer: 'I cannot'"),
        (choice(None), "content is no text"),
        (choice([{"type": "text", "text": "OPEN"}]), "content is no text"),
    ],
)
def test_an_answer_that_says_nothing_about_the_image_is_named(found: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableAnswer, match=message):
        read(found)


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("```\nOPEN\n```", "OPEN"),
        ("```text\nOPEN\n24 h\n```\n", "OPEN\n24 h"),
        ("```OPEN```", "OPEN"),
        ("OPEN", "OPEN"),
        ("a ```b``` c", "a ```b``` c"),
        ("```OPEN", "```OPEN"),
    ],
)
def test_a_code_block_around_all_of_a_text_is_left_out(text: str, inner: str) -> None:
    assert without_fence(text) == inner


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Good.\nFinal Score: 4", 4.0),
        ("final score is **2.5**.", 2.5),
        ("**Final Score:** 3", 3.0),
        ("4.5", 4.5),
        (" 5.\n", 5.0),
        ("**4**", 4.0),
        ("Final Score: -1", -1.0),
        ("Final Score: 4,5", 4.5),
        ("Final Score: 2 ... so Final Score: 3/5", 3.0),
        ("Final Score: 4 out of 5", 4.0),
        ("3/5", 3.0),
        ("Final Score: 4. The image is sharp.", 4.0),
        ("Final Score: 4, because it is sharp", 4.0),
        ("Final Score (1-5): 4", 4.0),
        ("**Final Score**:\n\n**4**\n", 4.0),
        ("Final Score: <4>", 4.0),
        ("Final Score\n4/5\nI like it.", 4.0),
        ("two of five", None),
        ("I see 3 cats", None),
        ("", None),
        ("Final Score: high", None),
        ("NaN", None),
        ("Final Score: NaN", None),
        ("Final Score: 3-4", None),
        ("Final Score: 1 to 5", None),
        ("3 4", None),
        ("Final Score: 4/10", None),
        ("4 / 10", None),
        ("I come to the final score.\n\n1. Alignment: good", None),
        ("I'm sorry, I can't rate people.", None),
        ('{"rating": 4', None),
        ("Final Score: 12-15", None),
    ],
)
def test_a_rating_is_found_or_is_not(answer: str, found: float | None) -> None:
    assert rating(JudgeAnswer(answer), 5.0) == found


def test_a_number_at_the_end_of_an_answer_that_was_cut_may_lack_digits() -> None:
    assert rating(JudgeAnswer("Final Score: 4", is_cut=True)) is None
    assert rating(JudgeAnswer("Final Score: 4.", is_cut=True)) is None
    assert rating(JudgeAnswer("Final Score: 4.5 The image", is_cut=True)) == 4.5
    assert rating(JudgeAnswer("3", is_cut=True)) is None
