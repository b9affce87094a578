"""Jobs are read strictly, and what is wrong with them is said with file, line and the nearest valid name."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.api.small_job import GOOD, problems
from omni_operator.api import JobError, Problem, load_job, read_job
from omni_operator.api.files.yaml_document import Document


def test_the_smallest_job_is_valid() -> None:
    job = read_job(GOOD, "job.yaml").job
    assert job.metadata.name == "a-job"
    assert job.spec.rollout.samples_per_prompt == 8


def test_an_unknown_field_is_reported_with_line_and_nearest_name() -> None:
    text = GOOD + "  rollout:\n    samplesPerPrompt: 4\n    replcas: 1\n"
    assert problems(text) == ["job.yaml:17: spec.rollout.replcas: unknown field; did you mean 'replicas'?"]


def test_an_unknown_field_without_a_near_name_lists_the_valid_fields() -> None:
    (problem,) = problems(GOOD + "  data2: {}\n".replace("data2", "zzzzzz"))
    assert problem.startswith("job.yaml:15: spec.zzzzzz: unknown field; valid fields: model, data, reward")


def test_an_unknown_field_in_a_list_has_its_own_line() -> None:
    text = GOOD.replace("- name: jpeg", "- name: jpeg\n      wieght: 2")
    assert problems(text) == ["job.yaml:13: spec.reward.scorers[0].wieght: unknown field; did you mean 'weight'?"]


def test_problems_are_in_the_order_of_the_file() -> None:
    text = GOOD.replace("a-job", "A_job").replace("totalSteps: 3", "totalSteps: 0\n    replcas: 1") + "  sed: 1\n"
    lines = problems(text)
    assert [line.split(": ")[1] for line in lines] == [
        "metadata.name",
        "spec.trainer.totalSteps",
        "spec.trainer.replcas",
        "spec.sed",
    ]


def test_without_log_probabilities_a_window_of_cps_may_hold_the_last_step() -> None:
    window = "spec.rollout.sampler={type: cps, noiseLevel: 0.7, window: {size: 2, start: 0, end: 10}}"
    job = read_job(GOOD, "job.yaml", ["spec.algorithm.name=DiffusionNFT", window]).job
    assert job.spec.rollout.sampler.window


def test_assignments_replace_values_and_are_named_in_errors() -> None:
    loaded = read_job(GOOD, "job.yaml", ["spec.trainer.totalSteps=9", "spec.rollout.pipeline.steps=4"])
    assert (loaded.job.spec.trainer.total_steps, loaded.job.spec.rollout.pipeline.steps) == (9, 4)
    assert problems(GOOD, "spec.trainer.totalStps=9") == [
        "--set spec.trainer.totalStps=9: spec.trainer.totalStps: unknown field; did you mean 'totalSteps'?"
    ]
    assert problems(GOOD, "spec.reward.scorers.3.name=jpeg") == [
        "--set spec.reward.scorers.3.name=jpeg: no such path: there is nothing at 3"
    ]
    assert problems(GOOD, "spec.reward.scorers[3].name=jpeg") == [
        "--set spec.reward.scorers[3].name=jpeg: no such path: there is nothing at 3"
    ]
    assert read_job(GOOD, "job.yaml", ["spec.reward.scorers[0].name=jpeg"]).job.spec.reward.scorers[0].name == "jpeg"
    (problem,) = problems(GOOD, "trainer.totalSteps=9")
    assert problem.startswith("--set trainer.totalSteps=9: trainer: unknown field; valid fields: "), "the file is right"
    (problem,) = problems(GOOD, "spec.trainr.totalSteps=9")
    assert problem.startswith("--set spec.trainr.totalSteps=9: spec.trainr: unknown field; did you mean 'trainer'?")
    assert problems(GOOD, "spec.seed=1", "spec.seed=2") == [
        "--set spec.seed=2: already set by --set spec.seed=1; remove one of the two"
    ]
    assert problems(GOOD, "spec.seed") == ["--set spec.seed: write spec.field=value"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.yaml: expected one job, found 0 documents"),
        ("- 1\n", "job.yaml: expected one job, found a list or a single value"),
        (
            GOOD + "---\n" + GOOD.replace("a-job", "b-job"),
            "job.yaml: expected one job, found DiffusionRLJob a-job (line 1), DiffusionRLJob b-job (line 16); "
            "write each to a file",
        ),
        (
            "kind: ConfigMap\nmetadata: {name: x}\n---\nkind: Job\n",
            "job.yaml: expected one job, found ConfigMap x (line 1), Job (line 4)",
        ),
        (GOOD + "kind: DiffusionRLJob\n", "job.yaml:15: not valid YAML: found duplicate key"),
        (GOOD + "  x: [1\n", "not valid YAML"),
        ("a: \x07\n", "not valid YAML"),
    ],
)
def test_text_that_is_not_a_job_is_refused(text: str, said: str) -> None:
    (problem,) = problems(text)
    assert said in problem


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("!vault seed", "the tag !vault has no meaning here; write the value without it"),
        ("!Ref {a: 1}", "the tag !Ref has no meaning here; write the value without it"),
        ("!!binary aGVsbG8=", "the tag !!binary has no meaning here; write the value without it"),
        ("9" * 5000, f"'{'9' * 40}' is not a valid value of !!int"),
        ("0x" + "f" * 5000, "a number with too many digits"),
        ("!!int abc", "'abc' is not a valid value of !!int"),
        ("!!int _", "'_' is not a valid value of !!int"),
        ("!!float abc", "'abc' is not a valid value of !!float"),
        ("!!bool abc", "'abc' is not a valid value of !!bool"),
        ("&a {<<: *a}", "an alias stands for a value that contains the alias"),
        ("&a [1, {b: *a}]", "an alias stands for a value that contains the alias"),
        ("[" * 500 + "]" * 500, "nested more than 64 levels deep"),
        ("{a: " * 500 + "}" * 500, "nested more than 64 levels deep"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_its_place(value: str, said: str) -> None:
    (problem,) = problems(GOOD + f"  seed: {value}\n")
    assert problem == f"job.yaml:15: not valid YAML: {said}"
    (problem,) = problems(GOOD, f"spec.seed={value}")
    assert problem == f"--set spec.seed={value}: the value is not valid YAML: {value!r}: {said}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0400", 256),  # the mode of a file, as Kubernetes' documentation writes it
        ("-010", -8),
        ("08", 8),
        ("0x10", 16),
        ("1_000", 1000),
        ("2026-11-29", "2026-11-29"),
        ("2026-11-29T10:00:00Z", "2026-11-29T10:00:00Z"),
        ("2001-99-99", "2001-99-99"),
        ("no", False),
        ("On", True),
        ("y", True),
        ("N", False),
        ('"no"', "no"),
        ("!!str no", "no"),
        ("oN", "oN"),
        ("{on: 1}", {"true": 1}),
        ("!!str 010", "010"),
        ('!!str "010"', "010"),
        ("1e-4", 0.0001),
    ],
)
def test_values_are_those_that_kubectl_reads(text: str, value: Any) -> None:
    document = Document.parse(f"a: {text}", "job.yaml")
    document.assign(f"b={text}")
    assert document.plain() == {"a": value, "b": value}
    assert Document.parse(document.dump(), "again.yaml").plain() == document.plain()


def nested_aliases(value: str, levels: int) -> str:
    """A list whose size with a value in place of each alias is 10 to the power of `levels`."""
    items = [f"&a0 [{', '.join([value] * 10)}]"]
    items += [f"&a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return f"[{', '.join(items)}]"


@pytest.mark.parametrize(
    "value",
    [
        nested_aliases("x", 9),
        nested_aliases("{a: 1}", 30),
        f"[&a {'x' * 100_000}, {', '.join(['*a'] * 20)}]",
        f"[&a0 {{x: 1}}, {', '.join(f'&a{n + 1} {{<<: *a{n}, k{n}: *a{n}}}' for n in range(40))}]",
        f"[&a0 {{x: 1}}, {', '.join(f'&a{n + 1} {{<<: [*a{n}, *a{n}]}}' for n in range(40))}]",
    ],
    ids=["lists", "mappings", "long text", "merged and nested", "merged twice"],
)
def test_aliases_that_make_a_document_too_large_are_refused_before_they_are_replaced(value: str) -> None:
    too_large = "not valid YAML: with a value in place of each alias, the document has more than 2,000,000 characters"
    (problem,) = problems(GOOD + f"  seed: {value}\n")
    assert problem == f"job.yaml:15: {too_large}"
    (problem,) = problems(GOOD, f"spec.seed={value}")
    assert problem.endswith(too_large.removeprefix("not valid YAML: "))


def test_aliases_are_read_and_64_levels_too() -> None:
    deep = "[" * 60 + "]" * 60
    text = GOOD + f"  seed: &seed 3\n  rollout: {{samplesPerPrompt: *seed}}\n  head: {{podTemplate: {{a: {deep}}}}}\n"
    assert all("YAML" not in problem for problem in problems(text))
    assert read_job(text.partition("  head")[0], "job.yaml").job.spec.rollout.samples_per_prompt == 3


@pytest.mark.parametrize("name", ["spec.²", "spec." + "9" * 5000])
def test_a_field_that_is_no_place_of_a_list_is_unknown(name: str) -> None:
    (problem,) = problems(GOOD, f"{name}=:²")
    assert "unknown field; valid fields: model" in problem


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(JobError, match=r"^<stdin>: standard input is closed"):
        load_job(Path("-"))


def test_a_missing_field_is_described_in_its_own_words() -> None:
    assert "apiVersion: must be given: API version: diffusionrl.io/v1alpha1" in problems("kind: a\n")[0]
    assert "metadata: must be given: name" in "".join(problems("kind: a\n")).lower()


@given(st.text(st.sampled_from("ab1_-.: \n[]{}&*<!'\"#|>%?,~0xe²\t"), max_size=40))
@settings(max_examples=50, deadline=None)
def test_any_text_is_a_job_or_gives_explained_problems(text: str) -> None:
    for document, assignments in ((text, []), (f"{GOOD}  seed: {text}", []), (GOOD, [f"spec.{text}"])):
        with contextlib.suppress(JobError):
            read_job(document, "job.yaml", assignments)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no such file"):
        load_job(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="not a text file in UTF-8"):
        load_job(tmp_path / "binary.yaml")


def test_a_dumped_document_is_the_same_job_and_keeps_comments() -> None:
    loaded = read_job(GOOD.replace("name: jpeg", "name: jpeg  # small files"), "job.yaml", ["spec.seed=5"])
    again = read_job(loaded.document.dump(), "again.yaml")
    assert again.job == loaded.job
    assert "# small files" in loaded.document.dump()


junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.sampled_from(["spec", "spec.model", "spec.rollout", "spec.reward.scorers", "metadata", "spec.data.train"]), junk
)
def test_any_value_gives_a_job_or_explained_problems(path: str, value: Any) -> None:
    refusals: tuple[Problem, ...] | None = None
    try:
        read_job(GOOD, "job.yaml", [f"{path}={json.dumps(value)}"])
    except JobError as error:
        refusals = error.problems
    assert refusals is None or (refusals and all(problem.text and problem.where for problem in refusals))


def test_the_one_job_of_several_documents_is_read_and_the_others_are_named() -> None:
    claim = "kind: PersistentVolumeClaim\nmetadata:\n  name: runs\n---\n"
    loaded = read_job(f"---\n{claim}{GOOD}---\nkind: ConfigMap\n", "job.yaml")
    assert loaded.job.metadata.name == "a-job"
    assert loaded.document.others == (
        "PersistentVolumeClaim runs (line 2)",
        f"ConfigMap (line {6 + GOOD.count(chr(10)) + 1})",
    )
    assert "PersistentVolumeClaim" not in loaded.document.dump()
    (problem,) = problems(claim + GOOD.replace("totalSteps: 3", "totalSteps: 0"))
    assert problem.startswith("job.yaml:18: spec.trainer.totalSteps")


def test_the_one_job_of_a_list_is_read_with_its_lines() -> None:
    item = "".join(f"  {line}\n" for line in GOOD.splitlines())
    text = f"apiVersion: v1\nkind: List\nitems:\n-{item[1:]}- kind: Secret\n  metadata: {{name: token}}\n"
    loaded = read_job(text, "job.yaml")
    assert loaded.job.metadata.name == "a-job"
    assert [name.partition(" (")[0] for name in loaded.document.others] == ["Secret token"]
    assert loaded.document.where(("metadata", "name")) == "job.yaml:7"
    assert read_job(text.partition("- kind: Secret")[0], "job.yaml").document.others == ()
