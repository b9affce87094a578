"""Files of prompts are checked row by row before anything starts."""

import json
import shutil
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.ml import smallest_job
from verl_omni.trainer.data import dataset_class, prompt_dataset, prompt_files, prompt_tables, run_length
from verl_omni.trainer.settings import configuration

NEEDED = ["actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
GOOD = '{"prompt": "red"}\n'
MESSAGES = [{"role": "user", "content": "red"}, {"role": "user", "content": [{"type": "text", "text": "blue"}]}]
NO_PROMPT = "there is no column 'prompt'; set data.prompt_key (in a job: spec.algorithm.overrides) to one of: text"
WRONG_PROMPT = "column prompt: a prompt must be text or a list of messages, not "


def problem(path: Path) -> str:
    with pytest.raises(prompt_files.InvalidPromptFile) as refused:
        prompt_files.check_file(path, "prompt")
    return str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "\ufeff" + GOOD + "\r\n\n" + GOOD.replace("\n", "\r"),
        json.dumps({"prompt": MESSAGES, "negative_prompt": None, "extra_info": None, "reward_model": {"a": 1}}),
        GOOD.replace("red", "one\u2028two\x85three"),
        "[" + GOOD + ",\n" + GOOD + "]",
        '{\n"prompt":\n"red"\n}\n',
    ],
    ids=["text", "byte order mark, CRLF, CR", "messages", "other separators of lines", "array", "one object"],
)
def test_usable_files_are_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.jsonl").write_text(text, newline="")
    prompt_files.check_file(tmp_path / "p.jsonl", "prompt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + '\n{"text": "red"}\n', f":3: {NO_PROMPT}"),
        (GOOD + '{"prompt": null}\n', f":2: {WRONG_PROMPT}null"),
        ('{"prompt": 3}\n', f":1: {WRONG_PROMPT}a number"),
        ('{"prompt": []}\n', ":1: column prompt: a list of messages must not be empty"),
        (
            '{"prompt": ["red"]}\n',
            ":1: column prompt: message 0 of the prompt must be a mapping with role and content, not text",
        ),
        (
            '{"prompt": [{"role": "user", "content": "a"}, {"content": "b"}]}',
            ":1: column prompt: message 1 of the prompt must have a role, such as user",
        ),
        (
            '{"prompt": [{"role": "user", "content": null}]}',
            ":1: column prompt: message 0 of the prompt must have a content: text, or a list of parts",
        ),
        (
            '{"prompt": "a", "negative_prompt": 5}',
            ":1: column negative_prompt: a prompt must be text or a list of messages, not a number",
        ),
        ('{"prompt": "a", "extra_info": "b"}', ":1: column extra_info: must be a mapping, not text"),
        ('{"prompt": "a", "prompt": "b"}', ":1: 'prompt' is given twice"),
        (GOOD + '{"prompt": "red"\n' + GOOD, ":2: not valid JSON: Expecting ',' delimiter, column 17"),
        (GOOD + '"red"\n', ":2: a row must be a mapping of columns, not text"),
        ('["red"]', ": row 0: a row must be a mapping of columns, not text"),
        ('[{"prompt": "red"},\n{"prompt": }]', ":2: not valid JSON: Expecting value, column 12"),
        ('{"prompt": ' + "[" * 200_000, ":1: nested too deeply"),
        ('{"prompt": "a"}\n{"prompt": "\\ud800"}\n', ":2: \\ud800 is half of a character: it lacks the other half"),
        (
            '{"prompt": "\\uD83D\\uDE00"}\n{"x": "\\uDE00"}',
            ":2: \\ude00 is half of a character: it lacks the other half",
        ),
        (
            '{"prompt": "a", "x": 9223372036854775808}',
            f":1: the number {2**63} has more than 64 bits: write it as text",
        ),
        ("", " has no rows"),
        ("[]", " has no rows"),
    ],
)
def test_the_first_row_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    assert problem(tmp_path / "p.jsonl") == f"{tmp_path / 'p.jsonl'}{message}"


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(GOOD.encode() + b'{"prompt": "caf\xe9"}\n')
    assert problem(tmp_path / "p.jsonl") == f"{tmp_path / 'p.jsonl'} is not a text file in UTF-8"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"prompt": ["a", None]}), f": row 1: {WRONG_PROMPT}null"),
        (pa.table({"prompt": [b"a"]}), f": row 0: {WRONG_PROMPT}bytes"),
        (pa.table({"text": ["a"], "image": [b"b"]}), f": {NO_PROMPT}, image"),
        (pa.table({"prompt": pa.array([], pa.string())}), " has no rows"),
        (pa.table([["a"], ["b"]], names=["prompt", "prompt"]), ": column 'prompt' is given twice"),
    ],
    ids=["null", "bytes", "no prompt", "no rows", "two columns of one name"],
)
def test_rows_of_parquet_files_are_checked(tmp_path: Path, table: Any, message: str) -> None:
    parquet.write_table(table, tmp_path / "p.parquet")
    assert problem(tmp_path / "p.parquet") == f"{tmp_path / 'p.parquet'}{message}"


