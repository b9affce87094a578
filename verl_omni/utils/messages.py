"""PURE: the text of a prompt's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the user's messages, without images; of all messages if none is the user's.

    A system message is for the model that encodes the prompt, through a chat template; it is not what the image shows.
    """
    own = [message for message in messages if message.get("role") == "user"]
    return " ".join(_text_of(message["content"]) for message in own or messages)


def _text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Text of a message's content: text, or a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content).strip()
