"""From a row to a request: chat templates, negative prompts, images, other text encoders."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_omni.agent_loop.rows import SampleFailed
from verl_omni.models.text import qwen_tokenizer
from verl_omni.pipelines.engine_requests import decode_token_ids
from verl_omni.pipelines.registry import FAMILIES
from verl_omni.workers.config import DiffusionModelConfig

pytestmark = pytest.mark.slow  # reads a model and all settings for each

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}{% if add_generation_prompt %}red{% endif %}"
MODEL = Path(__file__).parents[3] / "examples" / "shapes-sd3"
IMAGE = 9
VIDEO = 8
SENT = {"prompt_ids", "sampling_params", "image_data", "video_data", "negative_prompt_ids"}


class Processor:
    """Text as one token a word, then one for each image and video."""

    image_processor = SimpleNamespace(patch_size=14)
    chat_template = "any"

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        contents = [message["content"] for message in messages]
        parts = [[{"text": content}] if isinstance(content, str) else content for content in contents]
        return " ".join(part.get("text", "") for message_parts in parts for part in message_parts)

    def __call__(self, text: list[str], images: Any, videos: Any, **options: Any) -> dict[str, Any]:
        media = [IMAGE] * len(images or []) + [VIDEO] * len(videos or [])
        return {"input_ids": [[1] * len(text[0].split()) + media]}


class Dataset:
    """What verl's dataset class is asked."""

    @classmethod
    async def process_vision_info(cls, messages: list[dict[str, Any]], **options: Any) -> tuple[Any, Any]:
        parts = [part for message in messages for part in message["content"]]
        kinds = [[part[kind] for part in parts if kind in part] for kind in ("image", "video")]
        return kinds[0] or None, kinds[1] or None


async def one(worker: Any, batch: Any, prompt: Any, **columns: list[Any]) -> dict[str, Any]:
    """The request that one row becomes."""
    rows = batch([""], raw_prompt=[prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]])
    for name, column in columns.items():
        rows.non_tensor_batch[name] = batch(["" for _ in column], x=column).non_tensor_batch["x"]
    await worker.generate_sequences(rows)
    asked: dict[str, Any] = worker.server_manager.asked[-1]
    return asked


async def test_without_a_chat_template_the_plain_text_is_tokenized(worker: Any, batch: Any) -> None:
    loop_worker = worker()
    request = await one(loop_worker, batch, "a red circle")
    assert request.keys() == SENT, "a server need not know what is not used"
    assert request["prompt_ids"] == loop_worker.tokenizer("a red circle")["input_ids"]
    assert request["negative_prompt_ids"] is request["image_data"] is request["video_data"] is None


@pytest.mark.usefixtures("own_family")
async def test_without_a_chat_template_a_system_message_is_not_drawn(worker: Any, batch: Any) -> None:
    loop_worker = worker(extra(t5=f"path: '{MODEL / 'tokenizer_3'}'"))
    system = {"role": "system", "content": "Draw:"}
    request = await one(loop_worker, batch, [system, {"role": "user", "content": "a circle"}])
    assert request["prompt_ids"] == loop_worker.tokenizer("a circle")["input_ids"]
    read = loop_worker.model_config.load_extra_tokenizers()["t5"]["tokenizer"]
    assert request["extra_prompt_ids"] == {"t5": read("a circle")["input_ids"]}


@pytest.mark.parametrize("text", ["A Red Circle", "a  red circle", "a red circle\n"])
async def test_text_that_the_ids_lose_is_sent_too(worker: Any, batch: Any, text: str) -> None:
    """The first tokenizer of Stable Diffusion 3 drops case and spacing; its third, of T5, keeps them."""
    request = await one(worker(), batch, text, raw_negative_prompt=["Red"])
    assert (request["prompt_text"], request["negative_prompt_text"]) == (text, "Red")


