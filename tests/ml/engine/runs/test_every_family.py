"""Every model family on the real engine: trainer and engine agree about log-probabilities, an adapter takes effect.

The stacks share a Ray, one after the other. Last is a run with what a user's module registers, also a family.
"""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from omni_operator.cli.init import FAMILIES
from omni_operator.cli.main import app
from tests.ml.engine import small_jobs
from tests.ml.engine.conftest import FAMILY_PROMPTS
from tests.ml.engine.shared_ray import SharedRay
from tests.ml.engine.small_run import small_run
from verl_omni.algos.agreement import VELOCITY_TOLERANCES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[4]
MODULES = 2 * 8  # layers, projections of an attention; Wan's have two with half as many
FRAMES = 5
VIDEOS = (f"actor_rollout_ref.rollout.pipeline.num_frames={FRAMES}",)


# --- Qwen-Image ---------------------------------------------------------------------------------------------


def test_qwen_image_agrees_before_and_after_an_update_that_changes_the_images(family: Any) -> None:
    # The template of a prompt alone has 115 tokens of the tiny tokenizer.
    running = family("qwen_image", "data.max_prompt_length=160")
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8

    samples = running.samples(version=0)
    assert samples.versions == [0] * 4
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    assert samples.tensors["prompt_embeds"].shape == (4, 32, 32), "padded to max_sequence_length"
    lengths = samples.tensors["prompt_embeds_mask"].sum(dim=1).tolist()
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3]
    assert samples.tensors["img_shapes"].tolist() == [[1, 4, 4]] * 4
    changed = running.check_agreement(samples, before, MODULES)

    running.check_base(changed, tensors=77)


# --- Qwen-Image-Edit ----------------------------------------------------------------------------------------


def test_qwen_image_edit_agrees_and_input_images_count(family: Any) -> None:
    limit = "actor_rollout_ref.rollout.pipeline.max_sequence_length=8192"  # of a recipe: the engine's own is 1024
    started = family("qwen_image_edit_plus", "data.max_prompt_length=400", limit)
    running = replace(started, rows=with_images(started.rows, ["red", "blue"]))
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8

    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    assert samples.tensors["image_latents"].shape == (4, 16, 16)
    assert samples.tensors["img_shapes"].tolist() == [[[1, 4, 4], [1, 4, 4]]] * 4
    first, again, other_latents, _ = samples.tensors["image_latents"]
    # On a busy machine the samples of a prompt come in several batches, which differ in the last bit.
    torch.testing.assert_close(first, again, rtol=1e-5, atol=1e-5)
    assert (first - other_latents).abs().max() > 0.1
    for row, color in ((0, "red"), (2, "blue")):
        length = int(samples.tensors["prompt_embeds_mask"][row].sum())
        expected = upstream_embeds(running.config.actor_rollout_ref.model.path, FAMILY_PROMPTS[row // 2], color)
        embeds = samples.tensors["prompt_embeds"][row, :length]
        torch.testing.assert_close(embeds, expected, rtol=1e-4, atol=1e-4)
    changed = running.check_agreement(samples, before, MODULES)

    swapped = replace(started, rows=with_images(started.rows, ["blue", "blue"])).evaluate()
    assert not torch.equal(swapped.images[0], changed.images[0]), "another input image, another sample"
    assert (swapped.images[1].int() - changed.images[1].int()).abs().max() <= 1
    with pytest.raises(Exception, match="edits 1 image"):
        started.evaluate()
    assert edited_over_http(running, 96, 64).size == (64, 64)


def with_images(rows: list[dict[str, Any]], colors: list[str]) -> list[dict[str, Any]]:
    """The rows of the prompts with an input image each."""
    from verl_omni.trainer.data.prompt_images import with_images

    return [
        {**row, "raw_prompt": with_images(row["raw_prompt"], [Image.new("RGB", (64, 64), color)])}
        for row, color in zip(rows, colors, strict=True)
    ]


def upstream_embeds(model: str, prompt: str, color: str) -> torch.Tensor:
    """Embeddings [L, D] of a prompt in diffusers' pipeline."""
    from diffusers import QwenImageEditPlusPipeline

    pipeline = QwenImageEditPlusPipeline.from_pretrained(model)
    head = pipeline.prompt_template_encode.partition("{}")[0]
    pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(head).input_ids)  # 64 of the released tokenizer
    with torch.no_grad():
        embeds, _ = pipeline._get_qwen_prompt_embeds(prompt, image=[Image.new("RGB", (64, 64), color)])
    return embeds[0]


def png(width: int, height: int) -> bytes:
    """A red picture."""
    picture = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(picture, "PNG")
    return picture.getvalue()


def edited_over_http(running: Any, width: int, height: int) -> Image.Image:
    """An image edited by the HTTP API."""
    answer = httpx2.post(
        f"http://{running.stack.servers.server_addresses[0]}/v1/images/edits",
        data={"prompt": "a red circle", "size": "64x64", "num_inference_steps": "2"},
        files={"image": ("first.png", png(width, height), "image/png")},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))


