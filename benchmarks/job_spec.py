"""The job that benchmarks of the operator submit."""

from typing import Any

SPEC: dict[str, Any] = {
    "model": {"base": "/models/shapes-sd3"},
    "data": {"train": ["/data/prompts.jsonl"]},
    "reward": {"scorers": [{"name": "color"}]},
    "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA"}},
    "rollout": {"replicas": 1},
    "checkpoint": {"claimName": "ckpt"},
}