DIGITS = Decimal("1.00")
PAIRS = pa.map_(pa.string(), pa.int64())
# A type, a value of it, and what to write instead; None where it is read.
TYPES: dict[str, tuple[Any, Any, str | None]] = {
    "map": (PAIRS, [("a", 1)], "not supported; write it as a struct, or a text of JSON"),
    "map in a struct": (pa.struct([("b", PAIRS)]), {"b": [("a", 1)]}, "the type map<string, int64"),
    "map in a list": (pa.list_(PAIRS), [[("a", 1)]], "the type map<string, int64"),
    "uuid": (pa.uuid(), bytes(16), "extension<arrow.uuid> is not supported; write it as text"),
    "tensor": (pa.fixed_shape_tensor(pa.int8(), [2]), [1, 2], "not supported; write it as fixed_size_list<"),
    "decimal32": (pa.decimal32(5, 2), DIGITS, "decimal32(5, 2) is not supported; write it as decimal128(5, 2)"),
    "decimal64": (pa.decimal64(12, 2), DIGITS, "decimal64(12, 2) is not supported; write it as decimal128(12, 2)"),
    "list_view": (pa.list_view(pa.int8()), [1], "list_view<element: int8> is not supported; write it as list<int8>"),
    "decimal128": (pa.decimal128(5, 2), DIGITS, None),
    "struct": (pa.struct([("b", pa.int8())]), {"b": 1}, None),
    "list": (pa.large_list(pa.list_(pa.float16(), 1)), [[1.0]], None),
    "categories": (pa.dictionary(pa.int8(), pa.string()), "a", None),
    "bytes": (pa.binary(2), b"ab", None),
    "date": (pa.date32(), date(2024, 1, 1), None),
    "view": (pa.string_view(), "a", None),
    "json": (pa.json_(), "[1]", None),
    "nothing": (pa.null(), None, None),
}


@pytest.mark.parametrize("name", TYPES)
def test_the_columns_of_parquet_files_that_are_refused_are_those_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    kind, value, reason = TYPES[name]
    path = tmp_path / "p.parquet"
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(kind, pa.array([value], kind.storage_type))
    else:
        column = pa.array([value], kind)
    parquet.write_table(pa.table({"prompt": ["a"], "c": column}), path)
    if reason is None:
        prompt_files.check_file(path, "prompt")
        assert len(prompt_tables.read([str(path)])) == 1
        return
    refusal = problem(path)
    assert refusal.startswith(f"{path}: column c: the type ") and reason in refusal
    with pytest.raises(ValueError, match="does not have a datasets dtype equivalent"):
        prompt_tables.read([str(path)])


def test_a_part_of_a_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"prompt": ["a", "b"], "negative_prompt": [None, "c"]}), path)
    prompt_files.check_file(path, "prompt")
    path.write_bytes(path.read_bytes()[:-1])
    assert problem(path).startswith(f"{path} cannot be read as a Parquet file: ")


