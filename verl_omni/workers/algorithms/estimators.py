"""Registry of the estimators of advantages, the values of `algorithm.adv_estimator`; importing it imports no torch."""

from verl_omni.settings_schema import declarations
from verl_omni.utils.registry import Registry

_GROUP_RELATIVE = "verl_omni.workers.algorithms.base:group_relative"
# Import paths of functions (rewards, groups, settings) -> advantages.
ESTIMATORS = Registry("estimator of advantages", dict.fromkeys(declarations.ESTIMATORS, _GROUP_RELATIVE))
