"""PURE: rules that involve several sections: accelerators, and overrides that contradict fields of the job."""
