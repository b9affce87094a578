"""`DiffusionAgentLoopWorker`: runs an agent loop for each row of a batch and has each sample scored."""

import asyncio
import copy
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import hydra
import numpy as np
import ray
import torch
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import get_dataset_class
from verl.utils.import_utils import resolve_config_path

from verl_omni.agent_loop.batching import (
    _pad_prompt_extra_field,
    check_loop_output,
    check_reward_fields,
    collate,
    pad_fields,
    pad_prompt,
)
from verl_omni.agent_loop.output import DiffusionAgentLoopOutput, _InternalDiffusionAgentLoopOutput, sample_of
from verl_omni.agent_loop.rows import SampleFailed, run_rows, short_prompt
from verl_omni.agent_loop.sampling import KEEPS_PICTURE, row_params
from verl_omni.agent_loop.score_requests import NUM_TURNS, ScoreRequests
from verl_omni.pipelines.registry import family, reads_extra_ids, training_adapter
from verl_omni.reward_loop.scorer_results import (
    FAILURE,
    NO_REWARD,
    ScoringFailure,
    TooManyUnscored,
    failure_of,
    too_many_text,
)
from verl_omni.reward_loop.scoring_queue import DEADLINE_SECONDS
from verl_omni.samples import GENERATED, Sample
from verl_omni.utils.metrics.image_statistics import ImageStatistics, measure
from verl_omni.utils.pixels import BOTH, as_pixels
from verl_omni.utils.sample_store import SampleWriter

# An actor runs at most 1000 calls at a time (Ray's default), and must still have room to answer whether it is alive.
CALLS_OF_A_REWARD_WORKER = 900
LOOPS_OF_TEXT = "verl.experimental.agent_loop."  # their classes begin so; data sets of language models name them
SENT_TO_A_REWARD_WORKER = 64  # samples that wait in its process; the others wait here
STORED_NUMBER = "__stored_number__"  # of a sample in its batch's `SampleWriter`, until that has written
BATCH = "__batch__"  # argument with a row's `BatchRun`, which the methods that subclasses override pass on

__all__ = ["DiffusionAgentLoopOutput", "DiffusionAgentLoopWorker", "SampleFailed", "_pad_prompt_extra_field"]


@dataclass(slots=True)
class BatchRun:
    """A batch that a worker generates: what its caller wants, and what all its rows share."""

    validate: bool = False
    """Whether it is an evaluation."""
    carry_responses: bool = True
    """Whether the result has the samples themselves."""
    score_later: bool = False
    """Whether the caller scores the samples that agent loops have not scored."""
    failures_allowed: int = 0
    """How many samples may have no score for which one is required."""
    writer: SampleWriter | None = None
    """Stores the tensors that training reads; None: the result has them."""
    failures: list[ScoringFailure] = field(default_factory=list)
    """Failures for which a score is required, in the order in which they happened."""

    @classmethod
    def of(cls, meta_info: Mapping[str, Any], put: Callable[[Any], Any]) -> Self:
        """The wishes in the `meta_info` of a batch; `put` stores an object."""
        return cls(
            validate=bool(meta_info.get("validate")),
            carry_responses=bool(meta_info.get("carry_responses", True)),
            score_later=bool(meta_info.get("score_later")),
            failures_allowed=int(meta_info.get("failures_allowed", 0)),
            writer=SampleWriter(put) if meta_info.get("store_samples") else None,
        )

    def count_failure(self, failure: ScoringFailure | None) -> None:
        """Count a sample without a score. Raises `TooManyUnscored` if it is one too many."""
        if failure is None or not failure.required:
            return
        self.failures.append(failure)
        if len(self.failures) > self.failures_allowed:
            text = too_many_text(self.failures[0].text, len(self.failures), self.failures_allowed)
            raise TooManyUnscored(text)


