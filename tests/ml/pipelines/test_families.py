"""Interface of the model families, and what their engine pipelines share, without an engine."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from verl_omni.models.tiny import MAKERS
from verl_omni.pipelines import engine_requests, post_processing, registry, scheduler_config, trajectory_recorder
from verl_omni.pipelines.description import EXAMPLE_FILE
from verl_omni.pipelines.flux2_klein import training as flux2_klein
from verl_omni.pipelines.guided_batch import guide
from verl_omni.pipelines.qwen_image import training as qwen_image
from verl_omni.pipelines.qwen_image_edit import images as edit_images
from verl_omni.pipelines.wan import shapes as wan_shapes

FOLDER = Path(registry.__file__).parent
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("architecture", sorted(registry.FAMILIES))
def test_each_family_implements_its_interface(architecture: str) -> None:
    family = registry.family(architecture)
    source = (FOLDER / family.folder / "engine_pipeline.py").read_text()
    assert f"class {family.pipeline.partition(':')[2]}(" in source and registry.POST_PROCESS in source
    adapter = registry.training_adapter(architecture)
    assert "prompt_embeds" in adapter.CONDITIONS and adapter.LAYERS and adapter.LORA_TARGETS
    scale = adapter.guidance(SimpleNamespace(guidance_scale=2.5, true_cfg_scale=2.5))
    assert scale == (2.5 if registry.FOLDERS[family.folder].guided else 1.0)
    assert adapter.prompt_rows(max_sequence_length=32, tokenizer_length=16) >= 32
    assert family.checks_prompts is hasattr(adapter, "prompt_check")


@pytest.mark.parametrize("architecture", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"])
def test_an_editing_prompt_has_at_most_the_engines_text_and_its_image(architecture: str) -> None:
    adapter = registry.training_adapter(architecture)
    assert adapter.prompt_rows(8192, 512) == adapter.prompt_rows(1024, 512) == adapter.prompt_rows(1000, 512) + 24


def test_default_guidance_is_the_engines_default() -> None:
    open_ = SimpleNamespace(guidance_scale=None, true_cfg_scale=None)
    defaults = {
        family.folder: registry.training_adapter(name).guidance(open_) for name, family in registry.FAMILIES.items()
    }
    assert defaults.items() >= {"qwen_image": 4.0, "qwen_image_edit": 4.0, "sd3": 1.0, "wan": 4.0}.items()


@pytest.mark.parametrize("architecture", sorted(registry.FAMILIES))
def test_a_guidance_of_0_is_none(architecture: str) -> None:
    assert (
        registry.training_adapter(architecture).guidance(SimpleNamespace(guidance_scale=0.0, true_cfg_scale=0.0)) <= 1
    )


def test_both_predictions_of_guidance_have_gradients() -> None:
    both = torch.zeros(2, 1, requires_grad=True)
    guide(both, 3.0)[0].sum().backward()
    assert both.grad is not None and both.grad.flatten().tolist() == [3.0, -2.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_timesteps_recorded_for_qwen_image_are_those_that_the_model_got(dtype: torch.dtype) -> None:
    schedule = torch.cat([torch.arange(1.0, 1001.0), torch.linspace(0.5, 999.5, 777)])
    model_got = schedule.to(dtype) / 1000
    recorded = scheduler_config.received(schedule, dtype)
    assert torch.equal((recorded / 1000).to(dtype), model_got), "what the trainer passes on, in the engine's dtype"
    torch.testing.assert_close(recorded / 1000, model_got.float(), rtol=2e-7, atol=0)
    if dtype == torch.bfloat16:  # the control: the schedule's own timesteps are others
        assert not torch.equal((schedule / 1000).to(dtype), model_got)


def test_every_folder_has_the_parts_that_it_describes_and_a_tiny_model_of_its_name() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/training.py")}
    assert folders == registry.FOLDERS.keys() == {family.folder for family in registry.FAMILIES.values()}
    for folder, description in registry.FOLDERS.items():
        parsed = ast.parse((FOLDER / folder / "tiny_model.py").read_text())
        defined = {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}
        assert folder in description.tiny_models and set(description.tiny_models.values()) <= defined
        assert (FOLDER / folder / EXAMPLE_FILE).exists() == (description.example is not None)


@pytest.mark.parametrize(
    ("folder", "model"),
    [(folder, model) for folder, family in registry.FOLDERS.items() for model in family.tiny_models],
)
def test_a_tiny_model_is_of_its_family(folder: str, model: str, tmp_path: Path) -> None:
    """One that a pipeline of diffusers saves has that pipeline's name, which another family may have."""
    MAKERS[model](tmp_path)
    architecture = json.loads((tmp_path / "model_index.json").read_text())["_class_name"]
    assert architecture in registry.FOLDERS[folder].architectures, "change `_class_name` in model_index.json"


