"""URL paths of kinds."""

import pytest

from omni_operator.cluster.kinds import JOBS, PODS, TOKEN_REVIEWS

ROOT = "/apis/diffusionrl.io/v1alpha1"


def test_paths_of_one_object_of_all_and_of_all_namespaces() -> None:
    assert JOBS.path("team") == f"{ROOT}/namespaces/team/diffusionrljobs"
    assert JOBS.path("team", "red", "status") == f"{ROOT}/namespaces/team/diffusionrljobs/red/status"
    assert PODS.path(None) == "/api/v1/pods"
    assert TOKEN_REVIEWS.path(None) == "/apis/authentication.k8s.io/v1/tokenreviews"


@pytest.mark.parametrize("part", ["", ".", ".."])
def test_a_part_that_leads_to_other_objects_is_refused(part: str) -> None:
    for parts in ((part,), ("team", part), ("team", "red", part)):
        with pytest.raises(ValueError, match="other objects"):
            JOBS.path(*parts)


def test_a_part_stays_one_part() -> None:
    path = JOBS.path("te/am", "../x?dryRun=All#a", "st%2fatus")
    assert path == f"{ROOT}/namespaces/te%2Fam/diffusionrljobs/..%2Fx%3FdryRun%3DAll%23a/st%252fatus"
