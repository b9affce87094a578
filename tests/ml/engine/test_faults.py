"""What breaks while two replicas serve: each fault ends with the stated error, hangs and leaves nothing, and what
served before serves on. The tests run in this order: the last ones end the replicas.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from verl_omni.weight_sync import names, transfer
from verl_omni.weight_sync.buffers import Begin, Outgoing
from verl_omni.weight_sync.digest import digest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

DEADLINE = 10.0  # seconds that either end of a transfer waits for the other
SOON = 60.0  # seconds by which whatever is broken has said so
LAYER = "transformer.transformer_blocks.0.attn.to_{}"

PROMPTS = ["a red circle", "a blue square on the left", "two cat photo", "a green tree"]
SCORER = """
import time
def compute_score(data_source, solution_image, ground_truth, extra_info):
    if ground_truth == "raise":
        raise OSError("the scorer's disk is gone")
    if ground_truth == "slow":
        time.sleep(3)
    return float(solution_image.float().mean()) / 255
"""


@dataclass
class Running:
    """The stack, and what of it is asked."""

    config: Any
    stack: Any
    replicas: list[Any]
    rows: Callable[[Sequence[str]], list[dict[str, Any]]]

    leftovers: type[Any]

    def score(self, truths: Sequence[str], version: int | None = None) -> Any:
        """Draw and score a sample for each; its ground truth tells the scorer how to behave."""
        from verl_omni.trainer import rollout

        made = self.rows(PROMPTS[: len(truths)])
        for row, truth in zip(made, truths, strict=True):
            row["reward_model"] = {"ground_truth": truth}
        prompts = rollout.evaluation_prompts(made, seed=7, version=version)
        return rollout.scored(self.config, self.stack.agent_loop, prompts)


@pytest.fixture(scope="module")
def running(
    start: Any, rows: Any, replicas_of: Any, leftovers: Any, tmp_path_factory: pytest.TempPathFactory
) -> Running:
    from verl_omni.models.tiny import make_tiny_sd3

    folder = tmp_path_factory.mktemp("faults")
    make_tiny_sd3(folder / "model")
    (folder / "scorer.py").write_text(SCORER)
    config, stack = start(
        PROMPTS,
        "data.max_prompt_length=16", "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n=2",
        f"actor_rollout_ref.model.path='{folder / 'model'}'", "actor_rollout_ref.model.lora_rank=4",
        # One at a time: pictures are then equal to the last bit, and many requests take a while.
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "actor_rollout_ref.rollout.pipeline.height=64", "actor_rollout_ref.rollout.pipeline.width=64",
        "actor_rollout_ref.rollout.pipeline.num_inference_steps=4",
        "actor_rollout_ref.rollout.pipeline.max_sequence_length=16",
        f"actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.naive.deadline_seconds={DEADLINE}",
        f"actor_rollout_ref.rollout.deadline_seconds={DEADLINE}",
        "reward.scorer=null", f"reward.custom_reward_function.path='{folder / 'scorer.py'}'", "reward.num_workers=2",
    )  # fmt: skip
    replicas = replicas_of(stack)
    assert len(replicas) == 2
    return Running(config, stack, replicas, rows, leftovers)


@pytest.fixture
def replica(running: Running) -> Iterator[Any]:
    """The first replica. Whatever a test does to it, it serves on as before and leaves nothing."""
    one = running.replicas[0]
    before, counted = one.picture(), running.leftovers()
    yield one
    assert torch.equal(one.picture(), before), "the old weights must serve on"
    counted.none()


def refused(answer: Any) -> str:
    """What the worker said of an update that it did not take."""
    import ray

    with pytest.raises(Exception, match="update_weights_from_ipc failed") as caught:
        ray.get(answer, timeout=SOON)
    return str(caught.value)


# --- weight updates -----------------------------------------------------------------------------------------


def test_an_adapter_larger_than_a_bucket_arrives_whole(running: Running) -> None:
    counted = running.leftovers()
    """Fault 2 of the reference: of several buckets only the last one was right."""
    one, other = running.replicas
    found = one.publish(one.adapter(2.0), version=2, bucket_bytes=600)
    assert (found["tensors"], found["bound"]) == (8, 4)
    assert found["buckets"] > 4
    other.publish(other.adapter(2.0), version=2)
    assert torch.equal(one.picture(), other.picture())
    for replica in running.replicas:
        replica.publish(replica.adapter(1.0), version=1)
    counted.none()


def test_a_sender_that_is_killed_between_two_buckets(replica: Any) -> None:
    handle, answer = replica.begin()
    program = f"""
        import os, signal, torch
        from verl_omni.weight_sync import transfer
        def weights():
            for number in range(9):
                if number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield f"{LAYER.format("q")}.lora_{{number}}", torch.ones(4, 32)
        transfer.send(weights(), handle={handle!r}, bucket_bytes=600, device=None, deadline={DEADLINE})
    """
    sender = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, timeout=SOON)
    assert sender.returncode == -signal.SIGKILL
    assert "DeadlineExceeded" in refused(answer)


def bucket(fault: str) -> tuple[dict[str, Tensor], list[Any]]:
    """What a faulty sender puts into the buffer, and its messages after the first."""
    q, k = (f"{LAYER.format(part)}.lora_A.weight" for part in "qk")
    one, two = torch.full((4, 32), 1.0), torch.full((4, 32), 2.0)
    size = one.nbytes
    first = {q: transfer.Entry(one.shape, one.dtype, 0, digest(one))}
    second = {k: transfer.Entry(two.shape, two.dtype, size, digest(two))}
    swapped = {
        q: transfer.Entry(one.shape, one.dtype, size, digest(one)),
        k: transfer.Entry(two.shape, two.dtype, 0, digest(two)),
    }  # fmt: skip
    beyond = {q: transfer.Entry(one.shape, one.dtype, 2 * size - 8, digest(one))}
    message = transfer.BucketMessage
    return {q: one, k: two}, {
        "truncated": [message(beyond, [q])],
        "re-ordered": [message(swapped, [q, k])],
        "duplicated": [message(first), message(first), message(second, [q, k])],
        "left out": [message(second, [q, k])],
    }[fault]


@pytest.mark.parametrize(
    ("fault", "said"),
    [("truncated", ""), ("re-ordered", "other bytes"), ("duplicated", "arrived twice"), ("left out", "missing")],
)
def test_a_bucket_that_is_not_what_was_sent(replica: Any, fault: str, said: str) -> None:
    handle, answer = replica.begin()
    tensors, messages = bucket(fault)
    buffer = Outgoing(None)
    with transfer.Channel(handle, DEADLINE, owner=True) as channel:
        begin: Begin = buffer.replace(1024, 1024)
        place = 0
        for tensor in tensors.values():
            buffer.tensor[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            place += tensor.nbytes
        failed = None
        for message in [begin, *messages]:
            channel.send(message)
            failed = channel.receive().failed
            if failed is not None:
                break
    buffer.close()
    assert said in (failed or refused(answer))
    refused(answer)


def test_a_full_shared_memory(replica: Any) -> None:
    handle, answer = replica.begin()
    room = os.statvfs("/dev/shm")
    larger = torch.empty(room.f_blocks * room.f_frsize + 1, dtype=torch.uint8)  # its pages are never touched
    with pytest.raises(Exception, match=r"\[NoRoom\] /dev/shm cannot hold"):
        transfer.send([("transformer.x", larger)], handle=handle, bucket_bytes=600, device=None, deadline=DEADLINE)
    assert "NoRoom" in refused(answer)


def test_a_worker_that_was_never_told_leaves_the_sender_a_deadline(replica: Any) -> None:
    handle = names.make_update_zmq_handle(
        f"ipc:///tmp/rl-colocate-zmq-{replica.job}-replica-9-rank-0.sock", "step-0-seq-0"
    )
    with pytest.raises(Exception, match=r"nobody listened within 0\.5 s"):
        transfer.send(replica.adapter(3.0).items(), handle=handle, bucket_bytes=600, device=None, deadline=0.5)


def test_a_sample_is_of_the_version_that_it_says_while_weights_change_under_it(running: Running) -> None:
    """Requests wait in the engine's queue when an update comes: some are drawn before it, and some after."""
    import ray

    one, seeds = running.replicas[0], range(30)
    pictures: dict[int, list[Tensor]] = {}
    for version, strength in ((3, 1.5), (2, 2.0)):
        one.publish(one.adapter(strength), version)
        pictures[version] = [one.picture(seed) for seed in seeds]
    differ = [not torch.equal(old, new) for old, new in zip(pictures[2], pictures[3], strict=True)]
    assert all(differ), "two versions that draw the same would prove nothing"
    asked = [one.draw(seed) for seed in seeds]
    wait_for(lambda: 0 < one.in_flight() < len(seeds) - 2)
    one.publish(one.adapter(1.5), 3)
    found = [(answer.extra_fields["global_steps"], answer.diffusion_output) for answer in ray.get(asked, timeout=SOON)]
    for seed, (version, picture) in zip(seeds, found, strict=True):
        assert torch.equal(picture, pictures[version][seed]), f"seed {seed} is not of version {version}"
    assert {version for version, _ in found} == {2, 3}
    one.publish(one.adapter(1.0), 1)


