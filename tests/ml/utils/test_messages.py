"""The text of a prompt is what its user wrote."""

from __future__ import annotations

from verl_omni.utils.messages import prompt_text

SYSTEM = {"role": "system", "content": "Describe the image by its colors:"}


def test_a_system_message_is_no_part_of_the_text() -> None:
    messages = [SYSTEM, {"role": "user", "content": "a cat"}]
    assert prompt_text(messages) == "a cat"
    assert prompt_text([*messages, {"role": "assistant", "content": "yes"}]) == "a cat"


def test_the_users_messages_and_parts_are_joined_without_images() -> None:
    parts = [{"type": "image", "image": "x.png"}, {"type": "text", "text": "a dog "}, {"type": "text", "text": "runs"}]
    assert prompt_text([{"role": "user", "content": parts}, {"role": "user", "content": "Red"}]) == "a dog runs Red"


def test_messages_without_a_user_are_the_text() -> None:
    assert prompt_text([SYSTEM]) == SYSTEM["content"]
    assert prompt_text([{"content": "a cat"}]) == "a cat"
