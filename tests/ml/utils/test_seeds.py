"""Seeds of samples and updates: no two runs, steps or rows share one, and a resumed run draws the same."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.agent_loop.sampling import maybe_per_rollout_seeds
from verl_omni.trainer.generation.sample_generation import training_requests
from verl_omni.trainer.generation.verl_batches import requests_to_verl
from verl_omni.utils.seeds import hashed_seed, row_seed, sample_seeds

ROWS: list[dict[str, Any]] = [{"raw_prompt": "a"}, {"raw_prompt": "b"}]
BITS_OF_A_CPU_GENERATOR = 2**32


def seeds(seed: int, step: int, *, n: int = 24) -> list[int]:
    """Seeds of the samples of one step, as the trainer asks the agent loop for them."""
    prompts = requests_to_verl(training_requests(ROWS, n=n, step=step, version=step - 1, seed=seed))
    columns = maybe_per_rollout_seeds(
        prompts.meta_info, len(prompts), prompts.non_tensor_batch["_rollout_seed_global_idx"]
    )
    assert columns is not None
    return columns


RUNS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 10**6)), min_size=2, max_size=6, unique=True)


@given(RUNS)
@settings(deadline=None, max_examples=60)
def test_no_two_runs_steps_or_rows_share_a_seed(steps: list[tuple[int, int]]) -> None:
    all_seeds = [drawn for seed, step in steps for drawn in seeds(seed, step)]
    assert len(set(all_seeds)) == len(steps) * 48


@given(st.integers(0, 2**31 - 1), st.integers(1, 10**6))
@settings(deadline=None, max_examples=60)
def test_a_neighbouring_seed_has_no_step_in_common(seed: int, step: int) -> None:
    near = [(seed + s, step + t) for s in range(3) for t in range(3)]
    assert len({drawn for pair in near for drawn in seeds(*pair)}) == 9 * 48
    assert len({hashed_seed(purpose, *pair) for pair in near for purpose in ("samples", "update")}) == 18


def test_a_resumed_run_draws_the_same_and_another_run_does_not() -> None:
    def noise(seed: int, step: int) -> torch.Tensor:
        rows = [torch.randn(4, generator=torch.Generator().manual_seed(drawn)) for drawn in seeds(seed, step, n=3)]
        return torch.stack(rows)

    assert torch.equal(noise(5, 7), noise(5, 7))
    assert not torch.isclose(noise(5, 7).unsqueeze(0), noise(6, 6).unsqueeze(1)).any()


def test_seeds_are_stable_over_versions_of_python() -> None:
    assert hashed_seed("samples", 0, 1) == 3465484021560446265
    assert row_seed(3, 4) == 3_000_013
    assert row_seed(2**63 - 2, 3) == 2**63 - 1 - 1_000_003 + 3, "it wraps around"


@given(st.integers(0, 2**62), st.integers(1, 6), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_samples_of_a_prompt_share_the_initial_noise_and_no_other(base: int, n: int, prompt: int) -> None:
    pairs = [sample_seeds(base, row, n, same_noise=True) for row in range((prompt + 2) * n)]
    of_prompt = pairs[prompt * n : (prompt + 1) * n]
    others = pairs[(prompt + 1) * n :]
    assert len({request["seed"] for request in of_prompt}) == len({request["seed"] for request in others}) == 1
    assert of_prompt[0]["seed"] != others[0]["seed"]
    steps = [request["sde_noise_seed"] for request in pairs]
    assert steps == [sample_seeds(base, row, n, same_noise=False)["seed"] for row in range(len(pairs))]
    assert len({*steps, of_prompt[0]["seed"], others[0]["seed"]}) == len(steps) + 2, "no noise is drawn twice"
