"""`drl fit`: estimates against measured peaks, and what the settings change."""

import json
import math
from pathlib import Path

import pytest
import torch

from tests.ml.trainer.memory_estimate.small_jobs import ACTOR, estimated
from verl_omni.trainer.device_checks import measured_update
from verl_omni.trainer.memory_estimate import estimate, job_estimate, model_shapes, public_models, sharding
from verl_omni.trainer.memory_estimate.caching_allocator import CachingAllocator
from verl_omni.trainer.memory_estimate.peak_tracker import PeakTracker
from verl_omni.workers.actor.precision import Precision

LORA = "actor_rollout_ref.model.lora_rank=4"
GUIDANCE = "actor_rollout_ref.rollout.pipeline.guidance_scale=4.5"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing=true"
BFLOAT16 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bfloat16"
KL = "actor_rollout_ref.actor.use_kl_loss=true"
KEEPS_GATHERED = "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=false"
SMALL_IMAGES = [f"actor_rollout_ref.rollout.pipeline.{side}=64" for side in ("height", "width")]
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"
NFT = f"{LOSS}=diffusion_nft"


@pytest.mark.slow
def test_an_adapter_has_two_moments_and_a_gradient_and_the_base_has_none(tiny: Path) -> None:
    trainer = estimated(tiny).trainer
    trained = 4 * trainer.trained_parameters  # float32
    assert 0 < trainer.trained_parameters < trainer.parameters
    assert (trainer.gradients, trainer.optimizer, trainer.delayed_copies) == (trained, 2 * trained, 0)
    assert trainer.weights >= 2 * trainer.parameters, "bfloat16, with buffers and the adapter on top"
    everything = estimated(tiny, "actor_rollout_ref.model.lora_rank=0").trainer
    assert everything.trained_parameters == everything.parameters
    assert everything.optimizer == 8 * everything.parameters


@pytest.mark.slow
def test_ranks_share_the_state_and_gather_layers(tiny: Path) -> None:
    float32 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float32"
    single, shared = (estimated(tiny, f"trainer.n_gpus_per_node={ranks}", float32) for ranks in (1, 2))
    assert single.trainer.gathered == 0 < shared.trainer.gathered
    assert single.trainer.optimizer / 2 <= shared.trainer.optimizer < 0.6 * single.trainer.optimizer
    assert shared.trainer.weights < single.trainer.weights
    moved = [job_estimate.estimate.moved["weights gathered by each rank"] for job_estimate in (single, shared)]
    assert moved[0] == 0 < moved[1]
    copies = estimated(
        tiny, "trainer.n_gpus_per_node=2", float32, "actor_rollout_ref.actor.fsdp_config.fsdp_size=1"
    ).trainer
    assert copies.weights == single.trainer.weights, "each of the two has all weights"


def test_frozen_parts_in_float32_are_whole_on_every_rank(tmp_path: Path) -> None:
    """Time embeddings and scale tables of Wan 14B are 0.1 GiB of each rank, however many there are."""
    public_models.write("Wan-AI/Wan2.1-T2V-14B-Diffusers", tmp_path)
    module = model_shapes.read(tmp_path).on_meta("transformer", torch.bfloat16).requires_grad_(False)
    unsharded = sum(p.nbytes for p in module.parameters() if p.dtype == torch.float32)
    assert unsharded > 1e8
    half = Precision(torch.bfloat16, torch.bfloat16)
    single, eight = (sharding.weight_bytes(module, sharding.Sharding(n, n, 1, half)) for n in (1, 8))
    assert single == model_shapes.tensor_bytes(module.parameters())
    assert eight == pytest.approx(unsharded + (single - unsharded) / 8, rel=1e-4)


@pytest.mark.slow
def test_a_rank_gathers_weights_for_each_pass_and_to_recompute_old_log_probabilities(tiny: Path) -> None:
    """Rows of later optimizer steps need recomputed old log-probabilities, except with DiffusionNFT."""
    actor = "actor_rollout_ref.actor"
    for loss, updates, evaluated in (("flow_grpo", 1, 0), ("flow_grpo", 2, 1), ("diffusion_nft", 2, 0)):
        mini = f"{actor}.ppo_mini_batch_size={4 // updates}"
        loss_mode = f"{actor}.diffusion_loss.loss_mode={loss}"
        job = estimated(tiny, "trainer.n_gpus_per_node=2", mini, loss_mode)
        passes = 2 * job.trainer.calls * job.trainer.backward_passes * updates
        passes += evaluated * job.trainer.backward_passes
        assert job.estimate.moved["weights gathered by each rank"] == passes * job.trainer.computed // 2


