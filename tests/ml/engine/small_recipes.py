"""Recipes with a tiny model of their family, a small batch, and stand-ins for servers; all else is the recipe's."""

from pathlib import Path
from typing import Any

from contract.recipes import Recipe

MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
WORDS = ("bread", "home", "open")
SERVED = "qwen_image_ocr_lora_async_reward"  # keeps its judge, with a tiny model; others ask a server of the test
OF_SERVERS = ("genrm", "http_scorer_client", "latent_http")  # in the paths of scorers that ask a server


def arguments(recipe: Recipe, folder: Path, server: str, steps: int, held_out: int) -> tuple[list[str], int]:
    """The recipe's arguments, those that make it small, and how often the server is asked about a sample."""
    from verl_omni.models.tiny import MAKERS

    MAKERS[recipe.family](folder / "model")
    write_rows(recipe, folder)
    smaller: dict[str, Any] = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.total_training_steps": steps,
        "data.train_batch_size": 2,
        "data.val_max_samples": held_out,
        f"{MODEL}.path": folder / "model",
        f"{ROLLOUT}.n": 4,
        f"{ROLLOUT}.pipeline.height": 64,
        f"{ROLLOUT}.pipeline.width": 64,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ACTOR}.ppo_mini_batch_size": 1,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 1,
        f"{ACTOR}.fsdp_config.fsdp_size": -1,
        "trainer.default_local_dir": folder / "run",
        "reward.reward_model.enable": False,
        **scorers(recipe, folder, server),
    }
    settings = recipe.given
    if settings.get("algorithm.sample_source") == "offline":
        del smaller[f"{ROLLOUT}.n"]  # nothing is sampled in training
    if f"{MODEL}.custom_chat_template" in settings:
        smaller[f"{MODEL}.custom_chat_template"] = "null"  # only the beginning of the recipes' own is known
    if f"{MODEL}.tokenizer_path" in settings:
        smaller[f"{MODEL}.tokenizer_path"] = folder / "model" / "tokenizer"
    if f"{ROLLOUT}.pipeline.num_frames" in settings:
        smaller |= {f"{ROLLOUT}.{group}pipeline.num_frames": 5 for group in ("", "val_kwargs.")}
        smaller |= {f"{ROLLOUT}.val_kwargs.pipeline.{side}": 64 for side in ("height", "width")}
    if recipe.name == SERVED:
        from verl_omni.models.vision_language import make_tiny_qwen3_vl

        make_tiny_qwen3_vl(folder / "judge")
        smaller["reward.reward_model.model_path"] = folder / "judge"
        smaller["reward.reward_model.rollout.max_model_len"] = 4096  # the tiny model's limit
        del smaller["reward.reward_model.enable"]
    recipe_arguments = [argument.replace("$HOME", str(folder)) for argument in recipe.arguments]
    asked = int(recipe.name != SERVED and any(word in str(settings) for word in OF_SERVERS))
    if recipe.family.startswith("wan") and "genrm" in str(settings):
        asked = 2  # the first and the last of 5 frames
    return [*recipe_arguments, *(f"{name}={value}" for name, value in smaller.items())], asked


def scorers(recipe: Recipe, folder: Path, server: str) -> dict[str, Any]:
    """Settings of scorers: addresses, and a tiny model for CLIP's."""
    judge = {"base_url": f"{server}/v1", "model": "judge"}
    parts = {name.split(".")[2] for name in recipe.given if name.startswith("reward.reward_functions.")}
    if parts:
        addresses = {
            "drm": {"server_url": f"{server}/v1/score"},
            "ocr": judge if "genrm" in str(recipe.given) else {"server_url": f"{server}/score"},
        }
        return {
            f"reward.reward_functions.{part}.{name}": value
            for part in parts & addresses.keys()
            for name, value in addresses[part].items()
        }
    function = recipe.given["reward.custom_reward_function.path"]
    if "genrm" in function and recipe.name != SERVED:
        return {f"+reward.scorer_kwargs.{name}": value for name, value in judge.items()}
    if "pickscore" in function:
        from tests.ml.reward_loop.test_clip_scorers import write_clip

        write_clip(folder / "clip")
        names = ("model_name_or_path", "processor_name_or_path")
        return {f"+reward.scorer_kwargs.{name}": folder / "clip" for name in names}
    return {}


def picture(seed: int) -> dict[str, Any]:
    """A random image, as a data set has it."""
    import torch
    from torchvision.io import encode_png

    pixels = torch.randint(0, 256, (3, 64, 64), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return {"bytes": encode_png(pixels).numpy().tobytes(), "path": None}


def pair(seed: int) -> dict[str, Any]:
    """Columns of a row of preferences."""
    return {"chosen": picture(seed), "rejected": picture(100 + seed)}


def write_pairs(path: Path) -> None:
    """A file of preferences."""
    import datasets

    rows = [{"prompt": f"a sign that says {word}", **pair(number)} for number, word in enumerate(WORDS)]
    datasets.Dataset.from_list(rows).to_parquet(str(path))


def write_rows(recipe: Recipe, folder: Path) -> None:
    """The recipe's files of prompts, and for editing and preferences images."""
    import datasets

    for number, name in enumerate(("train", "test")):
        rows: list[dict[str, Any]] = [{"prompt": f"a sign that says {word}", "ground_truth": word} for word in WORDS]
        for row_number, row in enumerate(rows):
            if recipe.family == "qwen_image_edit":
                row["images"] = [picture(10 * number + row_number)]
            if recipe.given.get("algorithm.sample_source") == "offline":
                row |= pair(10 * number + row_number)
        datasets.Dataset.from_list(rows).to_parquet(str(folder / "data" / "ocr" / f"{name}.parquet"))
