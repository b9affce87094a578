"""Recipes in YAML: the command of a RayJob or of a pod, with every setting, or a refusal."""

from __future__ import annotations

import json

import pytest

from omni_operator.recipes import RecipeError, read_script

MODULE = "verl_omni.trainer.main_diffusion"
CALL = f"python3 -m {MODULE}"
RAY_JOB = f"""\
# A job of KubeRay.
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: train}}
spec:
  entrypoint: >-
    cd /work && {CALL} data.train_files=$DATA/train.parquet
    b=${{MODE:-none}} c=$TOKEN
    d='1 2'
  runtimeEnvYAML: |
    working_dir: "."
    env_vars: {{DATA: /mnt, SEED: 7}}
  rayClusterSpec:
    headGroupSpec:
      rayStartParams: {{}}
      template:
        spec:
          containers:
          - name: head
            image: x
            env:
            - {{name: DATA, value: /data}}
            - {{name: MODE, value: "$(DATA)/mode"}}
            - {{name: TOKEN, valueFrom: {{secretKeyRef: {{name: s, key: k}}}}}}
    workerGroupSpecs:
    - template: {{spec: {{containers: [{{name: worker, command: [sleep, "1"]}}]}}}}
"""


def pod(container: str) -> str:
    return f"{{containers: [{{name: sidecar, command: [sh, -c, 'sleep 1']}}, {container}]}}"


def test_the_entry_point_of_a_ray_job_with_its_environment() -> None:
    call = read_script(RAY_JOB)
    assert call.arguments == ("data.train_files=/mnt/train.parquet", "b=/data/mode", "c=$(TOKEN)", "d=1 2")
    assert (call.unknown, call.environment) == (("$(TOKEN)",), ("SEED",))
    assert call.command == "spec.entrypoint"


WORDS = f"[python3, -m, {MODULE}, a=1, 'b=x $HOME', c=$(N), d=$(SECRET), e=$(OTHER), f=$$(N), 8]"
CONTAINER = (
    f"{{name: train, command: {WORDS}, env: [{{name: N, value: '3'}}, {{name: SECRET, valueFrom: {{}}}}, {{name: X}}]}}"
)


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Pod", "{pod}", "spec"),
        ("Job", "{{template: {{spec: {pod}}}}}", "spec.template.spec"),
        ("CronJob", "{{jobTemplate: {{spec: {{template: {{spec: {pod}}}}}}}}}", "spec.jobTemplate.spec.template.spec"),
        (
            "PyTorchJob",
            "{{pytorchReplicaSpecs: {{Master: {{template: {{spec: {pod}}}}}}}}}",
            "spec.pytorchReplicaSpecs.Master.template.spec",
        ),
        ("VCJob", "{{tasks: [{{template: {{spec: {pod}}}}}]}}", "spec.tasks[0].template.spec"),
    ],
)
def test_the_command_of_a_container_that_no_shell_reads(kind: str, spec: str, path: str) -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {run.sh: echo}\n"
    text = f"{other}---\napiVersion: v1\nkind: {kind}\nspec: {spec.format(pod=pod(CONTAINER))}\n"
    call = read_script(text)
    expected = ("a=1", "b=x $HOME", "c=3", "d=${SECRET}", "e=$(OTHER)", "f=$(N)", "8")
    assert (call.arguments, call.unknown) == (expected, ("$HOME", "${SECRET}"))
    assert (call.environment, call.command) == (("N", "X"), f"{path}.containers[1]")


def test_pods_of_several_roles_may_have_the_same_command() -> None:
    def roles(worker: str) -> str:
        return "".join(
            f"    {role}: {{template: {{spec: {{containers: [{{command: [bash, -c, '{CALL} {words}']}}]}}}}}}\n"
            for role, words in (("Master", "a=1 b=2"), ("Worker", worker))
        )

    text = "kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n"
    assert read_script(text + roles("a=1 b=2")).arguments == ("a=1", "b=2")
    with pytest.raises(RecipeError, match="starts the trainer 2 times; keep one call"):
        read_script(text + roles("a=1 b=3"))


@pytest.mark.parametrize(
    "words",
    [
        "command: [bash, -c], args: ['A=1; {call} a=$A b=$N c=$(N)']",
        "command: [/bin/sh, -ec, 'A=1; {call} a=$A b=$N c=$(N)']",
        "args: [bash, -x, -c, 'A=1; {call} a=$A b=$N c=$(N)', name]",
    ],
)
def test_the_command_of_a_container_that_a_shell_reads(words: str) -> None:
    container = f"{{name: train, {words.format(call=CALL)}, env: [{{name: N, value: '3'}}]}}"
    call = read_script(json.dumps({"kind": "Pod"})[:-1] + f', "spec": {pod(container)}}}')
    assert (call.arguments, call.unknown) == (("a=1", "b=3", "c=3"), ())


GITHUB = f"""\
name: train
on: push
jobs:
  train:
    services: {{db: {{image: x}}}}
    steps:
    - run: |
        {CALL} \\
          a=1
"""
NOT_A_SCRIPT = "not a shell script; of YAML, the entry point of a RayJob and the commands of containers are"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GITHUB, NOT_A_SCRIPT),
        (f"train:\n  script:\n  - {CALL}\n    a=1\n", NOT_A_SCRIPT),
        (f"command:\n- python3\n- -m\n- {MODULE}\n- a=1\n", NOT_A_SCRIPT),
        (f"- python3\n- -m\n- {MODULE}\n- a=1\n", NOT_A_SCRIPT),
        (json.dumps({"configurations": [{"module": MODULE, "args": ["a=1"]}]}, indent=2), NOT_A_SCRIPT),
        ("apiVersion: diffusionrl.io/v1alpha1\nkind: DiffusionRLJob\nspec: {}\n", NOT_A_SCRIPT),
        (f"{{{{- if .Values.x }}}}\n{RAY_JOB}{{{{- end }}}}\n", "neither a shell script nor YAML (line 1: expected"),
        (RAY_JOB.replace("  entrypoint", "   entrypoint"), "neither a shell script nor YAML (line 10: "),
        (RAY_JOB.replace(MODULE, "verl.trainer.main_ppo"), "the script starts verl.trainer.main_ppo; only"),
        (RAY_JOB.replace(CALL, "python3 x.py"), f"none of spec.entrypoint starts {MODULE}"),
        (RAY_JOB.replace(CALL, "bash /x/run.sh"), f"none of spec.entrypoint starts {MODULE}; /x/run.sh, which"),
        (RAY_JOB.replace("{DATA: /mnt, SEED: 7}", "[7]"), "not a shell script; as YAML, env_vars cannot be read"),
        (f"services:\n  train: {{image: x, command: {CALL} a=1}}\n", NOT_A_SCRIPT),
        (
            f"{RAY_JOB}---\n{RAY_JOB.replace(CALL, f'{CALL} more=1')}",
            "the script starts the trainer 2 times; keep one call",
        ),
    ],
)
def test_yaml_without_a_command_that_can_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_script(text)
    assert str(caught.value).startswith(said)


def test_a_condition_in_a_command_is_named_with_the_command() -> None:
    call = read_script(RAY_JOB.replace(CALL, f"[ $GPU ] && N=1; {CALL} a=$N"))
    assert call.conditional == (("$N", "line 1 of spec.entrypoint"),)


def test_a_comment_or_an_assignment_at_the_beginning_is_no_yaml() -> None:
    assert read_script(f"# kind: RayJob\nN=1 : x\n: ${{M:=2}}\n{CALL} a=$M").arguments == ("a=2",)
