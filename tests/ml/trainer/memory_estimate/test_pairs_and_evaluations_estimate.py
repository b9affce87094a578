"""`drl fit`: jobs that train on pairs of a data set, and what evaluations need."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml import smallest_job
from tests.ml.trainer.memory_estimate.small_jobs import SMALL, estimated, job
from verl_omni.pipelines.sd3.encoding import SD3Encoder
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.trainer.memory_estimate import __main__ as program
from verl_omni.trainer.memory_estimate import evaluations, job_estimate, model_shapes, sample_tensors

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
GUIDED = f"{ROLLOUT}.pipeline.guidance_scale=4"
PAIRS = (f"{ACTOR}.diffusion_loss.loss_mode=diffusion_dpo", "algorithm.sample_source=offline", GUIDED)
STANDALONE = (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The setting of 40 held-out prompts."""
    file = tmp_path_factory.mktemp("fit") / "held_out.jsonl"
    file.write_text('{"prompt": "a circle"}\n' * 40)
    return f"data.val_files={file}"


@pytest.mark.slow
def test_training_on_pairs_has_no_samples_of_the_engine(tiny: Path, held_out: str) -> None:
    result = estimated(tiny, *PAIRS, held_out).estimate
    assert [phase.name for phase in result.device] == ["evaluation", "encoding", "update", "weight sync"]
    assert [phase.name for phase in result.host] == ["start", "evaluation", "encoding", "update"]
    parts = {part for phase in (*result.device, *result.host) for part in phase.parts}
    assert "trajectories" not in parts and {"pairs", "trainer's encoders"} <= parts
    assert result.moved["images of pairs to the trainers"] == 4 * 2 * 3 * 64 * 64
    assert {name for name in result.moved if "sample" in name or "reward" in name} == set()
    document = program.describe(job(tiny, *PAIRS, held_out), None, accelerator=True)
    assert (document["engine_batch"], document["sample_bytes"]) == (40, None)


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", [True, False])
@pytest.mark.parametrize("pools", [(), STANDALONE])
def test_without_evaluations_engines_get_weights_and_generate_nothing(
    tiny: Path, pools: tuple[str, ...], accelerator: bool
) -> None:
    result = estimated(tiny, *PAIRS, *pools, accelerator=accelerator)
    for estimate in (result.estimate, *([result.standalone] if result.standalone else [])):
        phases = (*estimate.device, *estimate.host)
        assert {"evaluation", "generation"} & {phase.name for phase in phases} == set()
        assert {"engine activations", "samples in flight"} & {part for phase in phases for part in phase.parts} == set()
        assert "weight sync" in {phase.name for phase in phases}
    assert program.describe(job(tiny, *PAIRS), None, accelerator=True)["engine_batch"] is None


@pytest.mark.slow
@pytest.mark.parametrize("pools", [(), STANDALONE])
def test_without_accelerators_encoders_are_in_host_memory_once(
    tiny: Path, held_out: str, pools: tuple[str, ...]
) -> None:
    result = estimated(tiny, *PAIRS, held_out, *pools, accelerator=False)
    sizes = [phase.parts["trainer's encoders"] for phase in result.estimate.host]
    assert set(sizes) == {result.trainer.encoders} and len(sizes) == 4


@pytest.mark.slow
def test_the_trainers_encoders_and_their_tensors_are_those_of_the_estimate(tmp_path: Path) -> None:
    make_tiny_sd3(tmp_path)
    config = job(tmp_path, *PAIRS, f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bfloat16")
    encoder = SD3Encoder(str(tmp_path), torch.bfloat16, 16)
    pipeline: Any = encoder._pipeline
    parts = [module for module in pipeline.components.values() if isinstance(module, torch.nn.Module)]
    weights = sum(tensor.nbytes for part in parts for tensor in (*part.parameters(), *part.buffers()))
    result = job_estimate.JobEstimator(accelerator=True).estimate(config)
    assert result.trainer.encoders == pytest.approx(weights, rel=0.01), "small buffers differ"
    encoded = encoder.encode(["a circle"], torch.zeros(1, 2, 3, 64, 64, dtype=torch.uint8), torch.device("cpu"))
    sample = sample_tensors.training_sample(config, model_shapes.read(tmp_path))
    assert {name: (tensor.dtype, tensor.shape[2:]) for name, tensor in encoded.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in sample.items()
    }
    stored = sum(tensor.nbytes for tensor in encoded.values()) * 4
    assert result.setup.trained == stored, "each image of a pair has its own embeddings"


@pytest.mark.slow
def test_an_engine_needs_memory_for_the_larger_batch_of_training_and_evaluation(tiny: Path, held_out: str) -> None:
    few = estimated(tiny, f"{ROLLOUT}.n=2").engine
    both = estimated(tiny, f"{ROLLOUT}.n=2", held_out).engine
    assert (few.batch, both.batch) == (8, 40)
    assert both.peak > 4 * few.peak
    # In each evaluation on two engines, each generates half.
    assert estimated(tiny, f"{ROLLOUT}.n=2", held_out, "trainer.n_gpus_per_node=2").engine.batch == 20
    limited = estimated(tiny, f"{ROLLOUT}.n=2", held_out, "data.val_max_samples=3").engine
    assert limited.batch == 8, "the batch of training is larger"


@pytest.mark.slow
def test_an_engine_needs_memory_for_the_larger_images_of_an_evaluation(tiny: Path, held_out: str) -> None:
    four = "data.val_max_samples=4"
    same = estimated(tiny, f"{ROLLOUT}.n=2", held_out, four)
    large = [f"{ROLLOUT}.val_kwargs.pipeline.{side}=256" for side in ("height", "width")]
    larger = estimated(tiny, f"{ROLLOUT}.n=2", held_out, four, *large)
    assert larger.engine.batch == same.engine.batch == 8
    assert larger.engine.passes["decoding"] > 4 * same.engine.passes["decoding"]
    assert larger.trainer == same.trainer and larger.setup == same.setup


@pytest.mark.parametrize(("override", "same"), [("num_inference_steps=50", True), ("guidance_scale=1", False)])
def test_more_steps_of_evaluations_need_no_more_memory(override: str, *, same: bool) -> None:
    config = smallest_job.load(*SMALL, GUIDED, f"{ROLLOUT}.val_kwargs.pipeline.{override}")
    assert evaluations.have_samples_of_training(config) is same


def test_prompts_of_evaluations_that_are_elsewhere_are_not_counted(held_out: str) -> None:
    def count(files: str, *overrides: str) -> int | None:
        config = smallest_job.load(f"data.val_files={files}", *overrides)
        return evaluations.count_samples(config)

    here = held_out.partition("=")[2]
    assert (count(here), count(f"[{here},{here}]")) == (40, 80)
    assert (count("s3://bucket/x.jsonl"), count(f"[{here},/runs/x.parquet]")) == (None, None)
    assert count("/runs/x.parquet", "data.val_max_samples=7") == 7
