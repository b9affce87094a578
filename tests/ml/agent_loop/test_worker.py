"""Agent-loop worker with a fake engine: requests, loops, results."""

from pathlib import Path
from typing import Any

import pytest
import torch

from verl_omni.agent_loop import DiffusionAgentLoopWorker
from verl_omni.agent_loop.diffusion_agent_loop import SampleFailed, load_agent_loops

pytestmark = pytest.mark.slow  # reads a model and all settings for each

LATER = {"global_steps": 3, "score_later": True}
LOOP = """
from verl_omni.agent_loop import DiffusionAgentLoopOutput, DiffusionSingleTurnAgentLoop

class Framed(DiffusionSingleTurnAgentLoop):
    def __init__(self, *args, border, **kwargs):
        super().__init__(*args, **kwargs)
        self.border, self.rows = border, 0

    async def run(self, sampling_params, **kwargs):
        self.rows += 1
        made = await super().run({**sampling_params, "border": self.border}, **kwargs)
        return made.model_copy(update={"num_turns": self.rows, "reward_score": 0.5})
"""


async def asked(worker: Any, batch: Any) -> list[dict[str, Any]]:
    await worker.generate_sequences(batch)
    return [request["sampling_params"] for request in worker.server_manager.asked]


async def test_training_requests_have_all_settings_the_version_and_a_seed_per_row(worker: Any, batch: Any) -> None:
    loop_worker = worker("actor_rollout_ref.rollout.algo.noise_level=0.3")
    rows = batch(["a", "b"], {"global_steps": 7, "rollout_seed": 4}, _rollout_seed_global_idx=[10, 11])
    first, second = await asked(loop_worker, rows)
    assert {"height", "num_inference_steps", "guidance_scale", "sde_type", "sde_window_size"} <= first.keys()
    assert not any(name.startswith("_") for name in first)
    assert (first["noise_level"], first["logprobs"], first["global_steps"]) == (0.3, True, 7)
    assert [first["seed"], second["seed"]] == [4 * 1_000_003 + 10, 4 * 1_000_003 + 11]
    (*_, unseeded) = await asked(loop_worker, batch(["a"]))
    assert "seed" not in unseeded, "without a rollout_seed"


async def test_validation_requests_have_their_overrides_and_one_seed(worker: Any, batch: Any) -> None:
    loop_worker = worker(
        "actor_rollout_ref.rollout.val_kwargs.pipeline.num_inference_steps=3",
        "actor_rollout_ref.rollout.val_kwargs.seed=9",
    )
    rows = batch(["a", "b"], {"validate": True, "global_steps": 7, "rollout_seed": 4})
    for params in await asked(loop_worker, rows):
        assert (params["seed"], params["logprobs"], params["num_inference_steps"]) == (9, False, 3)
        assert params["noise_level"] == 0.0
        assert "global_steps" not in params


async def test_loops_from_a_yaml_list_are_instantiated_for_each_row(
    worker: Any, batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "framed_loop.py").write_text(LOOP)
    monkeypatch.syspath_prepend(tmp_path)
    listed = tmp_path / "loops.yaml"
    listed.write_text("- {name: framed, _target_: framed_loop.Framed, border: 5}\n")
    loop_worker = worker(f"actor_rollout_ref.rollout.agent.agent_loop_config_path='{listed}'")
    output = await loop_worker.generate_sequences(batch(["a", "b", "c"], LATER, agent_name=["framed", "framed", None]))
    assert [request["sampling_params"].get("border") for request in loop_worker.server_manager.asked] == [5, 5, None]
    assert list(output.non_tensor_batch["__num_turns__"]) == [1, 1, 2], "a loop's state belongs to one row"
    assert [sample.score for sample in output.non_tensor_batch["__sample__"]] == [0.5, 0.5, None]
    assert list(output.non_tensor_batch["agent_name"]) == ["framed", "framed", "diffusion_single_turn_agent"]