async def test_ids_of_another_tokenizer_are_sent_with_their_text(worker: Any, batch: Any) -> None:
    """Recipes of Stable Diffusion 3 count tokens with T5's tokenizer; the engine decodes ids with CLIP's."""
    tokenizer_path = f"actor_rollout_ref.model.tokenizer_path='{MODEL / 'tokenizer_3'}'"
    loop_worker = worker(tokenizer_path, "data.truncation=right")
    request = await one(loop_worker, batch, "a red circle", raw_negative_prompt=["blue"])
    assert request["prompt_ids"] == loop_worker.tokenizer("a red circle")["input_ids"]
    assert (request["prompt_text"], request["negative_prompt_text"]) == ("a red circle", "blue")
    cut = await one(loop_worker, batch, "red " * 20)
    assert len(cut["prompt_ids"]) == 8 and set(cut["prompt_text"].split()) == {"red"}
    assert loop_worker.tokenizer(cut["prompt_text"])["input_ids"] == cut["prompt_ids"]


async def test_text_prompts_do_not_import_image_packages(worker: Any, batch: Any) -> None:
    """verl's imports `qwen_vl_utils` for every model that has a processor."""

    class Missing:
        @classmethod
        async def process_vision_info(cls, messages: Any, **options: Any) -> Any:
            raise ModuleNotFoundError("qwen_vl_utils")

    loop_worker = worker()
    loop_worker.processor = Processor()
    loop_worker.dataset_cls = Missing
    assert (await one(loop_worker, batch, "a red circle"))["image_data"] is None
    with pytest.raises(SampleFailed, match="qwen_vl_utils"):
        await one(loop_worker, batch, [{"role": "user", "content": [{"type": "text", "text": "a"}, {"image": "b"}]}])


async def test_a_long_text_is_truncated_and_keeps_its_end_token(worker: Any, batch: Any, caplog: Any) -> None:
    # An import of vLLM in another test of this process raises the level of all loggers.
    caplog.set_level(logging.WARNING, logger="verl_omni.agent_loop.single_turn_agent_loop")
    loop_worker = worker("data.truncation=right")
    request = await one(loop_worker, batch, "Red " * 20)
    ids = request["prompt_ids"]
    assert len(ids) == 8 and "prompt_text" not in request, "the whole text would not match the truncated ids"
    assert ids[-1] == loop_worker.tokenizer.eos_token_id
    assert "prompt of 22 tokens; data.max_prompt_length is 8, so it loses its end: red red" in caplog.text