# --- Wan ----------------------------------------------------------------------------------------------------


def test_wan_agrees_before_and_after_an_update_that_changes_the_videos(family: Any) -> None:
    running = family("wan", *VIDEOS)
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, FRAMES, 3, 64, 64) and before.images.dtype == torch.uint8
    assert before.scores.tolist() == pytest.approx([float(video.float().mean() / 255) for video in before.images])

    early = frames(video_over_http(running))
    assert early.shape == (FRAMES, 64, 64, 3)
    assert np.array_equal(early, frames(video_over_http(running)))

    samples = running.samples(version=0)
    assert samples.versions == [0] * 4
    assert samples.tensors["all_latents"].shape == (4, 4, 4, 2, 8, 8), "steps + 1, channels, latent frames, h, w"
    assert samples.tensors["prompt_embeds"].shape == (4, 32, 32)
    changed = running.check_agreement(samples, before, MODULES)

    told = frames(video_over_http(running))
    assert not np.array_equal(told, early), "drawn without the weights that training published"
    same_prompt, other_prompt = (np.abs(told - video.permute(0, 2, 3, 1).numpy()).mean() for video in changed.images)
    assert same_prompt < other_prompt * 0.75, "a compressed film of another prompt"

    running.publish(2)  # the last update of `check_agreement`: otherwise trainer and engine have different adapters
    changed = running.evaluate()
    for wrong in (1.01, 1.05):  # the engine's velocity is that times the trainer's
        running.send_base(wrong, only="proj_out")
        with pytest.raises(Exception, match="VelocityMismatch"):
            running.update(running.samples(version=2))
    running.check_base(changed, tensors=69)
    assert running.update(running.samples(version=2))["actor/grad_norm"] > 0, "with the right weights they agree"

    for wrong, words in (
        ({"size": "large"}, "size"),
        ({"num_frames": 0}, "num_frames"),
        ({"seed": "x"}, "seed"),
    ):
        refused = video_over_http(running, **wrong)
        assert refused.status_code == 400 and words in refused.text


def video_over_http(running: Any, **other: Any) -> httpx2.Response:
    """The first video of `evaluate`, by the HTTP API."""
    asked = {
        "prompt": "a red circle",
        "negative_prompt": "dark sky",
        "size": "64x64",
        "num_frames": FRAMES,
        "seed": 7,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
        **other,
    }
    form = {name: (None, str(value)) for name, value in asked.items()}
    return httpx2.post(f"http://{running.stack.servers.server_addresses[0]}/v1/videos/sync", files=form, timeout=120)


def frames(answer: httpx2.Response) -> np.ndarray:
    """Every frame of an MP4, [T, H, W, 3] from 0 to 255."""
    import av

    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as opened:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]).astype(float)


def test_wan_5b_agrees_with_other_latents_and_another_vae(family: Any) -> None:
    running = family("wan_5b", *VIDEOS)
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, FRAMES, 3, 64, 64) and before.images.dtype == torch.uint8

    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 6, 2, 4, 4), "steps + 1, channels, latent frames, h, w"
    changed = running.check_agreement(samples, before, MODULES)

    refused = with_first_frame(running)
    assert refused.status_code >= 400 and "without an image" in refused.text
    assert torch.equal(running.evaluate().images, changed.images), "the engine serves on"