@pytest.mark.slow
@pytest.mark.parametrize("transformers", [1, 2])
def test_ranks_share_the_copy_of_all_weights_that_is_made_to_run_as_the_old_policy(
    tmp_path: Path, transformers: int
) -> None:
    """With images so small that the copy is larger than what the passes keep."""
    measured_update.make_model("sd3" if transformers == 1 else "wan", tmp_path / "model")
    if transformers == 2:
        index = tmp_path / "model" / "model_index.json"
        parts = json.loads(index.read_text())
        index.write_text(json.dumps({**parts, "transformer_2": parts["transformer"], "boundary_ratio": 0.875}))
    more = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", NFT, *SMALL_IMAGES]
    trainers = []
    for ranks in (1, 8):
        config = measured_update.load_settings(tmp_path / "model", [*more, f"trainer.n_gpus_per_node={ranks}"], "cuda")
        trainers.append(job_estimate.JobEstimator(accelerator=True).estimate(config).trainer)
    assert trainers[0].delayed_copies == 4 * trainers[0].parameters
    assert (
        trainers[0].activations - trainers[1].activations == trainers[0].delayed_copies - trainers[1].delayed_copies > 0
    )


@pytest.mark.slow
def test_checkpointing_needs_fewer_activations_and_accumulation_on_each_rank_more_gradients(tiny: Path) -> None:
    kept = estimated(tiny, "actor_rollout_ref.model.enable_gradient_checkpointing=false").trainer
    assert estimated(tiny).trainer.activations < kept.activations, "on by default with accelerators"
    ranks = ("trainer.n_gpus_per_node=2", "actor_rollout_ref.model.lora_rank=0")
    without_no_sync = "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation=false"
    once = estimated(tiny, *ranks).trainer
    reduced = estimated(tiny, *ranks, without_no_sync).trainer
    assert once.gradients == 4 * once.parameters
    assert reduced.gradients < 0.6 * once.gradients


@pytest.mark.slow
def test_a_model_with_two_transformers_keeps_no_whole_gradients(tmp_path: Path) -> None:
    """Each backward pass reduces them."""
    from verl_omni.pipelines.wan.tiny_model import make_tiny_wan_a14b

    make_tiny_wan_a14b(tmp_path)
    once = "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation"
    ranks = ("trainer.n_gpus_per_node=2", "actor_rollout_ref.model.lora_rank=0")
    set_or_not = [estimated(tmp_path, *ranks, f"{once}={value}").trainer for value in ("true", "false")]
    assert [trainer.gradients for trainer in set_or_not] == [set_or_not[0].optimizer / 2] * 2


@pytest.mark.slow
def test_ranks_that_share_a_sequence_share_its_activations_and_not_its_samples(tmp_path: Path) -> None:
    from verl_omni.pipelines.wan.tiny_model import make_tiny_wan

    make_tiny_wan(tmp_path)
    setting = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    ranks = "trainer.n_gpus_per_node=2"
    alone, shared = (estimated(tmp_path, ranks, f"{setting}={size}") for size in (1, 2))
    assert shared.trainer.activations == math.ceil(alone.trainer.activations / 2)
    assert shared.trainer.weights == alone.trainer.weights
    assert shared.trainer.backward_passes == 2 * alone.trainer.backward_passes, (
        "a group has twice the samples of a rank"
    )
    assert shared.setup.trained == 2 * alone.setup.trained, "each of its ranks loads them"