@pytest.mark.parametrize("settings", [[], [f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'"]])
async def test_a_long_prompt_ends_the_run_unless_it_may_be_truncated(
    worker: Any, batch: Any, settings: list[str]
) -> None:
    with pytest.raises(SampleFailed, match=r"tokens; data.max_prompt_length is 8: raise it, or write data.truncation"):
        await one(worker(*settings), batch, "red " * 20)


async def test_a_custom_chat_template_is_used_by_tokenizer_and_processor(worker: Any, batch: Any) -> None:
    loop_worker = worker(f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'")
    request = await one(loop_worker, batch, "a circle")
    assert request["prompt_ids"] == loop_worker.tokenizer("a circle red", add_special_tokens=False)["input_ids"]


async def test_text_of_a_chat_template_that_the_ids_lose_is_sent_too(worker: Any, batch: Any) -> None:
    """The engine would decode the ids of the first tokenizer, and T5 would get lower case."""
    user = "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}{% endif %}{% endfor %}"
    loop_worker = worker(f'actor_rollout_ref.model.custom_chat_template="{user}"', "data.max_prompt_length=16")
    request = await one(loop_worker, batch, "A Red  Circle", raw_negative_prompt=["Blue"])
    assert (request["prompt_text"], request["negative_prompt_text"]) == ("A Red  Circle", "Blue")
    sent = {"prompt_token_ids": request["prompt_ids"], "prompt_text": request["prompt_text"]}
    assert decode_token_ids(sent, loop_worker.tokenizer)["prompt"] == "A Red  Circle"


async def test_ids_of_a_chat_template_that_say_it_all_are_sent_alone(worker: Any, batch: Any) -> None:
    loop_worker = worker(f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'")
    loop_worker.tokenizer = qwen_tokenizer(["a circle red"])
    loop_worker.tokenizer.chat_template = TEMPLATE
    assert (await one(loop_worker, batch, "a circle")).keys() == SENT


def test_a_custom_chat_template_is_set_on_the_processor(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DiffusionModelConfig.__post_init__

    def with_processor(self: DiffusionModelConfig) -> None:
        plain(self)
        self.processor = Processor()

    monkeypatch.setattr(DiffusionModelConfig, "__post_init__", with_processor)
    loop_worker = worker(f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'")
    assert loop_worker.processor.chat_template == loop_worker.tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize("negative", ["blue square", [{"role": "user", "content": "blue square"}]])
async def test_a_negative_prompt_is_tokenized_like_the_prompt(worker: Any, batch: Any, negative: Any) -> None:
    loop_worker = worker()
    request = await one(loop_worker, batch, "a red circle", raw_negative_prompt=[negative])
    assert request["negative_prompt_ids"] == loop_worker.tokenizer("blue square")["input_ids"]


async def test_a_prompt_with_images_is_never_truncated(worker: Any, batch: Any) -> None:
    loop_worker = worker()
    loop_worker.processor = Processor()
    loop_worker.dataset_cls = Dataset
    prompt = [{"role": "user", "content": [{"text": "red " * 8}, {"image": "cat"}]}]
    with pytest.raises(SampleFailed, match=r"ValueError: Multimodal prompt produced 9 tokens, exceeding .*=8"):
        await one(loop_worker, batch, prompt)


@pytest.fixture
def own_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable Diffusion 3 as if a user had registered it."""
    monkeypatch.setattr(FAMILIES, "_own", FAMILIES._own - {"StableDiffusion3Pipeline"})


async def test_a_family_of_this_package_gets_no_ids_for_other_encoders(worker: Any, batch: Any) -> None:
    request = await one(worker(extra(t5=f"path: '{MODEL / 'tokenizer_3'}'")), batch, "a circle")
    assert request.keys() == SENT, "the server refuses them"


def extra(**entries: str) -> str:
    listed = ", ".join(f"{name}: {{{text}}}" for name, text in entries.items())
    return f"actor_rollout_ref.model.extra_tokenizers={{{listed}}}"


@pytest.mark.usefixtures("own_family")
async def test_other_encoders_get_ids_from_their_own_tokenizers(worker: Any, batch: Any) -> None:
    folder = MODEL / "tokenizer_3"
    loop_worker = worker(
        extra(long=f"path: '{folder}'", short=f"path: '{folder}', max_length: 3"), "data.truncation=right"
    )
    read = loop_worker.model_config.load_extra_tokenizers()["long"]["tokenizer"]
    text = "a red circle and a blue square and a green cross"
    request = await one(loop_worker, batch, text, raw_negative_prompt=["blue"])
    assert request["extra_prompt_ids"]["long"] == read(text)["input_ids"], "not cut, not padded, with special tokens"
    assert len(request["extra_prompt_ids"]["long"]) > 8
    assert request["extra_prompt_ids"]["short"] == read(text, truncation=True, max_length=3)["input_ids"]
    assert request["negative_extra_prompt_ids"]["long"] == read("blue")["input_ids"]


@pytest.mark.usefixtures("own_family")
async def test_other_encoders_get_ids_of_the_rendered_template(worker: Any, batch: Any) -> None:
    loop_worker = worker(
        extra(t5=f"path: '{MODEL / 'tokenizer_3'}'"), f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'"
    )
    read = loop_worker.model_config.load_extra_tokenizers()["t5"]["tokenizer"]
    request = await one(loop_worker, batch, "a circle")
    assert request["extra_prompt_ids"] == {"t5": read("a circle red")["input_ids"]}
    assert request["negative_extra_prompt_ids"] is None


def test_an_extra_tokenizer_needs_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"extra_tokenizers\.t5 has no path"):
        DiffusionModelConfig(path=str(MODEL), extra_tokenizers={"t5": {"max_length": 3}})
