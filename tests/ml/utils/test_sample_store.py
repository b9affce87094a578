"""Samples in the object store: what ranks load is what was stored, shared tensors once."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.utils import sample_store
from verl_omni.utils.packed_tensors import ALIGNMENT, PackedTensors
from verl_omni.utils.sample_store import SampleWriter, SharedRows, StoredSample, load


class Store:
    """An object store; a reference is the number of an object."""

    def __init__(self) -> None:
        self.objects: list[PackedTensors] = []
        self.loaded: list[int] = []

    def put(self, packed: PackedTensors) -> int:
        self.objects.append(packed)
        return len(self.objects) - 1

    def get(self, references: list[int]) -> list[PackedTensors]:
        self.loaded += references
        return [self.objects[reference] for reference in references]


def store_samples(store: Store, samples: list[dict[str, torch.Tensor]]) -> list[StoredSample]:
    writer = SampleWriter(store.put)
    assert [writer.add(tensors) for tensors in samples] == list(range(len(samples)))
    return writer.finish()


def written(store: Store, prompts: list[int]) -> list[StoredSample]:
    """A sample per prompt number; own tensors say the sample, embeddings of 2 KiB the prompt."""
    return store_samples(
        store,
        [
            {
                "latents": torch.full((2, 3), float(number)),
                "log_probs": torch.full((2,), float(number)),
                "embeds": torch.full((2, 512), float(prompt), dtype=torch.bfloat16),
            }
            for number, prompt in enumerate(prompts)
        ],
    )


def gathered(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value.to(torch.device("cpu"))
    return tensor


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
@settings(deadline=None, max_examples=60)
def test_ranks_load_what_was_stored(prompts: list[int], data: st.DataObject) -> None:
    store = Store()
    samples = written(store, prompts)
    assert len(store.objects) == 1
    offset = len(prompts) * 2 * ALIGNMENT
    assert store.objects[0].buffer.nbytes == offset + len(set(prompts)) * 2048, "embeddings are stored once per prompt"
    size = data.draw(st.integers(1, 2))
    places = data.draw(
        st.lists(st.lists(st.integers(0, len(prompts) - 1), min_size=size, max_size=size), min_size=1, max_size=6)
    )
    batch = load([[samples[place] for place in row] for row in places], store.get)
    expected = torch.tensor(places).float().squeeze(1) if size == 1 else torch.tensor(places).float()
    assert torch.equal(gathered(batch["latents"])[..., 0, 0], expected)
    assert torch.equal(gathered(batch["log_probs"])[..., 0], expected)
    embeds = gathered(batch["embeds"])
    assert embeds.shape == (*expected.shape, 2, 512) and embeds.dtype == torch.bfloat16
    assert torch.equal(embeds[..., 0, 0].float(), torch.tensor(prompts).float()[expected.long()])
    assert len(store.loaded) == len(set(store.loaded)), "nothing is loaded twice"


def test_shared_rows_stay_one_table_until_they_are_moved_to_a_device() -> None:
    store = Store()
    samples = written(store, [7, 7, 7, 8])
    embeds = load([[sample] for sample in samples], store.get)["embeds"]
    assert isinstance(embeds, SharedRows) and embeds.table.shape == (2, 2, 512) and len(embeds) == 4
    chosen = embeds[torch.tensor([3, 0])]
    assert chosen.to(None) is chosen and chosen.table is embeds.table
    assert chosen.shape == chosen.to(torch.device("cpu")).shape == (2, 2, 512)
    assert chosen.to(torch.device("cpu"))[:, 0, 0].tolist() == [8, 7]
    assert embeds[torch.tensor([True, False, False, True])].index.tolist() == [0, 1]


def test_tensors_of_different_lengths_are_padded_to_the_longest() -> None:
    store = Store()
    samples = store_samples(store, [{"mask": torch.ones(length)} for length in (1, 3)])
    assert load([[sample] for sample in samples], store.get)["mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_a_sample_without_a_tensor_is_an_error() -> None:
    store = Store()
    samples = store_samples(store, [{"latents": torch.ones(1)}, {}])
    with pytest.raises(KeyError, match="latents is missing in sample 1, sample 0 has it"):
        load([[sample] for sample in samples], store.get)


def test_a_large_batch_is_several_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that generates samples does not hold all of them until the last one."""
    monkeypatch.setattr(sample_store, "OBJECT_BYTES", 100)
    store = Store()
    samples = store_samples(store, [{"latents": torch.full((10,), float(number))} for number in range(7)])
    assert [len(stored.places) for stored in store.objects] == [2, 2, 2, 1]
    loaded = load([[sample] for sample in samples], store.get)["latents"]
    assert loaded[:, 0].tolist() == list(range(7))
