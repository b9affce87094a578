"""A small valid job as text, and the problems that are found in it after a change."""

import textwrap

import pytest

from omni_operator.api import JobError, read_job

GOOD = textwrap.dedent("""\
    apiVersion: diffusionrl.io/v1alpha1
    kind: DiffusionRLJob
    metadata:
      name: a-job
    spec:
      model:
        base: ./model
      data:
        train: [train.jsonl]
      reward:
        scorers:
        - name: jpeg
      trainer:
        totalSteps: 3
""")


def problems(text: str, *assignments: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        read_job(text, "job.yaml", assignments)
    return [str(problem) for problem in caught.value.problems]
