"""Standalone replicas: a run equals a colocated one, loses a replica, is ahead; an average is evaluated.

A judge on the trainer's accelerators scores the images of a run.
"""

import itertools
import json
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.ml.engine import forked_program
from tests.ml.run_metrics import without_durations
from verl_omni.models.vision_language import make_tiny_qwen3_vl
from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3
from verl_omni.reward_loop.rewards.genrm_ocr import QUESTION, normalize, text_score

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STEPS = 3
WAIT = 120.0
STANDALONE = ("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.min_replicas=1")
TWO, THREE = (f"actor_rollout_ref.rollout.n_gpus_per_node={count}" for count in (2, 3))
AVERAGE = "actor_rollout_ref.actor.ema_decay=0.9"
ASYNC = ("trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async")


def command_of(folder: Path, model: Path, program: str, *overrides: str) -> list[str]:
    """The command of a short training."""
    prompts = folder / "prompts.jsonl"
    pipeline = "actor_rollout_ref.rollout.pipeline"
    prompts.write_text("".join(f'{{"prompt": "a {colour} circle"}}\n' for colour in ("red", "blue", "green", "grey")))
    settings = (
        f"data.train_files='{prompts}'",
        f"data.val_files='{prompts}'",
        f"trainer.default_local_dir='{folder / 'run'}'",
        "reward.scorer=brightness",
        f"trainer.total_training_steps={STEPS}",
        "data.train_batch_size=2",
        "data.max_prompt_length=16",
        f"actor_rollout_ref.model.path='{model}'",
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "actor_rollout_ref.rollout.n=4",
        f"{pipeline}.max_sequence_length=16",
        f"{pipeline}.height=64",
        f"{pipeline}.width=64",
        f"{pipeline}.num_inference_steps=4",
        # With a batch size of one, images are bit-identical; with one prompt in a micro-batch, and advantages that do
        # not depend on other prompts, also gradients, whether or not a step is trained on in parts.
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "algorithm.global_std=false",
    )
    return [sys.executable, *program.split(), *settings, *overrides]


def run(folder: Path, model: Path, program: str, *overrides: str) -> tuple[Path, str]:
    """Run a short training; its run folder and its output."""
    code, output = forked_program.run(command_of(folder, model, program, *overrides), timeout=280)
    assert code == 0, output
    return folder / "run", output


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Metrics of each step without durations and lost samples."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in without_durations(line).items() if name != "rollout/samples_lost"}
        for line in lines
    ]


def test_a_run_with_standalone_replicas_equals_a_colocated_one_also_after_one_is_gone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_tiny_sd3(model)
    for name in ("pools", "colocated", "ahead"):
        (tmp_path / name).mkdir()
    compatible = (*ASYNC, "trainer.v1.separate_async.sync_compatible=true")
    killing = str(Path(__file__).with_name("pool_run.py"))
    pools, output = run(tmp_path / "pools", model, killing, *STANDALONE, THREE, *compatible, AVERAGE)
    colocated, _ = run(tmp_path / "colocated", model, "-m verl_omni.trainer.main_diffusion")

    assert [line["weights/version"] for line in metrics(pools)] == list(range(STEPS + 1))
    averaged = metrics(pools)
    synchronous = metrics(colocated)
    # The last evaluation samples from the averaged weights in the pools, and from the policy in the other run.
    ends = [
        {name: line.pop(name) for name in [*line] if name.startswith(("val/", "diversity/images"))}
        for line in (averaged[-1], synchronous[-1])
    ]
    assert averaged == synchronous
    assert ends[0].keys() == ends[1].keys() and ends[0]["val/reward/mean"] != ends[1]["val/reward/mean"]
    # Not from what was printed, which other processes interrupt.
    events = [json.loads(line) for line in (pools / "progress.jsonl").read_text().splitlines()]
    warnings = [event for event in events if event["event"] == "warning"]
    in_update, in_generation = (event["message"] for event in warnings if event["reason"] != "RecipeRisk")
    assert "replica 1 serves no more: version 1 did not reach it" in in_update
    # On a busy machine the update, which waits for none that is late, notices the dead server before the router does.
    assert re.search("replica 2 serves no more: (it left the router|version 1 did not reach it): Actor", in_generation)
    assert "it serves no more, and others generate its samples again" in output
    # Those in their place have the version of the others before their first request.
    joined = [event["text"] for event in events if "joined with version" in event.get("text", "")]
    assert sorted(text.split(" joined")[0] for text in joined) == ["replica 3", "replica 4"]

    # The batch of step s + 1 is generated while the trainer updates with the batch of step s.
    ahead, output = run(tmp_path / "ahead", model, killing, *STANDALONE, TWO, ASYNC[1])
    asynchronous = metrics(ahead)
    # All replicas die while they generate the batch of step 3, so others generate it, with the weights of step 2.
    assert [line.pop("weights/staleness") for line in asynchronous[1:]] == [0, 1, 0]
    assert "joined with version 2" in output and "samples are up to 1 version of the weights old" in output
    assert asynchronous[1] == synchronous[1], "the samples of the first step have the current weights"
    assert asynchronous[2]["reward/mean"] != synchronous[2]["reward/mean"], "version 0 generated them, not version 1"
    assert [line["weights/min_replica_version"] for line in asynchronous] == list(range(STEPS + 1))
    assert abs(asynchronous[-1]["val/reward/mean"] - asynchronous[0]["val/reward/mean"]) > 1e-6, "the policy moved"