def test_held_out_prompts_are_checked_and_files_of_other_classes_not(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text(GOOD)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    overrides = [*NEEDED, f"data.train_files='{tmp_path}/good.jsonl'"]
    dataset_class.check_with_files(configuration.load(overrides))
    overrides.append(f"data.val_files=['{tmp_path}/good.jsonl','{tmp_path}/bad.jsonl']")
    with pytest.raises(prompt_files.InvalidPromptFile, match=r"bad.jsonl:1: there is no column 'prompt'; .*: none"):
        dataset_class.check_with_files(configuration.load(overrides))
    (tmp_path / "own.py").write_text("class Own: ...\n")
    own_class = [*overrides, f"data.custom_cls.path='{tmp_path}/own.py'", "data.custom_cls.name=Own"]
    dataset_class.check_with_files(configuration.load(own_class))
    with pytest.raises(FileNotFoundError, match=r"no data file missing\.jsonl: correct data.train_files"):
        dataset_class.check_with_files(configuration.load([*own_class, "data.train_files=missing.jsonl"]))


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_seeds_of_held_out_prompts_are_whole_numbers(tmp_path: Path, name: str) -> None:
    def write(seeds: list[Any]) -> Path:
        path = tmp_path / name
        if path.suffix == ".parquet":
            parquet.write_table(pa.table({"prompt": ["red"] * len(seeds), "seed": seeds}), path)
        else:
            path.write_text("".join(json.dumps({"prompt": "red", "seed": seed}) + "\n" for seed in seeds))
        return path

    prompt_files.check_file(write([None, 0, 2**63 - 1]), "prompt", held_out=True)
    for wrong in (-1, 0.5, "7", True):
        path = write([wrong])
        prompt_files.check_file(path, "prompt")  # training reads no seeds
        with pytest.raises(prompt_files.InvalidPromptFile, match=r"column seed: must be a whole number from 0 to"):
            prompt_files.check_file(path, "prompt", held_out=True)


def test_files_whose_columns_have_other_types_are_named(tmp_path: Path) -> None:
    for name, value in (("a", b"s"), ("b", 1)):
        parquet.write_table(pa.table({"prompt": ["red"], "x": [value]}), tmp_path / f"{name}.parquet")
    files = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    config = smallest_job.load(f"data.cache_dir='{tmp_path}'").data
    with pytest.raises(prompt_files.InvalidPromptFile, match=r"a.parquet, .*b.parquet cannot be read: .*the key x of"):
        prompt_dataset.load(files, config, None)


def test_columns_that_datasets_write_as_json_are_read_from_it(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"prompt": ["a", MESSAGES, "c"], "extra_info": [{"a": 1}, {"a": "x"}, None]}
    path = tmp_path / "p.parquet"
    datasets.Dataset.from_dict(rows, on_mixed_types="use_json").to_parquet(path)
    prompt_files.check_file(path, "prompt")
    config = smallest_job.load(f"data.cache_dir='{tmp_path}'").data
    assert [row["extra_info"].get("a") for row in prompt_dataset.load(str(path), config, None)] == [1, "x", None]
    datasets.Dataset.from_dict({"prompt": ["a", 3]}, on_mixed_types="use_json").to_parquet(path)
    assert problem(path) == f"{path}: row 1: {WRONG_PROMPT}a number"


def test_the_name_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    reason = "the name of a file of prompts must end in .jsonl, .json, .parquet, .txt"
    assert problem(tmp_path / "p.csv") == f"{tmp_path / 'p.csv'}: {reason}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (GOOD + '{"prompt": null}\n', f"/p.jsonl:2: {WRONG_PROMPT}null\n"),
        (GOOD, "actor_rollout_ref.model.path: /model/transformer has no weights; complete the"),
    ],
    ids=["a row without a prompt", "a model without weights"],
)
def test_a_run_is_refused_before_ray_starts(tmp_path: Path, prompts: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(prompts)
    model = shutil.copytree(Path(__file__).parents[4] / "examples" / "shapes-sd3", tmp_path / "model")
    if "weights" in message:
        (model / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    files = {"actor_rollout_ref.model.path": "model", "data.train_files": "p.jsonl", "trainer.default_local_dir": "run"}
    overrides = [*NEEDED, *(f"{name}='{tmp_path / file}'" for name, file in files.items())]
    command = [sys.executable, "-m", "verl_omni.trainer.main_diffusion", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.replace(str(tmp_path), "").startswith(message) and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("suffix", prompt_files.SUFFIXES)
def test_what_git_lfs_leaves_in_place_of_a_file_is_no_prompts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train{suffix}"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    assert problem(path) == f"{path} is a pointer of Git LFS and not the file: run `git lfs pull`"


def test_a_text_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("\ufeffred\r\n\n  a blue, [round] stone \n{red} or blue\n", newline="")
    prompt_files.check_file(path, "caption")
    rows = prompt_tables.read([str(path)], "caption")
    assert rows["caption"] == ["red", "a blue, [round] stone", "{red} or blue"]
    assert run_length.count_rows(str(path)) == 3
    path.write_text("\n \n")
    assert problem(path) == f"{path} has no rows"
    path.write_text(GOOD)
    assert problem(path) == f"{path}:1: is JSON, and a line of a .txt file is a prompt: name it .jsonl"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (json.dumps(MESSAGES), MESSAGES),
        (json.dumps(MESSAGES[0]), MESSAGES[:1]),
        ("[red]", None),
        ('[{"bbox": [0, 1]}]', None),
        ("{red", None),
        ("[1, 2]", None),
        ("red", None),
    ],
)
def test_a_prompt_that_is_the_json_of_messages_is_those_messages(text: str, messages: Any) -> None:
    expected = messages or [{"role": "user", "content": text}]
    assert prompt_dataset.as_messages(text) == expected
    assert prompt_files.row_problem({"prompt": text, "negative_prompt": text}, "prompt") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"role": "user"}]', "message 0 of the prompt must have a content"),
        ('[{"role": "user", "content": "red"}, 3]', "message 1 of the prompt must be a mapping"),
        (
            "[{'role': 'user', 'content': 'red'}]",
            "it is the Python text of messages; write a list of messages, or its JSON",
        ),
    ],
)
def test_text_of_messages_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    for column in ("prompt", "negative_prompt"):
        path.write_text(json.dumps({"prompt": "red", column: text}))
        assert f"column {column}: {words}" in problem(path)
