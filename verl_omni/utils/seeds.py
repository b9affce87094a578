"""PURE: seeds derived from the settings of a run."""

import hashlib

SEED_STRIDE = 1_000_003
SEED_RANGE = 2**63 - 1


def hashed_seed(purpose: str, *numbers: int) -> int:
    """63 bits of BLAKE2b (RFC 7693) of a purpose and numbers, such as the seed of the run and the step.

    Sums of seed and step would give one run's step the draws of another step of a run with a neighbouring seed.
    """
    text = "/".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def row_seed(base: int, row: int) -> int:
    """(base * 1_000_003 + row) mod (2^63 - 1), the seed of a row of a batch.

    Rows of a batch differ in the lower 32 bits too, which are all that torch's generator on a CPU uses. With a hashed
    base, rows of different batches are as different as their bases.
    """
    return (base * SEED_STRIDE + row) % SEED_RANGE


def window_seed(base: int, row: int, samples_per_prompt: int) -> int:
    """`sde_window_seed` of a row of a training batch, which all samples of its prompt have."""
    return row_seed(hashed_seed("window of a prompt", base), row - row % samples_per_prompt)


def sample_seeds(base: int, row: int, samples_per_prompt: int, *, same_noise: bool) -> dict[str, int]:
    """`seed` of a row of a training batch, by the names of sampling parameters.

    With `same_noise`, `seed` seeds the initial noise and is the same for all samples of a prompt. `sde_noise_seed`
    seeds the noise of the steps and differs by row. `seed` equals no row's `sde_noise_seed`: a generator restarted at
    the seed of the initial noise would add that noise once more.
    """
    seed = row_seed(base, row)
    if not same_noise:
        return {"seed": seed}
    return {
        "seed": row_seed(hashed_seed("initial noise", base), row - row % samples_per_prompt),
        "sde_noise_seed": seed,
    }
