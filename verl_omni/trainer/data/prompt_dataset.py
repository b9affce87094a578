"""Prompt data sets: rows of JSONL or Parquet files, in an order that depends only on the seed."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets.exceptions import DatasetsError
from omegaconf import DictConfig, OmegaConf
from pyarrow import ArrowException
from torch import Tensor
from typing_extensions import override
from verl.utils import hf_tokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_omni.pipelines.input_images import input_images
from verl_omni.pipelines.registry import PromptCheck, training_adapter
from verl_omni.trainer.data import dataset_class, prompt_images, prompt_tables
from verl_omni.trainer.data.prompt_files import NEGATIVE_PROMPT, InvalidPromptFile, check_exists
from verl_omni.utils.messages import parse_messages, prompt_text
from verl_omni.utils.postscript import forbid_programs
from verl_omni.verl_names import AGENT_LOOP

logger = logging.getLogger(__name__)
COUNTED_AT_ONCE = 4096  # prompts in one call of the tokenizer
AGENT_NAME = "agent_name"  # column of the agent loop of a row
Prompt = str | list[dict[str, Any]]
ARGUMENTS = ("data_source", "ground_truth", "reward_model", "extra_info")  # columns that become arguments of scorers


class DiffusionRLDataset(RLHFDataset):  # type: ignore[misc]
    """verl's dataset, extended to prompts that are plain text, or the JSON of messages, as well as lists of messages.

    A row has `prompt`, and may have `images`, `negative_prompt`, `data_source`, `ground_truth` (or verl's
    `reward_model.ground_truth`) and `extra_info`. An item has `raw_prompt`, `data_source`, `reward_model`, `extra_info`
    (which includes the row's other columns, without those that are null, the prompt's images as images of PIL, and,
    unless the row has its own, the prompt's text and the row's number), and `raw_negative_prompt` if any row has a
    negative prompt. The row's other columns are columns of the item too, e.g. `agent_name`, which chooses the agent
    loop; None where a row has no value.
    """

    @override
    def _read_files_and_tokenize(self) -> None:
        self.dataframe = prompt_tables.read(self.data_files, self.prompt_key)
        if 0 < self.max_samples < len(self.dataframe):
            self.dataframe = self.dataframe.select(range(self.max_samples))
        self.dataframe = self.maybe_filter_out_long_prompts(self.dataframe)

    @override
    def _build_messages(self, example: dict[str, Any], key: str) -> list[dict[str, Any]]:
        if example.get(self.image_key):
            images = [prompt_images.as_rgb(image) for image in self.images(example)]
            return prompt_images.with_images(as_messages(example[key]), images)
        messages = as_messages(example[key])
        if isinstance(example[key], str) and parse_messages(example[key]) is None:
            return messages
        return super()._build_messages({**example, key: messages}, key)  # type: ignore[no-any-return]

    def countable(self, dataframe: Any) -> Sequence[Prompt]:
        """Prompts of rows with places for their images, whose tokens count."""
        return self._with_places(prompt_tables.column(dataframe, self.prompt_key), dataframe)

    def countable_negatives(self) -> Sequence[Prompt]:
        """Negative prompts of all rows, with places for the images of their row."""
        return self._with_places(_negative_prompts(self.dataframe), self.dataframe)

    def _with_places(self, prompts: Sequence[Prompt], dataframe: Any) -> Sequence[Prompt]:
        if self.image_key not in dataframe.column_names:
            return prompts
        counts = [len(_listed(images)) for images in prompt_tables.column(dataframe.with_format(None), self.image_key)]
        return [
            prompt_images.with_images(as_messages(prompt), [None] * count) if count else prompt
            for prompt, count in zip(prompts, counts, strict=True)
        ]

    def images(self, row: Mapping[str, Any]) -> list[Any]:
        """The images of a row, as images of PIL that are not read yet.

        Raises:
            ImageNotFound: one of them cannot be read.
        """
        folder = Path(row.get(prompt_tables.FOLDER) or Path(self.data_files[0]).parent)
        return [prompt_images.open_image(image, folder) for image in _listed(row.get(self.image_key))]

    @override
    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        """The rows with short enough prompts. verl's own counts a prompt of plain text as too long."""
        if not self.filter_overlong_prompts:
            return dataframe
        prompts = self.countable(dataframe)
        long = dict(too_long(prompts, self.tokenizer, self.apply_chat_template_kwargs, self.max_prompt_length))
        if long:
            text = "data.filter_overlong_prompts: %d of %d prompts are longer than %d tokens, and left out"
            logger.warning(text, len(long), len(dataframe), self.max_prompt_length)
        return dataframe.select([row for row in range(len(dataframe)) if row not in long])

    @override
    def __getitem__(self, item: int) -> dict[str, Any]:
        row = dict(self.dataframe[item])
        try:
            messages = self._build_messages(row, self.prompt_key)
        except prompt_images.ImageNotFound as error:  # the start looked at the beginnings of files only
            where = f"row {item} of {', '.join(self.data_files)}, column {self.image_key}"
            raise prompt_images.ImageNotFound(f"{where}: {error}") from error
        text = prompt_text(messages)
        graded = dict(row.get("reward_model") or {})
        graded.setdefault("style", "rule")
        truth = row.get("ground_truth")
        graded.setdefault("ground_truth", text if truth is None else truth)
        # The messages have the prompt and its images and videos already.
        read = (
            self.prompt_key,
            self.image_key,
            self.video_key,
            self.audio_key,
            NEGATIVE_PROMPT,
            prompt_tables.FOLDER,
        )
        columns = {name: value for name, value in row.items() if name not in read}
        info = scorer_fields(columns, text, item)
        prompt_row: dict[str, Any] = {
            **columns,
            "raw_prompt": messages,
            "data_source": row.get("data_source") or "unknown",
            "reward_model": graded,
            "extra_info": info,
        }
        if row.get(self.image_key):
            prompt_row["extra_info"]["images"] = prompt_images.images_of(messages)
        if NEGATIVE_PROMPT in self.dataframe.column_names:
            prompt_row["raw_negative_prompt"] = _negative_prompt(row, prompt_row["extra_info"].get("images", ()))
        return prompt_row


