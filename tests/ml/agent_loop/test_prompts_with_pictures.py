"""Images and videos of a prompt, from a row of verl's dataset to the engine's prompt."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.ml.workers.rollout.fake_engine import server_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the server's module takes half a minute to import

MODEL = Path(__file__).parents[3] / "examples" / "shapes-sd3"
START = "<|vision_start|>"
END = "<|vision_end|>"
PICTURE = "<|image_pad|>"
VIDEO = "<|video_pad|>"
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}"
    + START
    + PICTURE
    + END
    + "{% elif part.type == 'video' %}"
    + START
    + VIDEO
    + END
    + "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
PATCH = 14
MERGE = 2
SIDE = 4 * PATCH  # pixels of an image: 4 patches, of which 2 by 2 become one token; qwen_vl_utils enlarges smaller ones


class Engine:
    """AsyncOmni as the server sees it: keeps prompts, draws black."""

    def __init__(self) -> None:
        self.prompts: list[dict[str, Any]] = []
        self.default_sampling_params_list = [None]

    async def generate(self, *, prompt: dict[str, Any], **arguments: Any) -> Any:
        from vllm_omni.outputs import OmniRequestOutput

        self.prompts.append(prompt)
        yield OmniRequestOutput.from_diffusion("1", images=[torch.zeros(1, 3, 2, 2, dtype=torch.uint8)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The example's model, with a processor of images as Qwen's edit models have one."""
    from transformers import (
        AutoTokenizer,
        Qwen2VLConfig,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    folder = tmp_path / "model"
    shutil.copytree(MODEL / "tokenizer", folder / "tokenizer")
    shutil.copy(MODEL / "model_index.json", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END, PICTURE, VIDEO]})
    tokenizer.save_pretrained(folder / "tokenizer")
    size = {"min_pixels": 1, "max_pixels": 1 << 20}
    shape = {"patch_size": PATCH, "merge_size": MERGE, **size}
    processor = Qwen2VLProcessor(
        Qwen2VLImageProcessor(**shape), tokenizer, Qwen2VLVideoProcessor(**shape), chat_template=TEMPLATE
    )
    processor.save_pretrained(folder / "processor")
    Qwen2VLConfig().save_pretrained(folder / "processor")
    return folder


def message(*parts: str | Image.Image | list[Image.Image]) -> list[dict[str, Any]]:
    """A list of images is a video."""

    def part(each: str | Image.Image | list[Image.Image]) -> dict[str, Any]:
        if isinstance(each, str):
            return {"type": "text", "text": each}
        if isinstance(each, Image.Image):
            return {"type": "image", "image": each}
        return {"type": "video", "video": each, "min_pixels": SIDE * SIDE, "max_pixels": SIDE * SIDE}

    return [{"role": "user", "content": [part(content) for content in parts]}]


async def test_an_image_reaches_the_engine_and_has_tokens_in_the_ids(worker: Any, batch: Any, model: Path) -> None:
    engine = Engine()
    loop_worker = worker(
        f"actor_rollout_ref.model.path='{model}'", "data.max_prompt_length=24", engine=server_with(engine)
    )
    assert type(loop_worker.processor).__name__ == "Qwen2VLProcessor"
    red, blue = (Image.new("RGB", (width, SIDE), color) for width, color in ((SIDE, "red"), (2 * SIDE, "blue")))
    rows = batch(
        ["", ""],
        raw_prompt=[message(red, "a circle", blue), message("a circle")],
        raw_negative_prompt=[message("a square"), message("a square")],
    )
    output = await loop_worker.generate_sequences(rows)
    pictured, plain = sorted(engine.prompts, key=lambda prompt: "multi_modal_data" not in prompt)
    assert pictured["multi_modal_data"] == {"image": [red, blue]} == pictured["extra_args"]["multi_modal_data"]
    ids = loop_worker.tokenizer.convert_tokens_to_ids
    assert pictured["prompt_token_ids"].count(ids(PICTURE)) == 4 + 8, "a token for each 2 by 2 patches"
    assert pictured["prompt_token_ids"].count(ids(START)) == 2
    words = loop_worker.tokenizer("a circle")["input_ids"]
    assert plain["prompt_token_ids"] == words and not {"multi_modal_data", "extra_args"} & plain.keys()
    assert output.batch["attention_mask"].sum(1).tolist() == [12 + 2 * 2 + len(words), len(words)]
    assert output.non_tensor_batch["raw_prompt"][0][0]["content"][0]["image"] is red


@pytest.mark.filterwarnings("ignore:Failed to create processor")  # of verl: the folder has an image processor only
async def test_an_editing_model_gets_the_image_as_it_is_and_one_token_for_it(
    worker: Any, batch: Any, tmp_path: Path
) -> None:
    from verl_omni.models.tiny import MAKERS
    from verl_omni.pipelines.registry import training_adapter

    MAKERS["qwen_image_edit"](tmp_path / "edit")
    template = training_adapter("QwenImageEditPipeline").CHAT_TEMPLATE
    engine = Engine()
    loop_worker = worker(
        f"actor_rollout_ref.model.path='{tmp_path / 'edit'}'", "data.max_prompt_length=400", engine=server_with(engine)
    )
    assert loop_worker.processor is None
    loop_worker.tokenizer.chat_template = template
    red = Image.new("RGB", (37, 61), "red")
    rows = batch(["", ""], raw_prompt=2 * [message(red, "a circle")], raw_negative_prompt=["", "dark"])
    await loop_worker.generate_sequences(rows)
    picture_id = loop_worker.tokenizer.convert_tokens_to_ids(PICTURE)
    for asked in engine.prompts:
        assert asked["multi_modal_data"] == {"image": [red]}
        assert asked["prompt_token_ids"].count(picture_id) == asked["negative_prompt_ids"].count(picture_id) == 1


async def test_a_video_reaches_the_engine_and_has_tokens_in_the_ids(worker: Any, batch: Any, model: Path) -> None:
    engine = Engine()
    loop_worker = worker(
        f"actor_rollout_ref.model.path='{model}'", "data.max_prompt_length=24", engine=server_with(engine)
    )
    frames = [Image.new("RGB", (SIDE, SIDE), (shade, 0, 0)) for shade in (0, 80, 160, 240)]
    await loop_worker.generate_sequences(batch([""], raw_prompt=[message(frames, "a circle")]))
    (asked,) = engine.prompts
    ((video, metadata),) = asked["multi_modal_data"]["video"]
    assert asked["multi_modal_data"].keys() == {"video"} and metadata["total_num_frames"] == 4
    assert video.shape == (4, 3, SIDE, SIDE) and video[:, 0].flatten(1).mean(1).tolist() == [0, 80, 160, 240]
    ids = loop_worker.tokenizer.convert_tokens_to_ids
    assert asked["prompt_token_ids"].count(ids(VIDEO)) == 2 * 4, "one for each 2 by 2 patches of 2 frames"