class DiffusionAgentLoopWorker:
    """Worker of verl's `AgentLoopManager`, which makes it a Ray actor (`agent_loop_workers_class`).

    Args:
        config: the whole configuration.
        llm_client: client of the rollout replicas; a subclass may set `server_manager` instead.
        teacher_client: ignored; verl passes it.
        reward_loop_worker_handles: actors with `compute_score`; None leaves scoring to the trainer.

    Raises:
        ValueError: `max_prompt_embed_length` or `max_concurrent_requests` is not positive, or `agent_loop_config_path`
            is no list of named loops.
    """

    def __init__(
        self,
        config: DictConfig,
        llm_client: Any,
        teacher_client: dict[str, Any] | None = None,
        reward_loop_worker_handles: list[Any] | None = None,
    ) -> None:
        self.config = config
        settings = config.actor_rollout_ref
        self.rollout_config = omega_conf_to_dataclass(settings.rollout)
        self.model_config = omega_conf_to_dataclass(settings.model)
        if not hasattr(self, "server_manager"):
            self.server_manager = llm_client
        self.dataset_cls = get_dataset_class(config.data)
        self.reward_loop_worker_handles = reward_loop_worker_handles
        self.tokenizer = self.model_config.tokenizer
        # Where a family edits images, its pipeline prepares them and counts their tokens.
        edits = family(self.model_config.architecture).images is not None
        self.processor = None if edits else self.model_config.processor
        self.max_prompt_embed_length = self.rollout_config.max_prompt_embed_length
        if self.max_prompt_embed_length is None:
            self.max_prompt_embed_length = self.rollout_config.pipeline.max_sequence_length
        if self.max_prompt_embed_length <= 0:
            raise ValueError(f"max_prompt_embed_length must be positive: {self.max_prompt_embed_length}")
        if path := self.rollout_config.agent.agent_loop_config_path:
            _agent_loop_registry.update(load_agent_loops(resolve_config_path(path)))
        if template := self.model_config.custom_chat_template:
            for reader in (self.processor, self.tokenizer):
                if reader is not None:
                    reader.chat_template = template
        self.put: Callable[[Any], Any] = ray.put
        self._makers: dict[str, Callable[..., Any]] = {}
        limit = self.rollout_config.max_concurrent_requests
        if limit is None or limit <= 0:
            raise ValueError(f"max_concurrent_requests must be positive: {limit}")
        self._generating = asyncio.Semaphore(limit)
        self._queued = 0
        self._score_requests: ScoreRequests | None = None  # made for the first sample that is scored
        # Announces a row to a client that gathers the requests of all rows.
        self._row = getattr(self.server_manager, "row", nullcontext)
        # It would log, for each row, that no builder is registered for a diffusion model.
        logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)

    def _for_loops(self) -> dict[str, Any]:
        """Constructor arguments of every loop; the settings that a loop reads for each row are already resolved."""
        config = copy.deepcopy(self.config)
        OmegaConf.resolve(config.actor_rollout_ref.rollout)
        OmegaConf.resolve(config.actor_rollout_ref.model)
        OmegaConf.resolve(config.data)
        offered = {
            "trainer_config": DictConfigWrap(config=config),
            "server_manager": self.server_manager,
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "dataset_cls": self.dataset_cls,
            "data_config": DictConfigWrap(config.data),
        }
        # Loops defined elsewhere need not accept this argument.
        if reads_extra_ids(self.model_config.architecture) and (extra := self.model_config.load_extra_tokenizers()):
            offered["extra_tokenizer_map"] = extra
        return offered

    async def generate_sequences(self, batch: DataProto) -> DataProto:
        """Generate and score a sample for each row; `batching.collate` lists the keys of the result.

        The column `agent_name` of `batch` names the loop of each row; the default one is added where there is none.
        With `meta_info["carry_responses"]` false, samples are dropped once they are scored: the result has no
        `responses`. With `meta_info["store_samples"]`, the tensors that training reads stay in Ray's object store, the
        embeddings of a prompt once for all its samples, and the result has only the columns that the driver reads.

        The column `__sample__` has a `samples.Sample` for each row. One that cannot be scored has the reward NaN and a
        failure. With more required ones than `meta_info["failures_allowed"]` (default 0), the batch fails. With
        `meta_info["score_later"]`, the caller scores the samples that agent loops have not scored.

        Raises:
            SampleFailed: a row failed, or has no score when its sample is dropped; the other rows were cancelled.
            KeyError: a training batch has no `meta_info["global_steps"]`.
        """
        size = len(batch)
        columns = batch.non_tensor_batch
        chosen = columns.get("agent_name", [None] * size)
        default = self.rollout_config.agent.default_agent_loop
        columns["agent_name"] = np.array([name or default for name in chosen], dtype=object)
        params = row_params(self.rollout_config, batch.meta_info, size, columns)
        rows = [{name: column[row] for name, column in columns.items()} for row in range(size)]
        version = batch.meta_info.get("global_steps")
        this_batch = BatchRun.of(batch.meta_info, self.put)
        for entry in rows:
            entry[BATCH] = this_batch

        async def run(row: int) -> _InternalDiffusionAgentLoopOutput:
            sampled = await self._run_agent_loop(params[row], **rows[row])
            this_batch.count_failure(sampled.extra_fields[GENERATED].failure)
            return sampled if this_batch.carry_responses else self._drop_response(sampled, this_batch)

        outputs = await run_rows(
            size,
            run,
            lambda row: (
                f"row {row} of {size} at weight version {version} (prompt {short_prompt(rows[row].get('raw_prompt'))})"
            ),
        )
        if this_batch.writer is None:
            return self._postprocess(outputs, columns)
        stored = this_batch.writer.finish()
        for sampled in outputs:
            number = sampled.extra_fields.pop(STORED_NUMBER)
            sampled.extra_fields[GENERATED] = replace(sampled.extra_fields[GENERATED], stored=stored[number])
        output = self._postprocess(outputs, {})
        if not this_batch.score_later:
            output.non_tensor_batch.pop("reward_extra_info", None)  # each of its fields has a column
        return output

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], /, *, agent_name: str, **kwargs: Any
    ) -> _InternalDiffusionAgentLoopOutput:
        self._queued += 1
        try:
            async with self._generating:  # a row that is being scored leaves room for another one in the engine
                with self._row():
                    columns = {name: value for name, value in kwargs.items() if name != BATCH}
                    output: DiffusionAgentLoopOutput = await self._loop(agent_name).run(sampling_params, **columns)
        finally:
            self._queued -= 1
        return await self._agent_loop_postprocess(output, **kwargs)

    async def queued_samples(self) -> int:
        """Number of samples that wait for generation, or are being generated."""
        return self._queued

    def _loop(self, name: str) -> Any:
        """A new loop for one row, because a loop may hold state. Rows share the objects nested in its entry.

        Hydra takes milliseconds to instantiate an entry, so each entry is parsed once.
        """
        if name not in self._makers:
            assert name in _agent_loop_registry, (
                f"Agent loop {name} not registered, registered agent loops: {_agent_loop_registry.keys()}"
            )
            if str(_agent_loop_registry[name]["_target_"]).startswith(LOOPS_OF_TEXT):
                raise ValueError(
                    f"agent loop {name} is verl's for text; name one of images or videos in the column agent_name, or "
                    f"leave it empty for {self.rollout_config.agent.default_agent_loop}"
                )
            maker = hydra.utils.instantiate(_agent_loop_registry[name], _partial_=True)
            self._makers[name] = partial(maker.func, *maker.args, **maker.keywords, **self._for_loops())
        return self._makers[name]()

    async def _agent_loop_postprocess(
        self, output: DiffusionAgentLoopOutput, /, **kwargs: Any
    ) -> _InternalDiffusionAgentLoopOutput:
        check_loop_output(output)
        batch = kwargs.get(BATCH) or BatchRun()
        fields = pad_fields(output.extra_fields, self.max_prompt_embed_length)
        ids, mask = pad_prompt(self.tokenizer, output.prompt_ids, self.rollout_config.prompt_length)
        responses = output.response_diffusion_output.unsqueeze(0)
        await self._compute_score(output, ids, responses, kwargs)
        # Not earlier: its threads would hold up the ones that send the other rows to the reward workers.
        statistics = await self._measure(output, batch)
        sample = self._sample(output)
        keeps_picture = kwargs.get(KEEPS_PICTURE) and statistics is not None
        sample = replace(
            sample,
            failure=failure_of(sample.score, sample.failure),
            score=NO_REWARD if sample.score is not None and not math.isfinite(sample.score) else sample.score,
            statistics=statistics,
            # A copy: a view of the buffer that samples arrive in would be sent with the whole buffer.
            picture=as_pixels(sample.media).clone() if keeps_picture else None,
        )
        log_probs = output.response_logprobs
        if batch.writer is not None:
            fields = {STORED_NUMBER: batch.writer.add(sample.training_tensors())}
            log_probs = None
        else:
            fields |= {"raw_prompt": kwargs["raw_prompt"], "attention_mask": mask}
        fields[GENERATED] = sample.for_trainer(scored_later=batch.score_later)
        if "reward_extra_info" in output.extra_fields:
            fields["reward_extra_info"] = output.extra_fields["reward_extra_info"]
        return _InternalDiffusionAgentLoopOutput(
            prompt_ids=ids,
            response_diffusion_output=responses,
            response_logprobs=log_probs.unsqueeze(0) if log_probs is not None else None,
            reward_score=sample.score,
            num_turns=output.num_turns,
            metrics=output.metrics,
            extra_fields=fields,
        )

    async def _measure(self, output: DiffusionAgentLoopOutput, batch: BatchRun) -> ImageStatistics | None:
        """The statistics of a sample's pixels, computed in a thread; None of latents."""
        settings = self.rollout_config
        output_type = settings.val_kwargs.pipeline.get("output_type") if batch.validate else None
        if (output_type or settings.pipeline.output_type) == "latent":
            return None
        return await asyncio.to_thread(measure, output.response_diffusion_output)

    async def _compute_score(
        self,
        output: DiffusionAgentLoopOutput,
        prompts: torch.Tensor,
        responses: torch.Tensor,
        kwargs: dict[str, Any],
    ) -> None:
        """Have a reward worker score a sample without a score, while other rows are still being generated.

        Sets `reward_score`, `metrics.compute_score` (seconds), and among the `extra_fields` of the output
        `reward_extra_info` and `scoring_failure` (why a scorer gave no score, or None).
        Sends the sample's audio and fields that an agent loop added, but not the tensors recorded for training.

        Raises:
            Exception: as `ScoreRequests.score`.
            ValueError: the scorer, or the loop, returned a field with the name of a column that training reads.
        """
        if output.reward_score is not None:
            check_reward_fields(output.extra_fields.get("reward_extra_info") or {}, "agent loop")
            return
        if self.reward_loop_worker_handles is None:
            return
        batch = kwargs.get(BATCH) or BatchRun()
        columns = {name: value for name, value in kwargs.items() if name != BATCH}
        sample = self._sample(output)
        columns |= {NUM_TURNS: output.num_turns, "tool_extra_fields": sample.scorer_fields}
        if batch.validate and self.rollout_config.val_kwargs.pipeline.get("output_type") == BOTH:
            assert sample.recording.clean_latents is not None, "the request asks for them"
            responses = sample.recording.clean_latents.unsqueeze(0)
        began = time.perf_counter()
        tensors = {"prompts": prompts, "responses": responses}
        result = await self._scores(self.reward_loop_worker_handles).score(tensors, columns, validate=batch.validate)
        check_reward_fields(result["reward_extra_info"])
        output.reward_score = result["reward_score"]
        output.extra_fields["reward_extra_info"] = result["reward_extra_info"]
        output.extra_fields[FAILURE] = result.get(FAILURE)
        output.metrics.compute_score = time.perf_counter() - began

    def _sample(self, output: DiffusionAgentLoopOutput) -> Sample:
        return sample_of(output, training_adapter(self.model_config.architecture).CONDITIONS)

    def _scores(self, workers: Sequence[Any]) -> ScoreRequests:
        if self._score_requests is None:
            share = CALLS_OF_A_REWARD_WORKER // self.rollout_config.agent.num_workers
            self._score_requests = ScoreRequests(
                workers,
                limit=max(1, min(SENT_TO_A_REWARD_WORKER, share)),
                deadline_seconds=float(
                    OmegaConf.select(self.config, "reward.deadline_seconds", default=DEADLINE_SECONDS)
                ),
                reward=self.config.reward,
            )
        return self._score_requests

    def _drop_response(
        self, made: _InternalDiffusionAgentLoopOutput, batch: BatchRun
    ) -> _InternalDiffusionAgentLoopOutput:
        """The sample without pixels and prompt ids; if it is to be scored later, they are in the object store."""
        fields = made.extra_fields
        if made.reward_score is None:
            if not batch.score_later:
                raise ValueError(
                    "carry_responses is false, so each sample needs a score, and there are no reward workers"
                )
            tensors = {"prompts": made.prompt_ids, "responses": made.response_diffusion_output}
            fields = {**fields, GENERATED: replace(fields[GENERATED], unscored=self.put(tensors))}
        ids = made.prompt_ids[:, :0] if batch.writer is not None else made.prompt_ids
        changed = {"response_diffusion_output": None, "prompt_ids": ids, "extra_fields": fields}
        return made.model_copy(update=changed)

    def _postprocess(
        self, inputs: Sequence[_InternalDiffusionAgentLoopOutput], input_non_tensor_batch: dict[str, np.ndarray]
    ) -> DataProto:
        return collate(inputs, input_non_tensor_batch)


def load_agent_loops(path: str) -> dict[str, Any]:
    """Agent loops of a YAML list, by name; each entry has `name`, `_target_`, and arguments of its class.

    Raises:
        ValueError: the file is not such a list.
    """
    entries = OmegaConf.load(path)
    named = OmegaConf.is_list(entries) and all(
        OmegaConf.is_dict(entry) and {"name", "_target_"} <= entry.keys() for entry in entries
    )
    if not named:
        raise ValueError(f"{path} must be a list of agent loops, each with `name` and `_target_`")
    return {entry.name: entry for entry in entries}