def scorer_fields(columns: Mapping[str, Any], prompt: str, number: int) -> dict[str, Any]:
    """PURE: `extra_info` of an item: the columns of a row that no other argument of a scorer has.

    What the row's own `extra_info` has counts before its columns; a null is no value.

    Args:
        prompt: the prompt's text. number: the row's.
    """
    unread = {name: value for name, value in columns.items() if name not in ARGUMENTS and value is not None}
    extra = dict(columns.get("extra_info") or {})
    for name, value in (("prompt", prompt), ("index", unread.get("index", number))):
        if extra.get(name) is None:
            extra[name] = value
    return {**unread, **extra}


def load(files: Any, config: DictConfig, tokenizer: Any, processor: Any = None, max_samples: int = -1) -> RLHFDataset:
    """Read prompt files.

    Raises:
        FileNotFoundError: one of `files` does not exist.
        ValueError: they cannot be read together, have no rows, or no column named `data.prompt_key`.
    """
    forbid_programs()  # Hugging Face's datasets open the images of rows
    paths = [files] if isinstance(files, str) else list(files)
    for path in paths:
        check_exists(Path(path))
    settings = OmegaConf.merge(config, {"shuffle": False, "cache_dir": config.cache_dir or "~/.cache/verl/rlhf"})
    try:
        dataset = dataset_class.load(settings)(paths, tokenizer, settings, processor, max_samples)
    except (InvalidPromptFile, dataset_class.DatasetClassNotUsable):
        raise
    except (DatasetsError, ArrowException, ValueError) as error:
        cause = error.__cause__ or error
        raise InvalidPromptFile(f"{', '.join(paths)} cannot be read: {cause}") from error
    if settings.prompt_key not in dataset.dataframe.column_names:
        columns = ", ".join(dataset.dataframe.column_names)
        raise ValueError(f"{paths} have no column {settings.prompt_key!r}: set data.prompt_key to one of {columns}")
    if len(dataset) == 0:
        raise ValueError(f"{paths} have no prompts, or data.filter_overlong_prompts removed all of them")
    return dataset


def load_checked(config: DictConfig) -> tuple[RLHFDataset, RLHFDataset | None]:
    """Training and held-out prompts of a run, none of which the agent loop or the engine would refuse.

    Args:
        config: settings, with the model's architecture filled in (`model_settings.fill_in`).

    Raises:
        ValueError: the message names the setting, the file, and, if a row is wrong, the first such row.
    """
    model = config.actor_rollout_ref.model
    rollout = config.actor_rollout_ref.rollout
    trusted = config.data.trust_remote_code
    tokenizer = hf_tokenizer(model.tokenizer_path or f"{model.path}/tokenizer", trust_remote_code=trusted)
    if template := model.custom_chat_template:
        tokenizer.chat_template = template
    held_out = None
    if config.data.val_files:
        held_out = load(config.data.val_files, config.data, tokenizer, max_samples=config.data.val_max_samples)
    train = load(config.data.train_files, config.data, tokenizer, max_samples=config.data.train_max_samples)
    adapter: Any = training_adapter(model.architecture)
    # Prompts of an agent loop of the user's are not known here.
    checks = hasattr(adapter, "prompt_check") and rollout.agent.default_agent_loop == AGENT_LOOP
    engine_tokenizer = hf_tokenizer(f"{model.path}/tokenizer", trust_remote_code=trusted) if checks else None
    evaluated = OmegaConf.merge(rollout.pipeline, rollout.val_kwargs.pipeline)
    for dataset, files, pipeline in (
        (train, "data.train_files", rollout.pipeline),
        (held_out, "data.val_files", evaluated),
    ):
        if dataset is None:
            continue
        check_images(dataset, files, model.architecture, rollout.pipeline)
        if config.data.truncation == "error":
            check_lengths(dataset, files, tokenizer, rollout.prompt_length)
        if checks:
            check = adapter.prompt_check(engine_tokenizer, pipeline.max_sequence_length)
            guided = adapter.guidance(pipeline) > 1
            check_refused(dataset, files, tokenizer, check, limit=rollout.prompt_length, guided=guided)
    return train, held_out