@pytest.mark.slow
def test_samples_carry_their_windows_and_share_what_their_prompts_have_in_common(tiny: Path) -> None:
    def stored(*overrides: str) -> job_estimate.JobEstimate:
        return estimated(tiny, *overrides)

    # 4 prompts of 8 samples: 3 latents of 16 x 8 x 8 around 2 steps; 32 rows of 64 embeddings and 64 pooled, bfloat16.
    embeddings = 2 * (32 * 64 + 64)
    of_a_sample = 2 * 3 * 16 * 8 * 8 + 4 * (2 + 3 + 1 + 2 + 2 * 33)
    assert stored().setup.stored == stored().setup.trained == 32 * of_a_sample + 4 * embeddings
    assert stored(GUIDANCE).setup.stored == 32 * of_a_sample + 5 * embeddings, "one negative prompt"
    final = 2 * 16 * 8 * 8 + 4 * 3  # latents, and the noise level of each step
    dpo = stored("actor_rollout_ref.actor.diffusion_loss.loss_mode=diffusion_dpo").setup
    assert dpo.stored == 32 * final + 4 * embeddings
    assert dpo.trained == 8 * final + 4 * embeddings, "the best and the worst of each prompt"
    nft = stored(NFT, GUIDANCE)
    assert nft.setup.stored == 32 * final + 4 * embeddings, "on final latents, training has no guidance"
    assert nft.trainer.inputs == stored(NFT).trainer.inputs
    assert nft.engine.passes["denoising"] > stored(NFT).engine.passes["denoising"], "the engine has both prompts"
    floats = stored("actor_rollout_ref.rollout.pipeline.pixel_dtype=float32").estimate.moved
    assert floats["pixels to the reward workers"] == 4 * stored().estimate.moved["pixels to the reward workers"]


@pytest.mark.slow
def test_samples_that_a_judge_scores_when_all_are_generated_wait_on_the_host(tiny: Path) -> None:
    settings = {"enable": True, "model_path": tiny, "rollout.tensor_model_parallel_size": 1}
    judge = tuple(f"reward.reward_model.{name}={value}" for name, value in settings.items())
    awake = (*judge, "reward.reward_model.rollout.free_cache_engine=false")
    pixels = 32 * 3 * 64 * 64
    for more, accelerator, waiting in ((judge, True, pixels), (judge, False, pixels), (awake, True, 0)):
        job = estimated(tiny, *more, accelerator=accelerator)
        parts = {phase.name: phase.parts.get("samples to score", 0) for phase in job.estimate.host}
        assert parts.pop("generation") == waiting and not any(parts.values())


@pytest.mark.slow
def test_offload_moves_parts_from_the_device_to_the_host(tiny: Path) -> None:
    offload = [f"actor_rollout_ref.actor.fsdp_config.{name}_offload=true" for name in ("param", "optimizer")]
    kept, moved = (
        {phase.name: phase.parts for phase in estimate.device}
        | {f"host {phase.name}": phase.parts for phase in estimate.host}
        for estimate in (estimated(tiny, *more).estimate for more in ((), offload))
    )
    assert {"weights", "optimizer"} <= kept["generation"].keys()
    assert not {"weights", "optimizer"} & moved["generation"].keys()
    assert moved["update"] == kept["update"]
    assert {"offloaded weights", "offloaded optimizer"} <= moved["host generation"].keys()


@pytest.mark.slow
def test_ranks_load_their_shards_and_not_the_whole_model(tiny: Path) -> None:
    few, many = (estimated(tiny, f"trainer.n_gpus_per_node={ranks}").trainer for ranks in (1, 2))
    assert many.loading < few.loading < few.whole_weights
    float32 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float32"
    alone = estimated(tiny, "trainer.n_gpus_per_node=1", float32).trainer
    assert alone.loading == alone.whole_weights, "without FSDP2"


@pytest.mark.slow
def test_a_checkpoint_in_the_background_is_copied_to_the_host(tiny: Path) -> None:
    job = estimated(tiny, "actor_rollout_ref.actor.checkpoint.async_save=true", "trainer.n_gpus_per_node=2")
    copies = {phase.name: phase.parts.get("checkpoint copy") for phase in job.estimate.host}
    state = 2 * 3 * job.trainer.optimizer // 2  # on two ranks: weights and two moments
    assert copies == {"start": None, "generation": state, "update": state}