# Where the product names a family outside its folder, and why.
NAMED_IN = {
    "verl_omni/models/shapes/build.py": "the example model is of one family",
    "verl_omni/reference_names.py": "names of the reference",
    "verl_omni/pipelines/qwen_image_dpo.py": "a name in recipes of the reference",
    "verl_omni/pipelines/sd3_dpo.py": "a name in recipes of the reference",
}


def names_of_families() -> re.Pattern[str]:
    """Folders, architectures, tiny models and examples of all families, and what their models are called."""
    names = set(registry.FOLDERS)
    for description in registry.FOLDERS.values():
        names |= {*description.tiny_models, *(name.removesuffix("Pipeline") for name in description.architectures)}
        names |= {description.example.name, description.example.job} if description.example else set()
        names |= set(re.findall(r"^[A-Za-z]+(?:[ -][A-Z][a-z]+)*", description.models))
    words = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.compile(rf"(?<![a-z])(?i:{words})(?![a-z]|(?<=[A-Z])[A-Z])")  # not WANDB


def texts(path: Path) -> Iterator[str]:
    """The path, and the names and texts of a module, without its comments and docstrings."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                docstring.value = None
            case ast.Constant(value=str(text)):
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(module=str(module)):
                yield module


def test_only_the_folder_of_a_family_names_it() -> None:
    named = names_of_families()
    folders = [FOLDER / name for name in registry.FOLDERS]
    modules = [path for top in ("verl_omni", "operator", "tools") for path in (ROOT / top).rglob("*.py")]
    outside = [path for path in modules if not any(path.is_relative_to(folder) for folder in folders)]
    assert len(outside) > 400
    naming = {path.relative_to(ROOT).as_posix() for path in outside if any(map(named.search, texts(path)))}
    assert naming == NAMED_IN.keys()


# Where tests on the engine list families by the names of tiny models, and folders that have no case there.
ENGINE_CASES = {
    ("runs/test_every_family.py", "test_all_linear_layers_that_the_engine_adapts_have_an_effect"): {"qwen_image_edit"},
    ("server/test_schedules.py", "CASES"): set[str](),
    ("server/test_cached_prompts.py", "ENCODERS"): {"qwen_image_edit"},  # its embeddings depend on input images
}


@pytest.mark.parametrize(("file", "name"), ENGINE_CASES)
def test_every_folder_has_a_case_where_tests_on_the_engine_list_families(file: str, name: str) -> None:
    parsed = ast.parse((Path(__file__).parents[1] / "engine" / file).read_text(encoding="utf-8"))
    listed = set[str]()
    for node in parsed.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            parts: list[ast.AST] = list(node.decorator_list)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            parts = [node.value]
        else:
            continue
        listed |= {node.value for part in parts for node in ast.walk(part) if isinstance(node, ast.Constant)}
    absent = {folder for folder, description in registry.FOLDERS.items() if listed.isdisjoint(description.tiny_models)}
    assert absent == ENGINE_CASES[file, name], f"add the new family to {name} in tests/ml/engine/{file}"


def test_latents_of_wan_have_the_factors_of_its_vae() -> None:
    """Wan 2.1 and Wan 2.2 TI2V 5B."""
    pipeline = SimpleNamespace(height=704, width=1280, num_frames=121)
    old = {"transformer": {"in_channels": 16}, "vae": {}}
    new = {"transformer": {"in_channels": 48}, "vae": {"scale_factor_spatial": 16, "scale_factor_temporal": 4}}
    assert wan_shapes.decoder_input(old, pipeline) == (16, 31, 88, 160)
    assert wan_shapes.decoder_input(new, pipeline) == (48, 31, 44, 80)
    assert wan_shapes.sequence_length(old, pipeline) == 4 * wan_shapes.sequence_length(new, pipeline)


@pytest.mark.parametrize(("asked", "latent"), [(1, 1), (4, 2), (5, 2), (8, 3), (9, 3), (120, 31), (121, 31)])
def test_frames_of_wan_are_rounded_as_the_engine_does(asked: int, latent: int) -> None:
    """vllm_omni/diffusion/models/wan2_2/pipeline_wan2_2.py, `forward`: 8 frames become 9."""
    expected = asked if asked % 4 == 1 else asked // 4 * 4 + 1
    assert (expected - 1) // 4 + 1 == latent
    configs = {"transformer": {"in_channels": 16}, "vae": {}}
    pipeline = SimpleNamespace(height=704, width=1280, num_frames=asked)
    assert wan_shapes.decoder_input(configs, pipeline)[1] == latent


def test_an_unknown_architecture_is_refused_and_known_ones_are_listed() -> None:
    with pytest.raises(ValueError, match=r"MyPipeline.*QwenImagePipeline.*StableDiffusion3Pipeline.*WanPipeline"):
        registry.training_adapter("MyPipeline")


@pytest.mark.parametrize("prompt", ["a red circle", "", "zwei  Katzen\nund ein Haus"])
def test_the_qwen_image_chat_template_equals_that_of_diffusers(prompt: str) -> None:
    from diffusers import QwenImagePipeline

    from verl_omni.models import text

    tokenizer = text.qwen_tokenizer(["red"])
    expected = QwenImagePipeline(None, None, None, None, None).prompt_template_encode.format(prompt)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        chat_template=qwen_image.CHAT_TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert rendered == expected
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}]
    rendered = tokenizer.apply_chat_template(messages, chat_template=qwen_image.CHAT_TEMPLATE, tokenize=False)
    assert rendered.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n"), "a given system prompt stays"


@pytest.mark.parametrize("name", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"])
def test_the_chat_template_of_an_editing_model_equals_that_of_diffusers(name: str) -> None:
    import diffusers

    from verl_omni.models import text

    pipeline = getattr(diffusers, name)(*6 * [None])
    plus = "Picture 1: <|vision_start|><|image_pad|><|vision_end|>" if "Plus" in name else ""
    rendered = text.qwen_tokenizer(["red"]).apply_chat_template(
        [{"role": "user", "content": [{"type": "image", "image": None}, {"type": "text", "text": "make it red"}]}],
        chat_template=registry.training_adapter(name).CHAT_TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert rendered == pipeline.prompt_template_encode.format(f"{plus}make it red")


@pytest.mark.parametrize("aspect", [0.25, 0.5, 0.75, 1, 4 / 3, 16 / 9, 4])
@pytest.mark.parametrize("name", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline"])
def test_an_input_image_has_at_most_as_many_tokens_as_the_trainer_expects(name: str, aspect: float) -> None:
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as upstream
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    adapter = registry.training_adapter(name)
    size = edit_images.resized((round(1000 * aspect), 1000), edit_images.LATENT_PIXELS)
    assert size == upstream.calculate_dimensions(upstream.VAE_IMAGE_SIZE, round(1000 * aspect) / 1000)
    high, wide = smart_resize(*reversed(edit_images.resized((round(1000 * aspect), 1000), adapter.IMAGE_PIXELS)))
    tokens = (high // 28) * (wide // 28)
    assert tokens + 16 < adapter.IMAGE_ROWS < 2 * tokens, "the template has tokens too"


def test_an_input_image_must_have_the_aspect_ratio_of_the_sample() -> None:
    pipeline = SimpleNamespace(width=512, height=768)
    assert edit_images.problem((200, 300), pipeline) is None and edit_images.problem((1667, 2500), pipeline) is None
    problem = edit_images.problem((300, 200), pipeline)
    assert problem is not None and "300 x 200" in problem and "512 x 768" in problem


@pytest.mark.parametrize("edits", [False, True])
@torch.no_grad()
def test_prompts_of_other_lengths_in_a_batch_change_no_velocity_of_qwen_image(edits: bool) -> None:
    """Against the transformer called as by diffusers' pipeline: one prompt, without padding.

    Attention and positions of rotary embeddings depend on the lengths of the prompts and the sizes of the images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = QwenImageTransformer2DModel(
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 6, 6),
        )
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
        x = torch.randn(2, 24, 16)
        images = torch.randn(2, 20, 16)
        prompts = {
            "prompt_embeds": ((3, 7), torch.randn(2, 7, 32)),
            "negative_prompt_embeds": ((5, 2), torch.randn(2, 9, 32)),
        }
    shapes = [(1, 4, 6), (1, 5, 4)] if edits else [(1, 4, 6)]  # frames, rows and columns of patches
    batch: dict[str, Tensor] = {"img_shapes": torch.tensor([shapes if edits else shapes[0]] * 2)}
    if edits:
        batch["image_latents"] = images
    for name, (lengths, embeds) in prompts.items():
        mask = torch.arange(embeds.shape[1]) < torch.tensor(lengths)[:, None]
        batch |= {name: embeds * mask[..., None], f"{name}_mask": mask.long()}
    timestep = torch.full((2,), 300.0)
    velocities = {
        scale: qwen_image.velocity(transformer, batch, x, timestep, scale, dtype=torch.float32) for scale in (1, 3)
    }
    for row in range(2):
        positive, negative = (
            transformer(
                hidden_states=torch.cat([x, images], 1)[row : row + 1] if edits else x[row : row + 1],
                timestep=timestep[:1] / 1000,
                encoder_hidden_states=embeds[row : row + 1, : lengths[row]],
                img_shapes=[shapes],
                return_dict=False,
            )[0][0, :24]
            for lengths, embeds in prompts.values()
        )
        torch.testing.assert_close(velocities[1][row], positive, rtol=1e-4, atol=1e-5)
        guided = 3 * positive - 2 * negative
        guided *= positive.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(velocities[3][row], guided, rtol=1e-4, atol=1e-5)
    assert (velocities[1][0] - velocities[1][1]).abs().max() > 0.01


