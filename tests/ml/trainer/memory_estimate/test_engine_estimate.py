"""`drl fit`: the engine's weights, and what its process needs and holds."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.ml.trainer.memory_estimate.small_jobs import estimated, job
from verl_omni.models.tiny import MAKERS
from verl_omni.trainer.memory_estimate import advice, engine_memory, model_shapes, public_models

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.slow
def test_an_engine_that_does_not_sleep_holds_what_its_allocator_reserved(tiny: Path) -> None:
    awake = [f"actor_rollout_ref.rollout.{name}=false" for name in ("enable_sleep_mode", "free_cache_engine")]
    sleeping = estimated(tiny)
    serving = estimated(tiny, *awake)
    assert sleeping.engine == serving.engine and sleeping.engine.kept > sleeping.engine.peak
    held = {
        state: [phase.parts.get("engine activations") for phase in result.estimate.device]
        for state, result in (("sleeping", sleeping), ("serving", serving))
    }
    assert held["sleeping"] == [sleeping.engine.peak, None, None]
    assert held["serving"] == [serving.engine.kept] * 3
    assert estimated(tiny, accelerator=False).engine.kept == 0


@pytest.mark.slow
def test_offloaded_text_encoders_are_on_the_device_only_while_prompts_are_encoded(tiny: Path) -> None:
    cache = f"{ROLLOUT}.prompt_cache_dir=/cache"
    offload = f"{ROLLOUT}.offload_text_encoders=true"
    before = estimated(tiny)
    job = estimated(tiny, cache, offload)
    encoders = before.engine.text_encoders
    assert encoders > 0 and estimated(tiny, cache).engine == before.engine
    assert (job.engine.text_encoders, job.engine.offloaded) == (0, encoders)
    device = {phase.name: phase.parts for phase in job.estimate.device}
    expected = {phase.name: dict(phase.parts) for phase in before.estimate.device}
    assert list(device) == ["text encoding", *expected]
    for name, parts in expected.items():
        assert dict(device[name]) == {part: size for part, size in parts.items() if part != "text encoders"}, name
    assert device["text encoding"]["text encoders"] == encoders
    assert device["text encoding"]["engine activations"] == job.engine.passes["text encoding"]
    at_rest = {phase.name: phase.parts.get("text encoders at rest") for phase in job.estimate.host}
    assert at_rest == {"start": None, "generation": encoders, "update": encoders}
    on_cpu = estimated(tiny, cache, offload, accelerator=False)
    assert on_cpu.estimate == estimated(tiny, accelerator=False).estimate, "there is no other memory"

    awake = [f"{ROLLOUT}.{name}=false" for name in ("enable_sleep_mode", "free_cache_engine")]
    update = [dict(estimated(tiny, *awake, *more).estimate.device[-2].parts) for more in ((), (cache, offload))]
    assert update[0].pop("text encoders") == encoders and update[0] == update[1]


@pytest.mark.slow
def test_a_sleeping_engine_has_no_copy_of_offloaded_text_encoders(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_memory, "pinned_bytes", sum)
    cache = f"{ROLLOUT}.prompt_cache_dir=/other"
    kept, offloaded = (
        estimated(tiny, cache, f"{ROLLOUT}.offload_text_encoders={offload}") for offload in ("false", "true")
    )
    assert kept.engine.asleep - offloaded.engine.asleep == offloaded.engine.offloaded > 0


@pytest.mark.slow
def test_engines_of_their_own_offload_text_encoders_too(tiny: Path) -> None:
    cache = f"{ROLLOUT}.prompt_cache_dir=/cache"
    apart = (cache, f"{ROLLOUT}.offload_text_encoders=true", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=2")
    job = estimated(tiny, *apart)
    assert job.standalone is not None
    phases = {phase.name: phase.parts for phase in job.standalone.device}
    assert {name: parts.get("text encoders") for name, parts in phases.items()} == {
        "text encoding": job.engine.offloaded,
        "generation": None,
        "weight sync": None,
    }
    assert all(phase.parts["text encoders at rest"] == 2 * job.engine.offloaded for phase in job.standalone.host)


def test_offloading_text_encoders_is_advised_where_prompts_are_cached(tiny: Path) -> None:
    name = f"{ROLLOUT}.offload_text_encoders"
    for overrides, advised in ((), False), ((f"{ROLLOUT}.prompt_cache_dir=/cache",), True):
        assert (name in {change.setting for change in advice.changes(job(tiny, *overrides))}) is advised


@pytest.mark.slow
def test_the_engine_has_the_weights_of_vllm_omnis_modules(tiny: Path, tmp_path: Path) -> None:
    """Position embeddings are float32; without input images, the text encoder of Qwen has no vision tower."""
    from diffusers.models.embeddings import PatchEmbed

    package = find_spec("vllm_omni")
    assert package is not None and package.submodule_search_locations
    source = Path(package.submodule_search_locations[0], "diffusion", "models", "sd3", "sd3_transformer.py")
    assert re.search(r"from diffusers.models.embeddings import .*\bPatchEmbed\b", source.read_text())
    engine = estimated(tiny, "actor_rollout_ref.rollout.dtype=bfloat16").engine
    transformer = model_shapes.read(tiny).on_meta("transformer", torch.bfloat16)
    (positions,) = transformer.buffers()
    torch.set_default_dtype(torch.bfloat16)
    try:
        buffer = PatchEmbed(pos_embed_max_size=2, embed_dim=8).pos_embed
    finally:
        torch.set_default_dtype(torch.float32)
    assert buffer.dtype == torch.float32
    assert engine.transformer == 2 * sum(p.numel() for p in transformer.parameters()) + 4 * positions.numel()
    for family, has_vision in (("qwen_image", False), ("qwen_image_edit", True)):
        MAKERS[family](tmp_path / family)
        encoder = model_shapes.read(tmp_path / family).on_meta("text_encoder", torch.bfloat16)
        seen = 2 * sum(p.numel() for name, p in encoder.named_parameters() if has_vision or ".visual." not in name)
        assert estimated(tmp_path / family, "actor_rollout_ref.rollout.dtype=bfloat16").engine.text_encoders in range(
            seen, seen + 4096
        ), "with its buffers"


@pytest.mark.slow
def test_an_engine_that_returns_latents_decodes_nothing(tiny: Path) -> None:
    """Unless the other of training and evaluations has images."""

    def passes(training: str, evaluation: str) -> dict[str, int]:
        types = (f"pipeline.output_type={training}", f"val_kwargs.pipeline.output_type={evaluation}")
        overrides = ("data.val_files=held_out.jsonl", "data.train_batch_size=32")  # an evaluation has no more samples
        return estimated(tiny, *(f"{ROLLOUT}.{override}" for override in types), *overrides).engine.passes

    images = passes("image", "image")
    assert images["decoding"] > 0
    assert passes("latent", "latent") == {name: size for name, size in images.items() if name != "decoding"}
    for types in (("latent", "image"), ("image", "latent")):
        assert passes(*types) == images, types


def test_tensor_parallelism_divides_attention_and_feed_forward_layers_only(tmp_path: Path) -> None:
    """Two accelerators share 13.6 of Qwen-Image's 20.4 billion weights; each has the modulation of all layers."""
    public_models.write("Qwen/Qwen-Image", tmp_path)
    transformer = model_shapes.read(tmp_path).on_meta("transformer", torch.bfloat16)
    unsplit, half = (engine_memory.share(transformer, size) / 2e9 for size in (1, 2))
    layers = 60
    width = 3072
    assert unsplit == pytest.approx(20.4, abs=0.05)
    assert unsplit - half == pytest.approx(layers * 24 * width**2 / 2 / 1e9, rel=1e-3)


def test_a_sleeping_engine_pins_blocks_whose_sizes_are_powers_of_two() -> None:
    """Small tensors share segments of 2 and of 20 MiB; a tensor of 72 MiB, as in Qwen-Image, needs 128."""
    mib = 1 << 20
    assert engine_memory.pinned_bytes([mib // 2, mib // 4]) == 2 * mib
    assert engine_memory.pinned_bytes([4 * mib, 4 * mib]) == 32 * mib
    assert engine_memory.pinned_bytes([72 * mib, 72 * mib]) == 2 * 128 * mib


@pytest.mark.slow
def test_the_host_has_memory_for_sleeping_engines_in_every_phase_after_the_start(tiny: Path) -> None:
    job = estimated(tiny, "trainer.n_gpus_per_node=2")
    parts = {phase.name: phase.parts.get("engine weights asleep") for phase in job.estimate.host}
    assert parts == {"start": None, "generation": 2 * job.engine.asleep, "update": 2 * job.engine.asleep}
    assert job.engine.weights < job.engine.asleep
