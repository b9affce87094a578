"""PURE: checks of the actor's settings before anything starts.

Imports neither torch nor verl: verl imports Ray, and a process that has imported Ray cannot fork its workers.
"""


def shards(ranks: int, fsdp_size: int) -> int:
    """Number of ranks that share one copy of the weights."""
    return ranks if fsdp_size == -1 else min(fsdp_size, ranks)


def check_fsdp_size(ranks: int, fsdp_size: int) -> None:
    """Refuse a number of ranks that does not divide into copies of `fsdp_size` ranks.

    -1 is one copy, and so is a size of more ranks than there are, as in verl (`create_device_mesh`).

    Raises:
        ValueError: it does not.
    """
    if shards(ranks, fsdp_size) < 1 or ranks % shards(ranks, fsdp_size):
        raise ValueError(
            f"actor_rollout_ref.actor.fsdp_config.fsdp_size: {fsdp_size} does not divide the {ranks} ranks of the "
            "trainer; write a divisor, or -1 to share one copy of the weights among all"
        )


COMPILED = "actor_rollout_ref.actor.fsdp_config.use_torch_compile"
SEQUENCE_PARALLEL = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"


def sequence_groups(ranks: int, size: int) -> int:
    """Number of groups of `size` ranks, which share the sequence of a sample; each group takes different rows.

    Raises:
        ValueError: `size` does not divide the ranks.
    """
    if size < 1 or ranks % size:
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} does not divide the {ranks} ranks of the trainer; write a divisor, or 1"
        )
    return ranks // size


def check_heads(size: int, heads: int) -> None:
    """Refuse a transformer whose attention heads `size` ranks cannot share evenly.

    Raises:
        ValueError: they cannot.
    """
    if heads % size:
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} does not divide the model's {heads} attention heads; write a divisor, or 1"
        )


def check_tokens(size: int, tokens: int) -> None:
    """Refuse samples whose sequence, of `tokens` tokens, `size` ranks cannot share evenly.

    Raises:
        ValueError: they cannot.
    """
    if tokens % size:
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} does not divide the {tokens} tokens of a sample; write a divisor, or another "
            "height, width or number of frames in actor_rollout_ref.rollout.pipeline"
        )


def check_prompt_rows(size: int, rows: int) -> None:
    """Refuse prompts whose embeddings, of `rows` rows each, `size` ranks cannot share evenly.

    Raises:
        ValueError: they cannot.
    """
    if rows % size:
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} does not divide the {rows} rows of a prompt's embeddings; write a divisor, "
            "or another actor_rollout_ref.rollout.pipeline.max_sequence_length"
        )