@pytest.mark.parametrize("text", ["name: x\n_target_: y\n", "- {_target_: y}\n", "- {name: x}\n", "- x\n"])
def test_a_file_without_a_list_of_loops_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "loops.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"loops\.yaml must be a list of agent loops"):
        load_agent_loops(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", r"Agent loop other not registered, registered .*single_turn"),
        ("single_turn_agent", r"single_turn_agent is verl's for text; .*empty for diffusion_single_turn"),
    ],
)
async def test_a_loop_that_generates_no_image_is_refused(worker: Any, batch: Any, name: str, message: str) -> None:
    with pytest.raises(SampleFailed, match=message):
        await worker().generate_sequences(batch(["a"], agent_name=[name]))


async def test_a_subclass_may_set_its_own_server_manager(worker: Any, batch: Any, engine: Any) -> None:
    server_manager = engine()

    class Own(DiffusionAgentLoopWorker):
        def __init__(self, *args: Any) -> None:
            self.server_manager = server_manager
            super().__init__(*args)

    loop_worker = Own(worker().config, engine(), None, None)
    await loop_worker.generate_sequences(batch(["a"]))
    assert len(server_manager.asked) == 1


async def test_results_have_the_documented_keys_and_shapes(worker: Any, batch: Any, engine: Any, rewards: Any) -> None:
    fields = {
        "prompt_embeds": torch.ones(4, 5),
        "negative_prompt_embeds": torch.ones(6, 5),
        "prompt_embeds_mask": torch.ones(4),
        "pooled_prompt_embeds": torch.ones(7),
        "all_latents": torch.ones(5, 2),
        "negative_pooled_prompt_embeds": None,
    }
    loop_worker = worker(engine=engine(**fields), rewards=[rewards()])
    output = await loop_worker.generate_sequences(batch(["a red circle", "a"], uid=["u", "v"], priority=[0, 1]))
    shapes = {name: tuple(tensor.shape) for name, tensor in output.batch.items()}
    assert shapes == {
        "prompts": (2, 8),
        "attention_mask": (2, 8),
        "responses": (2, 3, 2, 2),
        "rollout_log_probs": (2, 4),
        "prompt_embeds": (2, 6, 5),
        "negative_prompt_embeds": (2, 6, 5),
        "prompt_embeds_mask": (2, 6),
        "pooled_prompt_embeds": (2, 7),
        "all_latents": (2, 5, 2),
        "rm_scores": (2, 1),
    }
    assert output.batch["prompts"].dtype == output.batch["attention_mask"].dtype == torch.int64
    assert output.batch["attention_mask"].sum(1).tolist() == [5, 3], "start, words and end"
    assert not output.batch["prompt_embeds"][:, 4:].any()
    columns = output.non_tensor_batch
    assert list(columns["uid"]) == ["u", "v"]
    assert list(columns["priority"]) == [0, 1]
    assert [messages[0]["content"] for messages in columns["raw_prompt"]] == ["a red circle", "a"]
    assert list(columns["agent_name"]) == ["diffusion_single_turn_agent"] * 2
    assert list(columns["__num_turns__"]) == [2, 2]
    assert list(columns["negative_pooled_prompt_embeds"]) == [None, None]
    assert list(columns["global_steps"]) == [3, 3]
    assert list(columns["reward_extra_info"]) == [{"acc": 0.0}, {"acc": 1.0}]
    assert list(columns["acc"]) == [0.0, 1.0]
    assert output.meta_info["reward_extra_keys"] == ["acc"]
    assert [metrics["num_preempted"] for metrics in output.meta_info["metrics"]] == [-1, -1]
    assert all(
        metrics["generate_sequences"] > 0 and metrics["compute_score"] > 0 for metrics in output.meta_info["metrics"]
    )


async def test_samples_carry_statistics_and_how_often_they_were_lost(worker: Any, batch: Any, engine: Any) -> None:
    output = await worker(engine=engine(times_lost=2)).generate_sequences(batch(["a", "b"]))
    samples = output.non_tensor_batch["__sample__"]
    assert [sample.statistics.luminance for sample in samples] == pytest.approx([0.0, 1 / 255])
    assert [(sample.version, sample.times_lost, sample.times_aborted) for sample in samples] == [(3, 2, 0)] * 2
    loop_worker = worker("actor_rollout_ref.rollout.pipeline.output_type=latent")
    latents = await loop_worker.generate_sequences(batch(["a"]))
    assert latents.non_tensor_batch["__sample__"][0].statistics is None