Change = tuple[int, int, str]  # rank, alpha, parts of the attention
CHANGES: list[Change] = [(2, 2, "q"), (2, 2, "v"), (4, 4, "qk"), (4, 8, "qk"), (8, 8, "qkv")]


def change(replica: Any, settings: Any, kind: Change) -> Tensor:
    """The picture after an update by an adapter of this kind."""
    rank, alpha, parts = kind
    weights = replica.adapter(1.0, rank, parts)
    found = replica.publish(weights, version=1, settings=settings(rank, alpha, parts))
    assert found["bound"] == 2 * len(parts), "a module of each block for each part"
    return replica.picture()  # type: ignore[no-any-return]


def test_rank_alpha_and_modules_may_change_and_nothing_of_the_adapter_before_stays(
    running: Running, lora_settings: Any
) -> None:
    """One replica takes the adapters in one order, the other in reverse: none has the same one before it."""
    one, other = running.replicas
    first, counted = one.picture(), running.leftovers()
    upwards = {kind: change(one, lora_settings, kind) for kind in CHANGES}
    downwards = {kind: change(other, lora_settings, kind) for kind in reversed(CHANGES)}
    for number, kind in enumerate(CHANGES):
        assert torch.equal(upwards[kind], downwards[kind]), kind
        same = [other for other in CHANGES[:number] if torch.equal(upwards[kind], upwards[other])]
        assert same == [], f"{kind} draws what {same} draws"
    assert torch.equal(upwards[4, 4, "qk"], first), "the pictures of the adapter that the engine took first"
    for replica in running.replicas:
        replica.publish(replica.adapter(1.0), version=1)
        assert torch.equal(replica.picture(), first)
    counted.none()