def test_samples_of_a_distilled_flux2_klein_are_trained_without_guidance() -> None:
    called: list[int] = []

    def transformer(**inputs: Any) -> tuple[Tensor]:
        called.append(len(inputs["hidden_states"]))
        return (inputs["hidden_states"],)

    recorded = {"prompt_embeds": torch.zeros(2, 3, 4), "image_size": torch.tensor([[2, 2]] * 2)}
    x = torch.ones(2, 4, 8)
    time = torch.full((2,), 500.0)
    assert torch.equal(flux2_klein.velocity(transformer, recorded, x, time, 3.0, dtype=torch.float32), x)
    assert called == [2], "the engine recorded no embeddings of negative prompts"
    guided = {**recorded, "negative_prompt_embeds": torch.zeros(2, 3, 4)}
    flux2_klein.velocity(transformer, guided, x, time, 3.0, dtype=torch.float32)
    assert called == [2, 4]


def params(seed: int, **extra: Any) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    return SimpleNamespace(extra_args=extra, num_inference_steps=3, seed=seed, generator=generator)


def test_a_recorded_row_has_its_steps_and_unpadded_conditions() -> None:
    recorded = params(1, noise_level=0.7, logprobs=True, sde_type="sde")
    recorder = trajectory_recorder.TrajectoryRecorder(
        [params(0), recorded], torch.device("cpu"), steps=9, dtype=torch.bfloat16
    )
    sigmas = torch.tensor([0.9, 0.6, 0.3, 0.0])
    embeds = [torch.ones(2, 4, dtype=torch.bfloat16), torch.full((3, 4), 2.0, dtype=torch.bfloat16)]
    conditions = {"prompt_embeds": embeds, "mask": torch.ones(2, 3, dtype=torch.int64), "negative": None}
    final = recorder.denoise(lambda x, t: x * 0, torch.zeros(2, 5, 8), sigmas[:-1] * 1000, sigmas, conditions)
    assert final.shape == (2, 5, 8) and not final[0].any() and final[1].any(), "only the second row is noisy"
    outputs = [SimpleNamespace(output="plain"), SimpleNamespace(output="noisy")]
    recorder.attach(outputs, "video")
    assert outputs[0].output == "plain"
    assert outputs[1].trajectory_latents.shape == (1, 3, 5, 8) and outputs[1].trajectory_log_probs.shape == (1, 2)
    output = outputs[1].output
    assert output["payload"] == {"video": "noisy"}
    assert set(output["metadata"]["prompt_embeddings"]) == {"prompt_embeds", "mask"}
    kept = output["metadata"]["prompt_embeddings"]["prompt_embeds"]
    assert kept.shape == (1, 3, 4) and kept.dtype == torch.bfloat16 and bool((kept == 2).all())
    assert outputs[1].trajectory_latents.dtype == torch.bfloat16
    assert output["metadata"]["prompt_embeddings"]["mask"].dtype == torch.int64
    assert output["metadata"]["rl"]["sigma_max"].item() == pytest.approx(0.6)


