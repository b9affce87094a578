"""PURE: the text of a prompt's messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def parse_messages(text: str) -> list[Any] | None:
    """The messages that a text is the JSON of, a list or one; None for other texts, such as a caption."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    messages = [value] if isinstance(value, dict) else value
    return messages if any(isinstance(message, dict) and "role" in message for message in messages) else None


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the user's messages, or of all messages if there are none from the user; without images.

    A system message instructs the text encoder, through a chat template; it does not describe the image.
    """
    of_user = [message for message in messages if message.get("role") == "user"]
    return " ".join(_text_of(message["content"]) for message in of_user or messages)


def _text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Text of a message's content: text, or a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content).strip()