def test_a_run_that_generates_ahead_can_be_interrupted(tmp_path: Path) -> None:
    """The batch that is being generated is given up, and the last complete step is saved."""
    model = tmp_path / "model"
    make_tiny_sd3(model)
    steps = "trainer.total_training_steps=50"
    command = command_of(tmp_path, model, "-m verl_omni.trainer.main_diffusion", *STANDALONE, *ASYNC, steps)
    with forked_program.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = list(itertools.takewhile(lambda line: not line.startswith("step 2"), process.stdout))
            process.send_signal(signal.SIGINT)
            lines += process.stdout.readlines()
            assert process.wait(WAIT) == 130, "".join(lines)
        finally:
            process.kill()
    assert any("stopped after step" in line for line in lines) and any((tmp_path / "run" / "checkpoints").iterdir())


def test_a_run_whose_replicas_are_all_lost_in_a_generation_can_be_interrupted(tmp_path: Path) -> None:
    """The generation would wait for others for half an hour; the last complete step is saved."""
    model = tmp_path / "model"
    make_tiny_sd3(model)
    compatible = (*ASYNC, "trainer.v1.separate_async.sync_compatible=true")
    program = str(Path(__file__).with_name("stopped_run.py"))
    command = command_of(tmp_path, model, program, *STANDALONE, *compatible, "data.val_files=null")
    code, output = forked_program.run(command, timeout=280)
    assert code == 130, output
    assert f"stopped after step 1 of {STEPS}" in output
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir()] == ["step_000001"]


RM = "reward.reward_model"
# Long, so that a part of whatever the random model answers is in it.
TRUTH = "answer image score final text visible exactly with all of the 1 2 3 4 5 in this a is to"


def test_a_served_judge_scores_what_it_sees(tmp_path: Path) -> None:
    model = tmp_path / "model"
    judge = tmp_path / "judge"
    saved = tmp_path / "saved"
    make_tiny_sd3(model)
    make_tiny_qwen3_vl(judge)
    prompts = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"a {colour} circle", "ground_truth": TRUTH} for colour in ("red", "blue", "green", "grey")]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder, _ = run(
        tmp_path,
        model,
        "-m verl_omni.trainer.main_diffusion",
        f"data.train_files='{prompts}'",
        f"data.val_files='{prompts}'",
        "reward.scorer=genrm_ocr",
        "reward.scorer_kwargs.max_tokens=12",
        f"trainer.rollout_data_dir='{saved}'",
        f"{RM}.enable=true",
        f"{RM}.model_path='{judge}'",
        f"{RM}.rollout.tensor_model_parallel_size=1",
        f"{RM}.rollout.max_model_len=512",
        f"{RM}.rollout.max_num_seqs=8",
        f"{RM}.rollout.dtype=float32",
        "trainer.total_training_steps=2",
    )
    samples = [json.loads(line) for step in (1, 2) for line in (saved / f"{step}.jsonl").read_text().splitlines()]
    expected = [ocr_score(judge, saved / line["output"]) for line in samples]
    assert [line["score"] for line in samples] == pytest.approx(expected)
    assert len(samples) == 16 and len(set(expected)) > 2, "the images are not told apart"
    steps = metrics(folder)
    assert [line["weights/version"] for line in steps] == [0, 1, 2] and steps[1]["actor/grad_norm"] > 0


@cache
def _reference(judge: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoProcessor.from_pretrained(judge), AutoModelForImageTextToText.from_pretrained(judge)


def ocr_score(judge: Path, picture: Path) -> float:
    """The score of `genrm_ocr`, with the answer of transformers."""
    processor, model = _reference(judge)
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    asked = processor(text=[text], images=[Image.open(picture)], return_tensors="pt")
    # verl's server masks them out.
    never = processor.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    output_ids = model.generate(**asked, max_new_tokens=12, do_sample=False, suppress_tokens=never)
    answer_ids = output_ids[0, asked["input_ids"].shape[1] :]
    return text_score(normalize(processor.tokenizer.decode(answer_ids, skip_special_tokens=True)), normalize(TRUTH))