def test_post_processing_converts_pixels_and_puts_video_frames_first() -> None:
    post_process = post_processing.get_post_process_func(None)
    video = torch.linspace(-1.5, 1.5, 2 * 3 * 4).view(1, 3, 4, 2, 1)
    wrapped = {"payload": {"video": video}, "metadata": {"rl": 1}}
    processed = post_process(wrapped, SimpleNamespace(output_type="pt", extra_args={}))
    assert processed["metadata"] == {"rl": 1}
    pixels = processed["payload"]["video"]
    assert pixels.shape == (1, 4, 3, 2, 1) and pixels.dtype == torch.uint8
    assert pixels.min() == 0 and pixels.max() == 255
    floats = post_process(video, SimpleNamespace(output_type="pt", extra_args={"pixel_dtype": "float32"}))
    assert torch.equal((floats * 255).round().to(torch.uint8), pixels)
    (picture,) = post_process(video[:, :, 3], None)
    assert torch.equal(torch.from_numpy(np.array(picture)).permute(2, 0, 1), pixels[0, 3])
    latents = post_process(wrapped, SimpleNamespace(output_type="latent", extra_args={}))
    assert latents["payload"]["video"] is video


def test_token_ids_are_decoded_to_text() -> None:
    class Tokenizer:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            assert skip_special_tokens
            return " ".join(map(str, ids))

    prompt = {"prompt_token_ids": [3, 4], "negative_prompt_ids": []}
    assert engine_requests.decode_token_ids(prompt, Tokenizer()) == {**prompt, "prompt": "3 4", "negative_prompt": ""}
    assert prompt == {"prompt_token_ids": [3, 4], "negative_prompt_ids": []}
    texts = {"prompt_text": "A  Cat", "negative_prompt_text": ""}
    decoded = engine_requests.decode_token_ids({**prompt, **texts}, Tokenizer())
    assert (decoded["prompt"], decoded["negative_prompt"]) == ("A  Cat", ""), "the user's text, if it was sent"
    for request_prompt in ("text", {"prompt": "text"}):
        assert engine_requests.decode_token_ids(request_prompt, Tokenizer()) == request_prompt


def test_the_tiny_qwen_tokenizer_is_deterministic() -> None:
    """Trainers of tokenizers keep hash tables, whose order differs from one to the next."""
    from verl_omni.models import text, tiny_parts

    tokenizers = [text.qwen_tokenizer(tiny_parts.WORDS) for _ in range(4)]
    assert all(tokenizer.get_vocab() == tokenizers[0].get_vocab() for tokenizer in tokenizers)
    assert tokenizers[0].decode(tokenizers[0]("<|im_start|>a red circle").input_ids) == "<|im_start|>a red circle"
    assert len(tokenizers[0]("a red circle").input_ids) == 3