def check_lengths(dataset: RLHFDataset, setting: str, tokenizer: Any, limit: int) -> None:
    """Refuse prompts and negative prompts that are too long, before hours of training lead to them.

    Args:
        setting: what names the files of the prompts.

    Raises:
        ValueError: a prompt has more than `limit` tokens; the message names the first, and how many there are.
    """
    is_own = isinstance(dataset, DiffusionRLDataset)
    prompts = (
        dataset.countable(dataset.dataframe) if is_own else prompt_tables.column(dataset.dataframe, dataset.prompt_key)
    )
    columns = {"prompts": (prompts, " or data.filter_overlong_prompts=true")}
    if is_own and NEGATIVE_PROMPT in dataset.dataframe.column_names:
        columns["negative prompts"] = (_negative_prompts(dataset.dataframe), "")
    for name, (texts, filtered) in columns.items():
        if long := too_long(texts, tokenizer, dataset.apply_chat_template_kwargs, limit):
            row, tokens = long[0]
            raise ValueError(
                f"{len(long)} of {len(texts)} {name} of {setting} have more than data.max_prompt_length={limit} "
                f"tokens; the first, row {row}, has {tokens}: raise it, or write data.truncation=right{filtered}"
            )


def check_refused(
    dataset: RLHFDataset, setting: str, tokenizer: Any, check: PromptCheck, *, limit: int, guided: bool
) -> None:
    """Refuse prompts that the engine would refuse, and negative prompts if samples are guided.

    Args:
        setting: setting that names the prompt files. tokenizer: the agent loop's. limit: tokens that it keeps.

    Raises:
        ValueError: the message names the first row.
    """
    if not isinstance(dataset, DiffusionRLDataset) or AGENT_NAME in dataset.dataframe.column_names:
        return  # a class or an agent loop of the user makes the ids
    columns = {dataset.prompt_key: dataset.countable(dataset.dataframe)}
    if guided and NEGATIVE_PROMPT in dataset.dataframe.column_names:
        columns[NEGATIVE_PROMPT] = dataset.countable_negatives()
    for column, prompts in columns.items():
        encoded = token_ids(prompts, tokenizer, dataset.apply_chat_template_kwargs)
        for row, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            text = prompt_text(as_messages(prompt))
            if problem := check(ids[:limit], text):
                where = f"row {row} of {setting} ({', '.join(dataset.data_files)}), column {column}"
                raise ValueError(f"{where}: the engine would refuse {text[:40]!r}: {problem}")


def check_images(dataset: RLHFDataset, setting: str, architecture: str | None, pipeline: Any) -> None:
    """Refuse images that the model cannot take, or prompts that lack them.

    Args:
        setting: what names the files of the prompts.

    Raises:
        ValueError: the message names the first row and what to do.
    """
    accepted = input_images(architecture)
    if not isinstance(dataset, DiffusionRLDataset):
        return  # the class of `data.custom_cls` makes its messages itself
    if dataset.image_key not in dataset.dataframe.column_names and accepted is None:
        return
    for number in range(len(dataset.dataframe)):
        row = dataset.dataframe[number]
        try:
            images = dataset.images(row)
            problem = prompt_images.problem_of_row(images, accepted, pipeline)
            for image in images:
                image.close()  # only its size was read
            if problem is None and images:
                prompt_images.with_images(as_messages(row[dataset.prompt_key]), images)
                _negative_prompt(row, images)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ValueError(f"row {number} of {setting}, column {dataset.image_key}: {problem}")


