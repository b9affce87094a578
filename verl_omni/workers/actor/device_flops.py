"""PURE: peak throughput of accelerators in bfloat16, for the model FLOPs utilisation (MFU)."""

# FLOP/s of dense bfloat16 matrix multiplication, by part of the name that the driver reports; the first match counts.
# NVIDIA: the data sheets, whose figures "with sparsity" are halved. Ascend 910B: verl's `verl.utils.flops_counter`,
# because its maker publishes no figure for each variant.
PEAKS = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("910B", 354e12),
)


def peak_flops(device: str) -> float | None:
    """Peak of a device in FLOP/s; None for an unknown one, and for a CPU."""
    return next((peak for part, peak in PEAKS if part in device), None)


def utilisation(flops: float | None, seconds: float, device: str) -> dict[str, float]:
    """Metrics of an update: the model's FLOPs, and model FLOPs utilization if the device's peak is known.

    The names are verl's, which has no name for the FLOPs.
    """
    if flops is None:
        return {}
    peak = peak_flops(device)
    return {"perf/flops/actor": flops, **({} if peak is None else {"perf/mfu/actor": flops / seconds / peak})}
