"""Accelerators of a pool, by the driver's platform and Ray's name of them."""

from typing import Any

import pytest
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_omni.workers.rollout.vllm_rollout.driver import pool_accelerators
from verl_omni.workers.rollout.vllm_rollout.driver.pool_accelerators import WithEnvironment


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`pool_accelerators` in a driver with a platform."""

    def make(driver: str, resource: str | None) -> pool_accelerators.PoolAccelerators:
        platform = PlatformRegistry.get(driver)
        assert platform is not None
        monkeypatch.setattr(pool_accelerators, "get_platform", platform)
        return pool_accelerators.pool_accelerators(resource)

    return make


def test_a_pool_with_the_drivers_accelerators_gets_no_variables(found: Any) -> None:
    for driver, resource in (("nvidia", "GPU"), ("huawei", "NPU"), ("cpu", "GPU")):
        for resource_of_pool in (None, resource):
            pool = found(driver, resource_of_pool)
            assert (pool.resource, pool.environment, pool.server_environment) == (resource, {}, {})


def test_processes_of_another_vendor_get_its_platform_and_servers_see_all_devices(found: Any) -> None:
    pool = found("nvidia", "NPU")
    assert (pool.resource, pool.environment) == ("NPU", {"VERL_PLATFORM": "huawei"})
    assert pool.server_environment["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"
    pool = found("huawei", "GPU")
    assert (pool.resource, pool.environment) == ("GPU", {"VERL_PLATFORM": "nvidia"})
    assert pool.server_environment["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"


def test_a_pool_of_a_driver_on_the_cpu_computes_on_the_cpu(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = found("cpu", "NPU")
    assert pool.environment == pool.server_environment == {"VERL_PLATFORM": "cpu", "VERL_OMNI_RAY_RESOURCE": "NPU"}
    monkeypatch.setenv("VERL_OMNI_RAY_RESOURCE", "NPU")
    assert found("cpu", "GPU").environment["VERL_OMNI_RAY_RESOURCE"] == "GPU"


def test_variables_of_a_pool_replace_those_that_verl_gives_its_servers() -> None:
    class ActorClass:
        def options(self, **options: Any) -> dict[str, Any]:
            return options

    options = WithEnvironment(ActorClass(), {"B": "pool"}).options(
        runtime_env={"env_vars": {"A": "1", "B": "2"}}, name="n"
    )
    assert options == {"runtime_env": {"env_vars": {"A": "1", "B": "pool"}}, "name": "n"}