def with_first_frame(running: Any) -> httpx2.Response:
    """The answer of the HTTP API to a prompt with the first frame of the video."""
    asked = {"prompt": "a red circle", "size": "64x64", "num_frames": str(FRAMES), "num_inference_steps": "2"}
    return httpx2.post(
        f"http://{running.stack.servers.server_addresses[0]}/v1/videos/sync",
        data=asked,
        files={"input_reference": ("first.png", png(64, 64), "image/png")},
        timeout=120,
    )


def test_each_transformer_of_wan_a14b_agrees_with_the_trainer_and_gets_its_adapter(family: Any) -> None:
    """The first transformer computes timesteps from 875, the second one the others."""
    running = family("wan_a14b", *VIDEOS)
    assert running.publish(0)["bound"] == 2 * MODULES
    before = running.evaluate()
    samples = running.samples(version=0)
    times = samples.tensors["all_timesteps"]
    assert bool((times[:, :2] >= 875).all() & (times[:, 2:] < 875).all()) and times.shape == (4, 3)
    running.check_agreement(samples, before, 2 * MODULES)

    assert running.publish(2)["bound"] == 2 * MODULES
    for component in ("transformer", "transformer_2"):  # with wrong weights of one, engine and trainer disagree
        running.send_base(1.05, only="proj_out", component=component)
        with pytest.raises(Exception, match="VelocityMismatch"):
            running.update(running.samples(version=2))
        running.send_base(1.0, component=component)
    assert running.update(running.samples(version=2))["actor/grad_norm"] > 0, "with the right ones they agree"


def test_two_ranks_share_each_samples_sequence_and_one_reports_the_rows(family: Any) -> None:
    """The engine's log-probabilities cover the whole sequence: they agree only if the ranks reassemble it correctly."""
    share = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"
    running = family("wan", *VIDEOS, "trainer.n_gpus_per_node=2", share)
    running.publish(0)
    before = running.evaluate()
    samples = running.samples(version=0)
    answer = running.request_update(samples)
    assert [len(answer.meta_info["metrics"][name]) for name in ("actor/loss", "actor/grad_norm")] == [1, 1]
    (norm,), (difference,) = (answer.meta_info["metrics"][n] for n in ("actor/grad_norm", "rollout_corr/max_abs_diff"))
    assert norm > 0 and difference < 1e-4
    running.publish(1)
    assert not torch.equal(before.images, running.evaluate().images)
    assert running.update(running.samples(version=1))["rollout_corr/max_abs_diff"] < 1e-4


# --- FLUX.1 -------------------------------------------------------------------------------------------------


def test_flux_agrees_and_its_guidance_scale_is_an_input(family: Any) -> None:
    running = family("flux")
    modules = 8 + 3  # projections of a joint block and of a single one
    assert running.publish(0)["bound"] == modules
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8
    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    assert samples.tensors["prompt_embeds"].shape == (4, 32, 32), "padded to max_sequence_length"
    assert samples.tensors["image_size"].tolist() == [[4, 4]] * 4
    assert samples.tensors["guidance"].tolist() == [[3.0]] * 4
    assert not any(name.startswith("negative_") for name in samples.tensors)
    changed = running.check_agreement(samples, before, modules)

    running.check_base(changed, tensors=66)


# --- FLUX.2-klein -------------------------------------------------------------------------------------------


