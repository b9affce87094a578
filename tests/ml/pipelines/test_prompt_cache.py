"""Prompt embeddings on disk: which files there are, and when they are used."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from verl_omni.pipelines.prompt_cache import PromptCache, encoder_digest
from verl_omni.pipelines.prompt_encoding import encode_distinct

CPU = torch.device("cpu")
OPTIONS = {"max_sequence_length": 8, "dtype": "torch.bfloat16", "prompt_2": "", "device": None}
ENCODERS = "digest"


class Encoder:
    """Embeddings of any length in bfloat16, a pooled one in float32 and an integer mask; counts its calls."""

    def __init__(self) -> None:
        self.prompts = list[str | list[int]]()

    def __call__(self, prompts: list[str | list[int]]) -> tuple[torch.Tensor, ...]:
        self.prompts += prompts
        (prompt,) = prompts
        values = torch.tensor([float(token) if isinstance(token, int) else ord(token) / 7 for token in prompt])
        embeds = (values[:, None] * torch.tensor([1.0, -0.3, 1e-3])).bfloat16()
        return embeds[None], (values.sum() * torch.arange(4.0))[None], torch.ones(1, len(prompt), dtype=torch.int64)


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(left.dtype == right.dtype and torch.equal(left, right) for left, right in pairs)


def test_a_prompt_is_encoded_once_and_read_with_the_same_bits(tmp_path: Path, encoder: Encoder) -> None:
    prompts: list[str | list[int]] = ["red", "a cat", [5, 6, 7], ""]
    first = PromptCache(tmp_path, ENCODERS)
    written = [first.encode([prompt], encoder, OPTIONS, CPU) for prompt in prompts[:3]]
    assert encoder.prompts == prompts[:3]
    assert all(equal(tensors, Encoder()([prompt])) for tensors, prompt in zip(written, prompts[:3], strict=True))
    assert len(files(tmp_path)) == 3 and all(path.parent == tmp_path / ENCODERS for path in files(tmp_path))

    encoder.prompts.clear()
    second = PromptCache(tmp_path, ENCODERS)  # another run
    read = [second.encode([prompt], encoder, OPTIONS, CPU) for prompt in prompts[:3]]
    assert encoder.prompts == [] and all(map(equal, read, written))


def test_each_distinct_prompt_is_encoded_once() -> None:
    encoded: list[list[str]] = []

    def encode(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        encoded.append(texts)
        lengths = torch.tensor([float(len(text)) for text in texts])
        return lengths[:, None].expand(-1, 4), lengths

    samples = ["red", "red", "a cat", "a cat", "red"]  # two of each prompt, and one of the next batch's
    embeds, pooled = encode_distinct(samples, encode)
    assert encoded == [["red", "a cat"]]
    assert pooled.tolist() == [3, 3, 5, 5, 3] and embeds.shape == (5, 4) and embeds[2].tolist() == [5] * 4


def test_rows_of_different_lengths_are_padded_with_zeros_and_keep_their_places(
    tmp_path: Path, encoder: Encoder
) -> None:
    cache = PromptCache(tmp_path, ENCODERS)
    (blue,) = (cache.encode(["blue"], encoder, OPTIONS, CPU),)
    embeds, pooled, mask = encode_distinct(
        ["red", "blue", "red", "a cat"], lambda distinct: cache.encode(distinct, encoder, OPTIONS, CPU)
    )
    assert encoder.prompts == ["blue", "red", "a cat"], "only those that the cache does not have, each once and alone"
    assert (embeds.shape, pooled.shape, mask.shape) == ((4, 5, 3), (4, 4), (4, 5))
    assert torch.equal(embeds[1, :4], blue[0][0]) and embeds[1, 4].tolist() == [0, 0, 0]
    assert torch.equal(embeds[0], embeds[2]) and torch.equal(pooled[1], blue[1][0])
    assert mask.sum(dim=1).tolist() == [3, 4, 3, 5]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_sequence_length", 16), ("dtype", "torch.float32"), ("prompt_2", "blue"), ("another", None)],
)
def test_other_arguments_have_other_files(tmp_path: Path, encoder: Encoder, name: str, value: object) -> None:
    cache = PromptCache(tmp_path, ENCODERS)
    cache.encode(["red"], encoder, OPTIONS, CPU)
    cache.encode(["red"], encoder, {**OPTIONS, name: value}, CPU)  # type: ignore[dict-item]
    assert encoder.prompts == ["red", "red"] and len(files(tmp_path)) == 2


def test_other_encoders_and_other_kinds_of_prompts_have_other_files(tmp_path: Path, encoder: Encoder) -> None:
    PromptCache(tmp_path, ENCODERS).encode(["red"], encoder, OPTIONS, CPU)
    PromptCache(tmp_path, "other").encode(["red"], encoder, OPTIONS, CPU)
    PromptCache(tmp_path, ENCODERS).encode([[1, 2]], encoder, OPTIONS, CPU)
    PromptCache(tmp_path, ENCODERS).encode(["[1, 2]"], encoder, OPTIONS, CPU)
    assert encoder.prompts == ["red", "red", [1, 2], "[1, 2]"]


def test_an_argument_that_no_file_name_can_hold_is_an_error(tmp_path: Path, encoder: Encoder) -> None:
    with pytest.raises(TypeError, match="Tensor"):
        PromptCache(tmp_path, ENCODERS).encode(["red"], encoder, {"mask": torch.ones(1)}, CPU)  # type: ignore[dict-item]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def no_checksum(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("damage", [truncate, empty, flip, no_checksum, lambda path: path.write_bytes(b"\xff" * 99)])
def test_damaged_files_are_replaced_with_one_warning(
    tmp_path: Path, encoder: Encoder, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PromptCache(tmp_path, ENCODERS)
    written = cache.encode(["red", "six"], encoder, OPTIONS, CPU)
    before = [path.read_bytes() for path in files(tmp_path)]
    for path in files(tmp_path):
        damage(path)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        embeds = cache.encode(["red", "six"], encoder, OPTIONS, CPU)
    assert equal(embeds, written) and encoder.prompts == ["red", "six"] * 2
    assert [path.read_bytes() for path in files(tmp_path)] == before
    (record,) = caplog.records
    assert "is encoded again, because" in record.getMessage() and str(tmp_path) in record.getMessage()


def test_the_folder_may_be_deleted_at_any_time(tmp_path: Path, encoder: Encoder) -> None:
    cache = PromptCache(tmp_path / "cache", ENCODERS)
    for _ in range(2):
        cache.encode(["red"], encoder, OPTIONS, CPU)
        assert len(files(tmp_path)) == 1
        shutil.rmtree(tmp_path / "cache")
    assert encoder.prompts == ["red", "red"]


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = PromptCache(tmp_path / "file", ENCODERS)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert equal(cache.encode(["red"], encoder, OPTIONS, CPU), Encoder()(["red"]))
    assert len(caplog.records) <= 2 and "was not written" in caplog.text
    assert files(tmp_path) == [tmp_path / "file"]


def test_a_write_that_fails_leaves_no_file(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, content: bytes) -> int:
        os.close(os.open(self, os.O_CREAT | os.O_WRONLY))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with caplog.at_level(logging.WARNING):
        PromptCache(tmp_path, ENCODERS).encode(["red"], encoder, OPTIONS, CPU)
    assert files(tmp_path) == [] and "No space left on device" in caplog.text


def test_encoders_are_awake_only_for_prompts_that_are_missing(tmp_path: Path, encoder: Encoder) -> None:
    entered = list[str]()

    @contextmanager
    def awake() -> Iterator[None]:
        entered.append("begin")
        yield
        entered.append("end")

    def watched(prompts: list[str]) -> tuple[torch.Tensor, ...]:
        entered.append(prompts[0])
        return encoder(list(prompts))

    cache = PromptCache(tmp_path, ENCODERS, awake)
    cache.encode(["red", "blue"], watched, OPTIONS, CPU)
    assert entered == ["begin", "red", "blue", "end"], "once for all of a batch"
    cache.encode(["blue", "red"], watched, OPTIONS, CPU)
    assert len(entered) == 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for part in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_3", "transformer", "text_encoders"):
        (tmp_path / "model" / part).mkdir(parents=True)
        (tmp_path / "model" / part / "config.json").write_text(f'"{part}"')
    (tmp_path / "model" / "model_index.json").write_text("{}")
    return tmp_path / "model"


@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_3"])
def test_the_digest_depends_on_the_content_of_encoders_and_tokenizers(model: Path, part: str) -> None:
    before = encoder_digest(model, {"torch": "2"})
    file = model / part / "config.json"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text(file.read_text().upper())
    os.utime(file, ns=times)  # the same size and time
    assert encoder_digest(model, {"torch": "2"}) != before


def test_the_digest_depends_on_nothing_else_of_the_model_but_on_the_environment(model: Path, tmp_path: Path) -> None:
    before = encoder_digest(model, {"torch": "2", "dtype": "float32"})
    (model / "transformer" / "config.json").write_text("other")
    (model / "text_encoders" / "config.json").write_text("other")
    moved = model.rename(tmp_path / "moved")
    for part in ("text_encoder_2", "tokenizer"):  # as in a view of a model
        (moved / part).rename(tmp_path / part)
        (moved / part).symlink_to(tmp_path / part)
    assert encoder_digest(moved, {"dtype": "float32", "torch": "2"}) == before
    assert encoder_digest(moved, {"torch": "2.1", "dtype": "float32"}) != before
