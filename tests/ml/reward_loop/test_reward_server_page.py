"""docs/start/own-reward.md: its tables are what the scorers send and accept, and its server works."""

import base64
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from e2e.cluster.ports import free_ports
from tests.ml.reward_loop.stub_server import Serve, Server
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.reward_server import RewardServerError

PAGE = (Path(__file__).parents[3] / "docs" / "start" / "own-reward.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("\n## Your own reward server\n")[2]
HALVES = torch.zeros(3, 8, 8, dtype=torch.uint8)
HALVES[:, :, 4:] = 255
TYPES = {
    "string": str,
    "string, or null": str,
    "any JSON": str,
    "list of objects": list,
    "list of integers": list,
    "list of strings": list,
    "object": dict,
    "number": (int, float),
    "integer, or null": int,
}


def fields(heading: str) -> dict[str, str]:
    """Fields of a table of the page, with their types."""
    section = PAGE.partition(f"#### {heading}\n")[2].partition("\n#")[0]
    rows = [re.fullmatch(r"\| `(\w+)` \| ([^|]+) \|.*", line) for line in section.splitlines()]
    return {row[1]: row[2] for row in rows if row is not None}


def sent(server: Server, name: str, sample: torch.Tensor, **settings: Any) -> tuple[dict[str, Any], Any]:
    """What a scorer sends to a server, and what it returns."""
    values: tuple[Any, ...] = ("d", sample, "truth", {"prompt": "a prompt"})
    arguments = [[value] for value in values] if name == "http_batch" else values
    address = {"server_url" if name == "latent_http" else "url": f"http://{server.address}/score"}
    returned = rewards.get_scorer(name)(*arguments, **address, **settings)
    return server.received[0], returned


@pytest.mark.parametrize(
    ("name", "response", "answer"),
    [
        ("http", "Response to `http` and `latent_http`", {"score": 0.5, "other": 2, "text": "ignored"}),
        ("latent_http", "Response to `http` and `latent_http`", {"score": 0.5, "other": 2, "text": "ignored"}),
        ("http_batch", "Response to `http_batch`", {"scores": [{"score": 0.5, "other": 2, "text": "ignored"}]}),
    ],
)
def test_the_tables_are_what_a_scorer_sends_and_accepts(
    serve: Serve, name: str, response: str, answer: dict[str, Any]
) -> None:
    latent = {"noise_seed": 3} if name == "latent_http" else {}
    sample = torch.ones(2, 3) if latent else HALVES
    body, scored = sent(serve((200, json.dumps(answer))), name, sample, **latent)
    documented = fields(f"Request of `{name}`")
    documented.pop("frames", None)
    assert body.keys() == documented.keys()
    for field, kind in documented.items():
        assert isinstance(body[field], TYPES[kind]), field
    if name == "http_batch":
        assert body["samples"][0].keys() == fields("Request of `http`").keys() - {"frames"}
        (scored,) = scored
    assert scored["score"] == 0.5 and scored["other"] == 2 and "text" not in scored
    (required,) = fields(response)
    lacking = serve((200, json.dumps({field: value for field, value in answer.items() if field != required})))
    with pytest.raises(RewardServerError, match=f"'{required}'"):
        sent(lacking, name, sample)


def test_a_video_is_sent_as_its_frames(serve: Serve) -> None:
    video = torch.stack([HALVES, 255 - HALVES])
    body, _ = sent(serve((200, '{"score": 1}')), "http", video)
    assert body.keys() == fields("Request of `http`").keys() - {"image"}
    decoded = [np.array(Image.open(io.BytesIO(base64.b64decode(frame)))) for frame in body["frames"]]
    assert (np.stack(decoded) == video.permute(0, 2, 3, 1).numpy()).all()


@pytest.mark.slow
def test_the_server_of_the_page_scores_an_image(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    (tmp_path / "reward_server.py").write_text(program)
    (port,) = free_ports(1, random.Random())
    server = subprocess.Popen([sys.executable, "reward_server.py", str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        scorer = rewards.get_scorer("http")
        url = f"http://127.0.0.1:{port}/score"
        plain = torch.full((3, 8, 8), 128, dtype=torch.uint8)
        results = [
            scorer("d", picture, "", {"prompt": "a prompt"}, url=url, attempts=20) for picture in (HALVES, plain)
        ]
        assert results == [{"score": 1.0, "words": 2.0}, {"score": 0.0, "words": 2.0}]
    finally:
        server.terminate()
        server.wait()