def test_flux2_klein_agrees_before_and_after_an_update_that_changes_the_images(family: Any) -> None:
    running = family("flux2_klein")
    modules = 8 + 1  # projections of a joint block, and the fused one of a single block
    assert running.publish(0)["bound"] == modules
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8
    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    positive, negative = (samples.tensors[f"{name}prompt_embeds"] for name in ("", "negative_"))
    assert positive.shape == negative.shape == (4, 32, 48), "padded to max_sequence_length, three layers of 16"
    assert not torch.equal(positive, negative)
    changed = running.check_agreement(samples, before, modules)

    running.check_base(changed, tensors=29)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics of the run in a folder."""
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


# --- jobs of `drl init` -------------------------------------------------------------------------------------

# Tiny models that are nearer to the model of the job than the one that is named like the folder.
NEAREST = {"qwen_image_edit": "qwen_image_edit_plus", "wan": "wan_5b"}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_job_that_drl_init_writes_trains_in_bfloat16_from_files_in_float32(
    shared_ray: SharedRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on accelerators; the trainer stops if its velocities differ from the engine's."""
    from verl_omni.models.tiny import MAKERS

    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(app, ["init", name, "--reward", "jpeg", "--out", "job.yaml"])
    assert written.exit_code == 0, written.output
    job = yaml.safe_load(Path("job.yaml").read_text())
    job["metadata"]["name"] = "run"
    MAKERS[NEAREST.get(FAMILIES[name], FAMILIES[name])](tmp_path / "model")
    small_jobs.shrink(
        job["spec"],
        tmp_path / "model",
        trainer__totalSteps=1,
        trainer__precision="bfloat16",
        rollout__engine__dtype="bfloat16",
    )
    Path("job.yaml").write_text(yaml.safe_dump(job))
    shared_ray.train(small_jobs.overrides_of(Path("job.yaml"), tmp_path, tmp_path))
    (line,) = [line for line in metrics(tmp_path) if "actor/loss" in line]
    limit = VELOCITY_TOLERANCES[torch.bfloat16]
    assert line["actor/grad_norm"] > 0 and 1e-6 < line["rollout_corr/velocity_rel_diff"] < limit


# --- all linear layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "modules", "overrides"),
    [
        ("flux", 17, []),
        ("flux2_klein", 14, []),
        ("sd3", 23, []),
        ("qwen_image", 34, ["data.max_prompt_length=160"]),
        ("wan", 20, VIDEOS),
    ],
)
def test_all_linear_layers_that_the_engine_adapts_have_an_effect(
    family: Any, name: str, modules: int, overrides: list[str]
) -> None:
    running = family(name, "actor_rollout_ref.model.target_modules=all-linear", *overrides)
    assert running.publish(0)["bound"] == modules
    running.check_agreement(running.samples(version=0), running.evaluate(), modules)


# --- a user's own -------------------------------------------------------------------------------------------


def test_a_run_uses_the_algorithm_advantages_family_and_reward_of_a_users_module(
    shared_ray: SharedRay, tmp_path: Path
) -> None:
    """A module elsewhere, by the command: test_own_family.py."""
    from verl_omni.models.tiny import MAKERS

    MAKERS["sd3"](tmp_path / "model")
    index = tmp_path / "model" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "MyPipeline"}))
    loss = "actor_rollout_ref.actor.diffusion_loss"
    shared_ray.train(
        [
            *small_run(tmp_path / "model"),
            "data.max_prompt_length=77",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            "actor_rollout_ref.model.external_lib=tests.ml.own_extension",
            f"{loss}.loss_mode=my_algorithm",
            f"{loss}.scale=3",
            "algorithm.adv_estimator=my_advantage",
            "reward.scorer=my_reward",
            "reward.scorer_kwargs.weight=-1",
            f"data.train_files={ROOT / 'examples' / 'prompts' / 'shapes_train.jsonl'}",
            "trainer.total_training_steps=2",
        ]
    )
    steps = [line for line in metrics(tmp_path) if "reward/mean" in line]
    assert [line["weights/version"] for line in steps] == [1, 2]
    assert all(-1 <= line["reward/mean"] < 0 for line in steps), "the user's scorer, and its setting"
    assert all("rollout_corr/mean_abs_diff" in line for line in steps), "the family in trainer and engine"
    (adapter,) = (tmp_path / "run" / "checkpoints").rglob("pytorch_lora_weights.safetensors")
    names = list(load_file(adapter))
    assert names and all(".attn.to_q." in name for name in names), "the family's own default of trained layers"