@pytest.mark.slow
def test_what_later_optimizer_steps_need_of_the_policy_before_is_on_the_host(tiny: Path) -> None:
    name = estimate.START_VALUES
    epochs = f"{ACTOR}.ppo_epochs=2"
    values = {}
    for loss in ("flow_grpo", "grpo_guard"):
        once, twice = (estimated(tiny, f"{LOSS}={loss}", f"{ACTOR}.ppo_epochs={epochs}") for epochs in (1, 2))
        parts = {phase.name: phase.parts.get(name) for phase in twice.estimate.host}
        assert parts == {"start": None, "generation": None, "update": twice.trainer.start_values}
        assert all(name not in phase.parts for phase in once.estimate.host)
        values[loss] = twice.trainer.start_values
    rows = 4 * 8
    steps = 2
    latent = 16 * 8 * 8
    assert values["flow_grpo"] == 4 * rows * steps, "a log-probability of each recorded step"
    assert values["grpo_guard"] == 4 * rows * steps * (1 + latent), "and a mean of the next latent"
    on_cpu = estimated(tiny, f"{LOSS}=grpo_guard", epochs, accelerator=False).estimate.host
    assert {phase.name: phase.parts.get(name, 0) > 0 for phase in on_cpu}["update"]


@pytest.mark.slow
def test_without_accelerators_everything_is_on_the_host(tiny: Path) -> None:
    estimate = estimated(tiny, accelerator=False).estimate
    assert estimate.device == ()
    assert {"weights", "activations", "text encoders", "VAE", "processes"} <= dict(
        next(phase for phase in estimate.host if phase.name == "update").parts
    ).keys()


def test_the_tracker_counts_storages_until_they_are_free() -> None:
    tracker = PeakTracker()
    kept = torch.zeros(100)
    assert tracker.add([kept, kept.view(10, 10)]) == 400
    with tracker:
        result = kept + 1
        view = result[:10]
        assert tracker.live == 800
        del result
        assert tracker.live == 800, "the view keeps the storage"
        del view
    assert (tracker.live, tracker.peak) == (400, 800)


def test_the_tracker_adds_the_workspace_of_a_convolution_on_an_accelerator() -> None:
    image = torch.zeros(1, 4, 8, 8)
    weight = torch.zeros(2, 4, 1, 1)
    peaks = []
    for allocator in (None, CachingAllocator()):
        tracker = PeakTracker(allocator)
        tracker.add([image, weight])
        with tracker:
            result = torch.nn.functional.conv2d(image, weight)
        peaks.append(tracker.peak)
        assert tracker.live == image.nbytes + weight.nbytes + result.nbytes
    assert peaks[1] == 2 * peaks[0], "input, weight and output, and a copy of each"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Failed to create processor")  # of verl: Qwen-Image-Edit's processor has no model
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("sd3", [LORA, GUIDANCE, CHECKPOINTING]),
        ("sd3", [LORA, BFLOAT16, CHECKPOINTING]),
        ("sd3", [BFLOAT16, KL]),
        ("sd3", [LORA, NFT]),
        ("sd3", [f"{LOSS}=dpo", BFLOAT16]),
        ("sd3", [NFT, f"{ACTOR}.diffusion_loss.ref_kl_coef=0.1", *SMALL_IMAGES]),
        ("sd3", [LORA, BFLOAT16, CHECKPOINTING, KEEPS_GATHERED, *SMALL_IMAGES]),
        ("sd3", [NFT, BFLOAT16, CHECKPOINTING, *SMALL_IMAGES]),
        ("sd3", [f"{ACTOR}.ema_decay=0.9", f"{ACTOR}.optim.override_optimizer_config={{amsgrad: true}}"]),
        ("sd3", [LORA, "algorithm.rollout_correction.rollout_is=sequence", *SMALL_IMAGES]),
        ("sd3", [LORA, f"{LOSS}=grpo_guard", f"{ACTOR}.ppo_epochs=2", CHECKPOINTING]),
        ("qwen_image", [LORA]),
        ("qwen_image_edit", [LORA]),
        ("wan", [LORA, BFLOAT16, "actor_rollout_ref.rollout.pipeline.num_frames=5"]),
    ],
)
def test_the_estimate_is_within_15_percent_of_the_measured_peak(family: str, overrides: list[str]) -> None:
    comparison = measured_update.compare(family, overrides)
    assert 0.85 < comparison["ratio"] < 1.15, comparison
