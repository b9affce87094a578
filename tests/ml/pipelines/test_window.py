"""SDE window of MixGRPO, from the arguments of a request to the recorded trajectory."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.agent_loop.sampling import row_params
from verl_omni.pipelines.engine_requests import RequestedFields, requested_fields, sde_window
from verl_omni.pipelines.sde_sampler import Trajectory, Window, denoise
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder
from verl_omni.trainer.generation.sample_generation import training_requests
from verl_omni.trainer.generation.verl_batches import requests_to_verl
from verl_omni.workers.config import DiffusionPipelineConfig, DiffusionRolloutAlgoConfig, DiffusionSamplingConfig

STEPS = 6
SIGMAS = torch.tensor([1.0, 0.9, 0.75, 0.5, 0.3, 0.1, 0.0])


def params(
    version: int,
    rows: int | Sequence[int] = 1,
    seed: int | None = 5,
    log_probs: bool = True,
    n: int = 1,
    finished: int | None = None,
    **algo: Any,
) -> list[dict[str, Any]]:
    """The engine's parameters for rows of a training batch: the first `rows`, or the rows at these places."""
    rollout = SimpleNamespace(
        pipeline=DiffusionPipelineConfig(),
        algo=DiffusionRolloutAlgoConfig(**algo),
        calculate_log_probs=log_probs,
        val_kwargs=DiffusionSamplingConfig(),
        n=n,
    )
    places = range(rows) if isinstance(rows, int) else rows
    meta_info = {"global_steps": version, "rollout_seed": seed, "finished_steps": finished}
    return row_params(rollout, meta_info, len(places), {"_rollout_seed_global_idx": places})


def drawn(windows: list[Window | None]) -> tuple[torch.Tensor, list[Trajectory | None]]:
    """Denoise a row for each window with a model that pulls to zero."""
    start = torch.randn(len(windows), 2, 3, 3, generator=torch.Generator().manual_seed(1))
    generators = [torch.Generator().manual_seed(row) for row in range(len(windows))]
    return denoise(lambda x, t: 0.5 * x + t / 1000, start, SIGMAS[:-1] * 1000, SIGMAS, windows, generators)


def test_a_progressive_window_moves_with_the_training_step() -> None:
    """The samples of step s carry version s - 1, and the window is where that many finished steps put it."""
    algo = {"sde_window_size": 2, "sde_window_range": [0, 5], "sample_strategy": "progressive", "iters_per_group": 2}
    starts = []
    for step in range(1, 11):
        asked = params(step - 1, rows=3, **algo)
        windows = [sde_window(row, STEPS, seed=row["seed"]) for row in asked]
        _, recorded = drawn(windows)
        kept = [
            (r.sigmas.tolist(), tuple(r.latents.shape), tuple(r.log_probs.shape)) for r in recorded if r is not None
        ]
        assert len(kept) == 3 and all(kept[0] == record for record in kept), "one place for all samples of a step"
        sigmas, latents, log_probs = kept[0]
        assert latents == (3, 2, 3, 3) and log_probs == (2,)
        starts.append(SIGMAS.tolist().index(sigmas[0]))
        assert sigmas == SIGMAS[starts[-1] : starts[-1] + 3].tolist()
    assert starts == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]


RANDOM = {"sde_window_size": 2, "sde_window_range": [1, 6], "sample_strategy": "random"}