def too_long(
    prompts: Sequence[Prompt], tokenizer: Any, template_kwargs: Mapping[str, Any], limit: int
) -> list[tuple[int, int]]:
    """The rows with more than `limit` tokens, as agent loops count them, each with its number of tokens.

    Short prompts are not encoded, which takes 0.1 ms each: ASCII text has at most a token for each character, one for
    the space that some tokenizers add, and the special ones.
    """
    rows: Sequence[int] = range(len(prompts))
    if not getattr(tokenizer, "chat_template", None):
        characters = limit - tokenizer.num_special_tokens_to_add() - 1
        texts = (prompt_text(as_messages(prompt)) for prompt in prompts)
        rows = [row for row, text in enumerate(texts) if len(text) > characters or not text.isascii()]
    encoded = token_ids([prompts[row] for row in rows], tokenizer, template_kwargs)
    return [(row, len(ids)) for row, ids in zip(rows, encoded, strict=True) if len(ids) > limit]


def token_ids(prompts: Sequence[Prompt], tokenizer: Any, template_kwargs: Mapping[str, Any]) -> Iterator[list[int]]:
    """Token ids of each prompt, as agent loops have them: by the tokenizer's chat template, else of the plain text."""
    if getattr(tokenizer, "chat_template", None):
        for prompt in prompts:
            text = tokenizer.apply_chat_template(
                as_messages(prompt), add_generation_prompt=True, tokenize=False, **template_kwargs
            )
            yield tokenizer(text, add_special_tokens=False)["input_ids"]
        return
    for first in range(0, len(prompts), COUNTED_AT_ONCE):
        texts = [prompt_text(as_messages(prompt)) for prompt in prompts[first : first + COUNTED_AT_ONCE]]
        yield from tokenizer(texts, truncation=False)["input_ids"]


def as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages of a prompt, or of its JSON; plain text is one of the user.

    Parts of a message have no fields without a value: a column of Parquet has all fields in each part, and chat
    templates ask whether a part has the field `image`.
    """
    if isinstance(prompt, str):
        parsed = parse_messages(prompt)
        if parsed is None:
            return [{"role": "user", "content": prompt}]
        prompt = parsed
    return [
        message
        if isinstance(message["content"], str)
        else {**message, "content": list(map(_given, message["content"]))}
        for message in prompt
    ]


def _negative_prompts(rows: Any) -> list[Prompt]:
    return [prompt or "" for prompt in prompt_tables.column(rows, NEGATIVE_PROMPT)]


def _negative_prompt(row: Mapping[str, Any], images: Sequence[Any]) -> Prompt:
    """The negative prompt of a row; the prompt's images are inserted if it has placeholders for them.

    Raises:
        ValueError: it has placeholders for another number of images.
    """
    negative: Prompt = row.get(NEGATIVE_PROMPT) or ""
    if isinstance(negative, str):
        negative = parse_messages(negative) or negative
    if not (images and prompt_images.count_places(messages := as_messages(negative))):
        return negative
    return prompt_images.with_images(messages, images)


def _listed(images: Any) -> Sequence[Any]:
    """The images of a row: a list, one image, or none."""
    if images is None or isinstance(images, (list, tuple)):
        return images or ()
    return [images]


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


def epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    """PURE: the permutation of `size` rows in epoch `epoch` (from 0), int64 [size]."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator)


class PromptOrder:
    """The rows of each training step, a function of seed and step: a resumed run needs no data-loader state.

    Batches cross the ends of epochs, so every row is used once per epoch. A permutation of all rows is computed once
    per epoch, and only the latest one is kept (8 bytes a row).

    Args:
        size: rows of the data set. batch: rows of a step.
        shuffle: whether an epoch is a permutation; otherwise each has the order of the data set.
        permutation: (size, seed, epoch) to the order of an epoch.

    Raises:
        ValueError: `size` or `batch` is not positive.
    """

    def __init__(
        self,
        size: int,
        batch: int,
        seed: int,
        *,
        shuffle: bool = True,
        permutation: Callable[[int, int, int], Tensor] = epoch_order,
    ) -> None:
        if size <= 0 or batch <= 0:
            raise ValueError(f"size and batch must be positive: {size}, {batch}")
        self._size = size
        self._batch = batch
        self._seed = seed
        self._permutation = permutation if shuffle else lambda size, seed, epoch: torch.arange(size)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> list[int]:
        """Indices of the rows of step `step` (from 1)."""
        rows: list[int] = []
        start = (step - 1) * self._batch
        while missing := self._batch - len(rows):
            epoch, within = divmod(start + len(rows), self._size)
            rows += self._of_epoch(epoch)[within : within + missing].tolist()
        return rows

    def _of_epoch(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            self._order = self._permutation(self._size, self._seed, epoch)
            self._epoch = epoch
        return self._order