async def test_columns_of_any_name_reach_the_loop_and_preemptions_are_reported(
    worker: Any, batch: Any, engine: Any
) -> None:
    class Preempting(engine):
        async def generate(self, request_id: str, **request: Any) -> Any:
            return (await super().generate(request_id, **request)).model_copy(update={"num_preempted": 2})

    names = {"validate": [1], "row": [2], "output": [3]}
    output = await worker(engine=Preempting()).generate_sequences(batch(["a"], **names))
    assert {name: list(output.non_tensor_batch[name]) for name in names} == names
    assert [metrics["num_preempted"] for metrics in output.meta_info["metrics"]] == [2]


async def test_the_error_of_a_failed_row_names_row_prompt_and_version(worker: Any, batch: Any, engine: Any) -> None:
    class Broken(engine):
        async def generate(self, request_id: str, **request: Any) -> Any:
            if len(self.asked) == 1:
                raise RuntimeError("no memory")
            return await super().generate(request_id, **request)

    with pytest.raises(SampleFailed, match=r"row 1 of 2 at weight version 3 \(.*blue.*\) failed: RuntimeError: no mem"):
        await worker(engine=Broken()).generate_sequences(batch(["red", "blue"]))


async def test_an_aborted_sample_is_an_error(worker: Any, batch: Any, engine: Any) -> None:
    class Aborting(engine):
        async def generate(self, request_id: str, **request: Any) -> Any:
            output = await super().generate(request_id, **request)
            return output.model_copy(update={"stop_reason": "aborted", "diffusion_output": torch.empty(0)})

    with pytest.raises(SampleFailed, match="SampleAborted: the server aborted the sample"):
        await worker(engine=Aborting()).generate_sequences(batch(["a"]))


async def test_prompts_are_padded_on_the_tokenizers_side(worker: Any, batch: Any) -> None:
    masks = {}
    for side in ("left", "right"):
        loop_worker = worker()
        loop_worker.tokenizer.padding_side = side
        masks[side] = (await loop_worker.generate_sequences(batch(["a"]))).batch["attention_mask"][0].tolist()
    assert masks == {"left": [0] * 5 + [1] * 3, "right": [1] * 3 + [0] * 5}


async def test_a_subclass_may_override_each_step_with_the_documented_arguments(
    worker: Any, batch: Any, engine: Any, rewards: Any
) -> None:
    seen: list[str] = []

    class Own(DiffusionAgentLoopWorker):
        async def _run_agent_loop(self, sampling_params: Any, *, agent_name: str, **kwargs: Any) -> Any:
            seen.append("run")
            return await super()._run_agent_loop(sampling_params, agent_name=agent_name, **kwargs)

        async def _agent_loop_postprocess(self, output: Any, **kwargs: Any) -> Any:
            seen.append("postprocess")
            return await super()._agent_loop_postprocess(output, **kwargs)

        async def _compute_score(self, output: Any, prompts: Any, responses: Any, kwargs: Any) -> None:
            seen.append("score")
            await super()._compute_score(output, prompts, responses, kwargs)
            output.reward_score = 0.25

        def _postprocess(self, inputs: Any, input_non_tensor_batch: Any) -> Any:
            seen.append("together")
            return super()._postprocess(inputs, input_non_tensor_batch)

    handle = rewards()
    output = await Own(worker().config, engine(), None, [handle]).generate_sequences(batch(["a"], {"validate": True}))
    assert seen == ["run", "postprocess", "score", "together"]
    assert output.batch["rm_scores"].tolist() == [[0.25]]
    assert handle.given[0].meta_info == {"validate": True}


def test_an_embedding_length_of_0_is_refused(worker: Any) -> None:
    with pytest.raises(ValueError, match="max_prompt_embed_length must be positive: 0"):
        worker("actor_rollout_ref.rollout.max_prompt_embed_length=0")