@pytest.mark.parametrize(
    ("sent", "told", "said"),
    [
        ((600, 600, "q"), (600, 600, "q"), "LoRA rank of 600 exceeds max allowed rank of 512"),
        ((2, 2, "q"), (4, 4, "q"), r"lora_A (2, 32) and lora_B (32, 2) where the rank is 4"),
        ((4, 4, "qx"), (4, 4, "qx"), "2 of 4 LoRA modules are not in the engine"),
    ],
)
def test_an_adapter_that_the_engine_has_no_room_for_is_refused(
    replica: Any, lora_settings: Any, sent: Change, told: Change, said: str
) -> None:
    handle, answer = replica.begin(settings=lora_settings(*told))
    weights = replica.adapter(3.0, sent[0], sent[2])
    transfer.send(weights.items(), handle=handle, bucket_bytes=1 << 20, device=None, deadline=DEADLINE)
    assert said in refused(answer)


# --- requests -----------------------------------------------------------------------------------------------


def test_what_is_cut_off_in_the_middle_says_so_and_the_rest_is_whole(replica: Any) -> None:
    import ray

    asked = [replica.draw(seed) for seed in range(40)]
    wait_for(lambda: replica.in_flight() > 10)
    found = ray.get(replica.server.abort_all_requests.remote(), timeout=SOON)
    assert replica.in_flight() == 0
    ray.get(replica.server.resume_generation.remote(), timeout=SOON)
    answers = ray.get(asked, timeout=SOON)
    aborted = [answer for answer in answers if answer.stop_reason == "aborted"]
    assert len(aborted) >= found["aborted_count"] > 0
    assert {answer.stop_reason for answer in answers} <= {"aborted", "completed"}
    for answer in answers:
        assert answer.diffusion_output.shape == ((0,) if answer.stop_reason == "aborted" else (3, 64, 64))
        assert answer.extra_fields["global_steps"] == 1


# --- silence: before anything is killed ---------------------------------------------------------------------