def steps_of(asked: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """Steps of the window of each row, as the engine places it."""
    return [window.steps for row in asked if (window := sde_window(row, STEPS, seed=row["seed"]))]


@pytest.mark.parametrize("contiguous", [True, False])
def test_samples_of_a_prompt_share_a_random_window_that_differs_between_prompts_and_steps(contiguous: bool) -> None:
    """Otherwise advantages would compare noise of early steps with noise of late ones."""
    algo = RANDOM | {"sde_contiguous": contiguous}
    windows = steps_of(params(0, rows=8000, n=4, **algo))
    groups = [windows[row : row + 4] for row in range(0, 8000, 4)]
    assert all(len(set(group)) == 1 for group in groups)
    places = sorted({group[0] for group in groups})
    assert len(places) == (4 if contiguous else 10), "every place, and with single steps every two of five"
    counts = [sum(group[0] == place for group in groups) for place in places]
    assert counts == pytest.approx([2000 / len(places)] * len(places), rel=0.25)
    other_run = steps_of(params(0, rows=8000, n=4, seed=6, **algo))
    moved = sum(window != other_window for window, other_window in zip(windows, other_run, strict=True))
    assert moved > 8000 * 0.6, "the seed of the run places them"


def test_the_window_of_a_prompt_depends_on_no_split_over_workers_and_no_weight_version() -> None:
    """Batches ahead have older weights, and a resumed run has others: step and prompt place the window."""
    unsplit = steps_of(params(9, rows=12, n=3, finished=9, **RANDOM))
    assert len(set(unsplit)) > 1
    assert steps_of(params(7, rows=12, n=3, finished=9, **RANDOM)) == unsplit
    for rows in (range(5), range(5, 12), range(11, -1, -2)):
        assert steps_of(params(9, rows=rows, n=3, finished=9, **RANDOM)) == [unsplit[row] for row in rows]


@pytest.mark.parametrize("algo", [{"sample_strategy": "progressive", "iters_per_group": 1}, {"sde_window_seed": 4}])
def test_windows_of_a_step_are_the_same_with_batches_ahead(algo: dict[str, Any]) -> None:
    in_time = [steps_of(params(step, finished=step, **RANDOM | algo)) for step in range(30)]
    ahead = [steps_of(params(max(0, step - 2), finished=step, **RANDOM | algo)) for step in range(30)]
    assert ahead == in_time and len({windows[0] for windows in in_time}) == 4


def test_the_trainer_says_how_many_steps_were_finished_before() -> None:
    """The batch is generated two steps ahead, with the first weights."""
    (row,) = [{"raw_prompt": [], "data_source": "d"}]
    requests = requests_to_verl(training_requests([row], n=2, step=3, version=0, seed=1))
    assert (requests.meta_info["finished_steps"], requests.meta_info["global_steps"]) == (2, 0)


def test_without_seeds_of_a_run_a_prompt_still_has_one_window() -> None:
    rows = params(0, rows=400, n=4, seed=None, **RANDOM)
    windows = [window.steps for row in rows if (window := sde_window(row, STEPS, seed=1))]
    assert all(windows[row] == windows[row - row % 4] for row in range(400)) and len(set(windows)) == 4


def test_with_a_seed_of_its_own_a_random_window_is_one_for_all_samples_of_a_step() -> None:
    algo = {"sde_window_size": 2, "sde_window_range": [1, 6], "sample_strategy": "random"}

    def starts(version: int, window_seed: int) -> set[int]:
        asked = params(version, rows=20, sde_window_seed=window_seed, **algo)
        return {window.steps[0] for row in asked if (window := sde_window(row, STEPS, seed=row["seed"]))}

    places = [starts(version, 42) for version in range(400)]
    assert all(len(firsts) == 1 for firsts in places)
    counts = [sum(firsts == {place} for firsts in places) for place in range(1, 5)]
    assert counts == pytest.approx([100] * 4, abs=35), "it moves with the step"
    assert [starts(version, 42) for version in range(20)] == places[:20], "a resumed run draws the same"
    assert [starts(version, 43) for version in range(20)] != places[:20]


@pytest.mark.parametrize(("steps", "places"), [(10, {0, 1, 2, 3}), (4, {0, 1})])
def test_a_window_with_a_size_and_no_range_lies_in_the_first_five_steps(steps: int, places: set[int]) -> None:
    asked = params(0, rows=200, sde_window_size=2)
    assert {window.steps[0] for row in asked if (window := sde_window(row, steps, seed=row["seed"]))} == places


def test_samples_of_a_prompt_may_start_from_the_same_noise_and_differ_by_that_of_the_steps() -> None:
    """The engine draws the initial noise with `seed`; the recorder then starts the noise of the steps."""

    def drawn_by(row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(row["seed"])
        request = SimpleNamespace(extra_args=row, num_inference_steps=STEPS, generator=generator)
        recorder = TrajectoryRecorder([request], torch.device("cpu"), steps=STEPS, dtype=torch.float32)
        initial = torch.randn(1, 2, 3, 3, generator=generator)
        after_it = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(row["sde_noise_seed"]))
        assert not torch.equal(initial, after_it), "the steps would add the initial noise once more"
        return initial, recorder.denoise(lambda x, t: 0.5 * x, initial, SIGMAS[:-1] * 1000, SIGMAS, {})

    algo = {"init_same_noise": True, "noise_level": 0.7, "sde_window_size": 2, "sde_window_range": [0, 5]}
    rows = params(0, rows=4, n=2, **algo)
    (first, second, third, fourth), samples = zip(*(drawn_by(row) for row in rows), strict=True)
    assert torch.equal(first, second) and torch.equal(third, fourth) and not torch.equal(first, third)
    assert all(not torch.equal(samples[0], sample) for sample in samples[1:])
    seeds = [row["seed"] for row in params(0, rows=4, n=2)]
    assert [row["sde_noise_seed"] for row in rows] == seeds, "the noise of the steps is as without the setting"
    assert not {row["seed"] for row in rows} & set(seeds)


def test_a_window_of_cps_that_holds_the_last_step_is_refused_if_log_probabilities_are_wanted() -> None:
    (row,) = params(0, sde_type="cps", noise_level=0.7, sde_window_size=1, sde_window_range=[STEPS - 1, STEPS])
    assert row["logprobs"]
    chosen = sde_window({**row, "logprobs": False}, STEPS, seed=1)
    assert chosen is not None and chosen.steps == (STEPS - 1,)
    with pytest.raises(ValueError, match="must not hold the last of 6 steps"):
        sde_window(row, STEPS, seed=1)


@given(st.integers(0, 3), st.integers(1, 3), st.floats(0.1, 1.0), st.sampled_from(["sde", "cps", "dance_sde"]))
@settings(max_examples=30, deadline=None)
def test_noise_is_added_only_inside_the_window(start: int, size: int, noise: float, kind: str) -> None:
    size = min(size, STEPS - 1 - start)
    final, (recorded, none) = drawn([Window(tuple(range(start, start + size)), noise, kind), None])
    plain, _ = drawn([None, None])
    assert none is None and torch.equal(final[1], plain[1])
    assert recorded is not None and recorded.log_probs.shape == (size,)
    x = recorded.latents[-1][None]
    for step in range(start + size, STEPS):  # from the window's end on, the sample follows the ODE to its image
        x = x + (SIGMAS[step + 1] - SIGMAS[step]) * (0.5 * x + SIGMAS[step])
    assert torch.allclose(x, final[:1], atol=1e-5)
    assert not torch.equal(final[0], plain[0])


def test_requested_fields_do_not_change_the_window() -> None:
    (row,) = params(0, log_probs=False, noise_level=0.7, clean_latents=True)
    assert requested_fields(row) == RequestedFields(steps=False, clean_latents=True)
    (recorded,) = params(0, noise_level=0.7)
    assert requested_fields(recorded) == RequestedFields(steps=True, clean_latents=False)
    assert sde_window(row, STEPS, 1) == sde_window(recorded, STEPS, 1) == Window((0, 1, 2, 3, 4), 0.7)
    (held_out,) = row_params(
        SimpleNamespace(
            pipeline=None,
            algo=DiffusionRolloutAlgoConfig(clean_latents=True),
            calculate_log_probs=True,
            val_kwargs=DiffusionSamplingConfig(algo={"noise_level": 0.0}),
        ),
        {"validate": True},
        1,
        {},
    )
    assert requested_fields(held_out) == RequestedFields(steps=False, clean_latents=False)
    assert sde_window(held_out, STEPS, 1) is None


def test_both_asks_the_engine_for_pixels_and_the_final_latents() -> None:
    val_kwargs = DiffusionSamplingConfig(pipeline={"output_type": "both"})
    rollout = SimpleNamespace(
        pipeline=None, algo=DiffusionRolloutAlgoConfig(), calculate_log_probs=True, val_kwargs=val_kwargs
    )
    (row,) = row_params(rollout, {"validate": True}, 1, {})
    assert requested_fields(row).clean_latents and row["output_type"] == "image"
