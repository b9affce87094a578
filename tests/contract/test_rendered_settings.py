"""What the trainer says about settings that it does not know."""

from __future__ import annotations

import pytest

from verl_omni.trainer import settings


def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(settings.SettingsError, match=r"did you mean trainer\.total_training_steps"):
        settings.load(["trainer.total_training_step=3"])
    with pytest.raises(settings.SettingsError, match=r"actor_rollout_ref\.model\.path: must be given"):
        settings.load([])
