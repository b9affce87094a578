"""Warnings about recipes: each rule warns below its limit and not at it, and names value, reason and source."""

import re

import pytest

from control.plan.rendered_objects import make_job
from omni_operator import plan

SOUND = (
    *("spec.trainer.batch.prompts=32", "spec.rollout.samplesPerPrompt=16", "spec.rollout.pipeline.steps=10"),
    *("spec.trainer.learningRate=0.0003", "spec.rollout.sampler.noiseLevel=0.7", "spec.model.base=org/sd35-medium"),
)
NFT = ("spec.algorithm.name=DiffusionNFT", "spec.rollout.sampler.noiseLevel=0")
KL_OF_NFT = "spec.algorithm.overrides=[actor_rollout_ref.actor.diffusion_loss.ref_kl_coef=0.0001]"
OCR = "spec.reward.scorers=[{name: ocr}]"
KL = "spec.algorithm.overrides=[actor_rollout_ref.actor.use_kl_loss=true]"


def warned(*assignments: str) -> list[str]:
    """Fields of the warnings about a sound job with these changes; what has no field by the trainer's setting."""
    changed = {name.partition("=")[0] for name in assignments}
    kept = [assignment for assignment in SOUND if assignment.partition("=")[0] not in changed]
    risks = plan.find_risks(make_job(*kept, *assignments))
    for risk in risks:
        assert re.search(r"\bis \S+", risk.text), "the value"
        assert re.search(r"arXiv:\d{4}\.\d{5}|[\w-]+/[\w-]+#\d+|verl-omni", risk.text), "the source"
    return [
        risk.text.split()[0].rpartition(".")[2] if risk.at[-1] == "overrides" else str(risk.at[-1]) for risk in risks
    ]


@pytest.mark.parametrize(
    ("assignments", "names"),
    [
        ((), []),
        (("spec.rollout.samplesPerPrompt=7",), ["samplesPerPrompt"]),
        (("spec.rollout.samplesPerPrompt=8",), []),
        (("spec.trainer.batch.prompts=7",), ["prompts"]),
        (("spec.trainer.batch.prompts=8",), []),
        (("spec.rollout.pipeline.steps=7",), ["steps"]),
        (("spec.rollout.pipeline.steps=8",), []),
        (("spec.rollout.pipeline.steps=4", *NFT, KL_OF_NFT), []),  # no noise between its steps
        ((OCR,), ["use_kl_loss"]),
        ((OCR, KL), []),
        (
            ("spec.reward.scorers=[{name: unified_reward, settings: {base_url: 'http://j/v1', model: m}}]",),
            ["use_kl_loss"],
        ),
        (("spec.reward.scorers=[{name: ocr, weight: 0}, {name: jpeg}]",), []),
        (("spec.reward.scorers=[{name: ocr, use: Evaluation}, {name: jpeg}]", "spec.data.validation=[h.txt]"), []),
        (NFT, ["ref_kl_coef"]),
        ((*NFT, KL_OF_NFT), []),
        (("spec.model.base=org/Z-Image-Turbo",), ["base"]),
        (("spec.model.base=org/Qwen-Image-Lightning", *NFT, KL_OF_NFT), ["base"]),
        (("spec.model.base=org/FLUX.2-klein-4B",), ["base"]),
        (("spec.model.base=org/FLUX.2-klein-base-4B",), []),
        (("spec.model.base=/turbo/models/sd35",), []),
        (("spec.trainer.learningRate=0.004",), ["learningRate"]),
        (("spec.trainer.learningRate=0.003",), []),
        (("spec.trainer.learningRate=0",), ["learningRate"]),
        (("spec.trainer.learningRate=0.001", "spec.model.lora={enabled: false}"), ["learningRate"]),
        (("spec.trainer.batch.prompts=2", "spec.algorithm.entrypoint=[python3, train.py]"), []),
    ],
)
def test_a_recipe_is_warned_of(assignments: tuple[str, ...], names: list[str]) -> None:
    assert warned(*assignments) == names


def test_warnings_of_a_job_on_a_cluster_contain_those_of_its_recipe() -> None:
    job = make_job("spec.rollout.samplesPerPrompt=4")
    assert {risk.at for risk in plan.find_risks(job)} < {warning.at for warning in plan.find_warnings(job)}
    assert plan.find_refusals(job, plan.ClusterSettings(image="i")) == []