def test_a_replica_that_is_silent_is_named_and_serves_on_when_it_is_back(running: Running) -> None:
    """A process that is stopped has every connection, and answers nothing on any: Ray alone would wait for ever."""
    from verl_omni.workers.rollout.answers import ReplicaFailed  # not before Ray was started: it loads Ray

    one, other = running.replicas
    picture, counted = other.picture(), running.leftovers()
    assert torch.equal(one.picture(), picture)
    asked = [other.draw(seed) for seed in range(3)]
    pid = other.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Exception, match="SampleFailed") as drawing:
            running.score(["", "", "", ""], version=1)
        with pytest.raises(Exception, match=r"version 5 did not reach replica [01]: "):
            running.stack.weights.update_weights(global_steps=5)
        with pytest.raises(ReplicaFailed, match=r"replica 1, sleep: no answer within 10 s"):
            running.stack.weights.sleep_replicas()
        with pytest.raises(ReplicaFailed, match=r"replica 1 did not say its version within 10 s"):
            running.stack.versions()
    finally:
        os.kill(pid, signal.SIGCONT)
    said, address = str(drawing.value), running.stack.servers.server_addresses[1]
    assert f"replica {address}: TimeoutError: no answer for 10 s (rollout.deadline_seconds)" in said
    assert "at weight version 1" in said and any(prompt in said for prompt in PROMPTS)
    running.stack.weights.wake_up_replicas()
    assert [each.stop_reason for each in ray_get(asked)] == ["completed"] * 3
    assert torch.equal(other.picture(), picture)
    one.publish(
        one.adapter(1.0), version=1
    )  # it may have taken version 5, or not, as the other kept the trainer waiting
    assert torch.equal(one.picture(), picture)
    assert running.stack.versions() == [1, 1]
    counted.none()


def ray_get(asked: Any) -> Any:
    import ray

    return ray.get(asked, timeout=SOON)


# --- rewards ------------------------------------------------------------------------------------------------


def test_a_slow_score_is_waited_for_and_a_raising_scorer_is_named(running: Running) -> None:
    scored = running.score(["", "slow", "", ""])
    assert scored.scoring_seconds > 2
    assert scored.scores.tolist() == pytest.approx([float(image.float().mean() / 255) for image in scored.images])
    with pytest.raises(Exception, match="the scorer's disk is gone") as caught:
        running.score(["", "", "raise", ""])
    assert PROMPTS[2] in str(caught.value)
    assert running.score(["", "", "", ""]).scores.tolist() == scored.scores.tolist()


def test_a_reward_worker_that_dies_ends_the_batch_with_its_name(running: Running) -> None:
    import ray

    (worker, *_) = ray.get(
        running.stack.agent_loop.agent_loop_workers[0].__ray_call__.remote(lambda own: own.reward_loop_worker_handles)
    )
    pid = ray.get(worker.__ray_call__.remote(lambda own: os.getpid()))
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(running.score, ["slow", "slow", "slow", "slow"])
        time.sleep(1)  # it is being scored: whichever moment it dies at, the batch must end
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Exception, match="RewardLoopWorker") as caught:
            batch.result(timeout=SOON)
    assert "SampleFailed" in str(caught.value)


# --- replicas -----------------------------------------------------------------------------------------------


def test_a_replica_that_dies_while_it_draws_ends_the_batch_and_is_named(running: Running) -> None:
    import ray

    one, other = running.replicas
    pid, counted = other.pid(), running.leftovers()
    asked = [other.draw(seed) for seed in range(40)]
    wait_for(lambda: other.in_flight() > 10)
    os.kill(pid, signal.SIGKILL)
    ended = []
    for answer in asked:
        try:
            ray.get(answer, timeout=SOON)
        except ray.exceptions.RayActorError as error:
            ended.append(str(error))
    assert ended
    assert torch.equal(one.picture(), one.picture())
    address = running.stack.servers.server_addresses[1]
    with pytest.raises(Exception, match="SampleFailed") as batch:  # its share of any batch goes to nobody
        running.score(["", "", "", ""], version=1)
    assert f"replica {address}: Actor" in str(batch.value)
    counted.none()


def test_a_replica_that_dies_in_an_update_ends_the_update(running: Running) -> None:
    import ray

    one = running.replicas[0]
    pid, counted = one.pid(), running.leftovers()

    def weights() -> Iterator[tuple[str, Tensor]]:
        for number, (name, tensor) in enumerate(one.adapter(2.0).items()):
            if number == 5:
                os.kill(pid, signal.SIGKILL)
            yield name, tensor

    handle, answer = one.begin()
    with pytest.raises(Exception, match="DeadlineExceeded"):
        transfer.send(weights(), handle=handle, bucket_bytes=600, device=None, deadline=DEADLINE)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(answer, timeout=SOON)
    with pytest.raises(Exception, match=r"died|dead"):
        running.stack.weights.update_weights(global_steps=3)
    counted.none()


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < end, "it did not happen"
