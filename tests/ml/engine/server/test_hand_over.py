"""What a batch costs on its way through the real engine and a real Ray: calls, objects, bytes, encoded prompts."""

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROMPTS = ["a red circle", "two blue squares"]
SAMPLES_PER_PROMPT = 8
BATCH = len(PROMPTS) * SAMPLES_PER_PROMPT
STEPS = 4
# float32 latents before and after each of the three trained steps; the rest of a sample is small.
LATENT_BYTES = 4 * STEPS * 16 * 8 * 8
PIXEL_BYTES = 3 * 64 * 64
CALLS = {"acquire": 1, "generate_batch": 1, "release": 1, "score_samples": 1}


def count_calls(worker: Any) -> None:
    """In the process of an agent-loop worker: keep the names of all calls to actors, and the objects that it stores."""
    import ray.actor

    worker.calls = []
    worker.stored = []
    call = ray.actor.ActorMethod._remote
    put = worker.put

    def counted(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        name = self._method_name
        # Calls to the router are functions that run in it, e.g. `acquire_servers`.
        worker.calls.append(args[0].__name__.removesuffix("_servers") if name == "__ray_call__" else name)
        return call(self, args, kwargs, **options)

    def stored(packed: Any) -> Any:
        worker.stored.append((len(packed.places), packed.buffer.nbytes))
        return put(packed)

    ray.actor.ActorMethod._remote = counted
    worker.put = stored


def count_work(server: Any) -> None:
    """In the process of the engine: keep the size of each of its batches, the texts that are encoded, and replies."""
    from vllm_omni.diffusion.models.sd3.pipeline_sd3 import StableDiffusion3Pipeline

    from verl_omni.workers.rollout.output_groups import OutputGroup

    server.batches = []
    server.encoded = []
    server.replies = []
    forward = StableDiffusion3Pipeline.forward
    encode = StableDiffusion3Pipeline.encode_prompt
    pack = OutputGroup.of

    def counted_forward(self: Any, req: Any) -> Any:
        server.batches.append(len(req.requests))
        return forward(self, req)

    def counted_encode(self: Any, prompt: Any, *args: Any, **options: Any) -> Any:
        server.encoded.append(sorted(prompt))
        return encode(self, prompt, *args, **options)

    def counted_pack(outputs: Any) -> Any:
        group = pack(outputs)
        server.replies.append((len(outputs), group.tensors.buffer.nbytes))
        return group

    StableDiffusion3Pipeline.forward = counted_forward
    StableDiffusion3Pipeline.encode_prompt = counted_encode
    OutputGroup.of = counted_pack


def test_a_batch_is_one_call_one_engine_batch_one_object_and_one_text_a_prompt(start_tiny: Any, rows: Any) -> None:
    import ray

    from verl_omni.trainer.generation import sample_generation

    config, stack = start_tiny(
        PROMPTS,
        f"actor_rollout_ref.rollout.n={SAMPLES_PER_PROMPT}",
        f"actor_rollout_ref.rollout.max_num_seqs={BATCH}",
    )
    stack.weights.update_weights(global_steps=0)
    (worker,) = stack.agent_loop.agent_loop_workers
    (server,) = stack.servers.server_handles

    def generate(version: int) -> Any:
        batch = sample_generation.training_requests(
            rows(PROMPTS),
            n=SAMPLES_PER_PROMPT,
            step=version + 1,
            version=version,
            seed=3,
            keeps_media=False,
            stores_tensors=True,
        )
        return sample_generation.generate_scored(config, stack.agent_loop, batch)

    # The processes of Ray cannot import this module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    generate(0)  # the first request asks the router what it reads
    ray.get([worker.__ray_call__.remote(count_calls), server.__ray_call__.remote(count_work)])
    stack.weights.update_weights(global_steps=1)  # after which the server looks for the adapter
    samples = generate(1)
    assert samples.scores.isfinite().all() and len(samples.stored) == BATCH
    calls, stored = ray.get(worker.__ray_call__.remote(lambda own: (own.calls, own.stored)))
    batches, encoded, replies = ray.get(server.__ray_call__.remote(lambda own: (own.batches, own.encoded, own.replies)))
    assert {name: calls.count(name) for name in calls} == CALLS
    assert batches == [BATCH] and encoded == [sorted(PROMPTS)]
    ((rows_stored, stored_bytes),) = stored
    ((rows_sent, sent_bytes),) = replies
    assert (rows_stored, rows_sent) == (BATCH, BATCH)
    # Embeddings of each sample alone would take two thirds of its latents.
    assert 1 < stored_bytes / (BATCH * LATENT_BYTES) < 1.25, f"{stored_bytes / BATCH:.0f} bytes a sample"
    assert sent_bytes < stored_bytes + BATCH * (PIXEL_BYTES + 64)
