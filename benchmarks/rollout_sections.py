"""PURE: data of the rollout benchmarks -> their sections of docs/contribute/benchmarks.md."""

from formatting import (
    QUIET_LOAD,
    Data,
    Rows,
    Section,
    milliseconds,
    number,
    percent,
    points,
    rounded,
    selected,
    table,
    verdict,
    with_range,
)
from plots import Series, plot

MEMCPY_TARGET = 0.6
FILES_TARGET = 5.0
OVERLAP_TARGET = 1.1
FAN_OUT_TARGET = 0.7
UNEVEN_TARGET = 1.5
FILES = {"tmpfs": "files on tmpfs", "disk": "files on a disk", "forced": "files on a disk with fsync"}


def batching(data: Data) -> Section:
    """Speed-up and pixel differences of requests generated as one batch."""
    rows: Rows = data["runs"]
    several = [row for row in rows if row["max_num_seqs"] > 1]
    levels = max(row["largest_difference"] for row in several)
    slower = [row for row in several if row["speedup_lowest"] <= 1]
    cells = [
        [row["pixels"], row["max_num_seqs"], with_range(row, "speedup"), number((1 - row["equal"]) * 1e6)]
        for row in several
    ]
    series = [
        Series(f"{pixels} x {pixels} pixels", *points(selected(rows, "pixels", pixels), "max_num_seqs", "speedup"))
        for pixels in sorted({row["pixels"] for row in rows})
    ]
    return Section(
        [
            f"Engines that differ only in `max_num_seqs` generate {data['pictures']} images from the same seeds.",
            table(["resolution", "batch size", "speed-up over batch size 1", "differing values per million"], cells),
            verdict(not slower, "faster in every turn")
            + verdict(levels <= 1, f"the same pixels except for rounding: at most {levels} of 255 levels apart"),
        ],
        {"batching": plot(series, "batch size", "speed-up over batch size 1")},
    )


def reward_overlap(data: Data) -> Section:
    """Time saved by computing rewards while other images are generated."""
    rows: Rows = data["runs"]
    worst = max(row["over_ideal"] for row in rows)
    cells = [
        [
            row["reward_over_generation"],
            with_range(row, "share"),
            *(number(row[name]) for name in ("ideal", "exact_ideal")),
            with_range(row, "over_ideal"),
        ]
        for row in rows
    ]
    x = [row["reward_over_generation"] for row in rows]
    series = [
        Series("measured", *points(rows, "reward_over_generation", "share")),
        Series("max(g, r) / (g + r)", x, [row["ideal"] for row in rows]),
        Series("lower bound with whole batches", x, [row["exact_ideal"] for row in rows]),
    ]
    return Section(
        [
            f"{data['pictures']} images of {data['pixels']} x {data['pixels']} pixels and {data['steps']} denoising "
            f"steps, in batches of {data['max_num_seqs']}, with a scorer that takes one image at a time: scored while "
            "others are generated, over generation (g seconds an image) and then scoring (r seconds). The lower bound "
            "accounts for the first and the last batch.",
            table(
                [
                    "r / g",
                    "overlapped over sequential time",
                    "ideal max(g, r) / (g + r)",
                    "lower bound with whole batches",
                    "measured over ideal",
                ],
                cells,
            ),
            verdict(
                worst <= OVERLAP_TARGET,
                f"within 10% of max(g, r) / (g + r); the largest median is {number(worst)} times it",
            ),
        ],
        {
            "reward_overlap": plot(
                series, "reward time over generation time of an image (r / g)", "overlapped over sequential time"
            )
        },
        []
        if worst <= OVERLAP_TARGET
        else [f"Overlapped rewards take up to {number(worst)} times the ideal time; the target is {OVERLAP_TARGET}."],
    )


def overhead(data: Data) -> Section:
    """Latency that the agent loop adds to the engine."""
    (row,) = data["runs"]
    return Section(
        [
            f"{data['pictures']} requests in flight, in batches of {data['max_num_seqs']}: `AsyncOmni.generate` alone "
            f"takes {with_range(row, 'raw_ms_a_picture')} ms per image. The path from rows to a `DataProto` in the "
            f"driver adds {with_range(row, 'added_ms_a_picture')} ms, {percent(row['added_share'])} for such small "
            f"images; in CPU time {with_range(row, 'server_processor_ms_added')} ms in the server process and "
            f"{with_range(row, 'worker_processor_ms')} ms in the agent-loop process.",
        ]
    )


def agent_loop(data: Data) -> Section:
    """CPU time of the agent loop with an engine that answers immediately."""
    rows: Rows = data["runs"]
    cells = [[row["samples"], with_range(row, "ms_a_sample")] for row in rows]
    highest = max(row["ms_a_sample"] for row in rows)
    many = [row["ms_a_sample"] for row in rows if row["samples"] >= 16]
    series = [Series("measured", *points(rows, "samples", "ms_a_sample"))]
    return Section(
        [
            "CPU time of an agent-loop worker whose engine and reward worker answer immediately.",
            table(["samples", "ms per sample"], cells),
            verdict(highest < 1, f"under 1 ms per sample: at most {number(highest)} ms")
            + verdict(
                max(many) <= 2 * min(many),
                "linear: from 16 samples, the most expensive size costs at most twice the cheapest "
                f"(measured: {number(max(many) / min(many))} times)",
            ),
        ],
        {"agent_loop": plot(series, "samples in a batch", "CPU time per sample, ms", log_x=True)},
    )


def scoring(data: Data) -> Section:
    """Time to score a batch with a slow scorer."""
    rows: Rows = data["runs"]
    worst = max(row["over_ideal"] for row in rows)
    met = worst <= SCORING_TARGET
    cells = [[row["workers"], number(row["ideal_s"]), with_range(row, "over_ideal"), row["failed"]] for row in rows]
    return Section(
        [
            f"{data['samples']} samples to a scorer that sleeps {number(data['scorer_s'])} s, with {data['calls']} "
            "calls at a time in each reward worker, and "
            f"a deadline of {number(data['deadline_s'])} s. Ideal: as many rounds "
            "of calls as are needed. Workers run in one process.",
            table(["reward workers", "ideal seconds", "time over the ideal", "failed samples"], cells),
            verdict(met, f"within 10% of the ideal; the largest median is {number(worst)} times it"),
        ],
        missed=[]
        if met
        else [f"Scoring takes up to {number(worst)} times the ideal time; the target is {number(SCORING_TARGET)}."],
    )


PROMPT_ORDER_TARGET_S = 0.05
SCORING_TARGET = 1.1


def weight_transfer(data: Data) -> Section:
    """Bandwidth of weights sent through shared memory."""
    rows: Rows = data["runs"]
    short = [row for row in rows if row["share_of_memcpy"] < MEMCPY_TARGET]
    columns = ("share_of_memcpy", "sender_alone", "gib_per_s")
    cells = [[row["bucket_mib"], row["tensor_kib"], *(with_range(row, name) for name in columns)] for row in rows]
    series = [
        Series("measured", *points(rows, "bucket_mib", "share_of_memcpy")),
        Series("target", [row["bucket_mib"] for row in rows], [MEMCPY_TARGET] * len(rows)),
    ]
    sizes = " and ".join(f"{row['bucket_mib']} MiB" for row in short)
    where = f" (missed with buckets of {sizes})" if short else ""
    return Section(
        [
            "From the first tensor to the last confirmation, with a digest of every tensor compared. The baseline is "
            "`torch.Tensor.copy_` of the same tensors within one process; “sender alone” is the upper bound.",
            table(["bucket, MiB", "tensor, KiB", "share of memcpy's bandwidth", "sender alone", "GiB/s"], cells),
            verdict(not short, f"at least 60% of `memcpy`'s bandwidth{where}"),
            f"A bucket uses at most {data['enough_mib']} MiB of shared memory if its tensors fit into half of that. "
            "The fixed cost of messages and tensors exceeds the copy only with buckets of 1 MiB.",
        ],
        {"weight_transfer": plot(series, "bucket, MiB", "share of memcpy's bandwidth", log_x=True)},
        [
            f"Weights in buckets of {row['bucket_mib']} MiB reach {rounded(row['share_of_memcpy'])} of `memcpy`'s "
            f"bandwidth; the target is {MEMCPY_TARGET}. The sender's copies and digests alone reach "
            f"{rounded(row['sender_alone'])}."
            for row in short
        ],
    )


def fan_out(data: Data) -> Section:
    """Bandwidth of weights sent over the network to several receivers."""
    rows: Rows = data["runs"]
    short = [row for row in rows if row["share_of_bound"] < FAN_OUT_TARGET]
    uneven = max(row["slowest_over_fastest"] for row in rows)
    columns = ("share_of_bound", "slowest_over_fastest", "cpu_over_bound", "gib_per_s")
    quiet = data["load"] < QUIET_LOAD
    busy = f" The load of the machine was {rounded(data['load'])} at the start: other work took most of its time."
    cells = [[row["receivers"], *(with_range(row, name) for name in columns)] for row in rows]
    counts = [row["receivers"] for row in rows]
    series = [
        Series("measured", *points(rows, "receivers", "share_of_bound")),
        Series("target", counts, [FAN_OUT_TARGET] * len(rows)),
    ]
    where = f" (missed with {' and '.join(str(row['receivers']) for row in short)})" if short else ""
    return Section(
        [
            f"An update of {rows[0]['update_mib']} MiB, in tensors of {data['tensor_mib']} MiB, from one process to "
            "several over loopback, from the handshake to the last confirmation, with digests. GiB/s are the sum of "
            f"all receivers. The baseline is one TCP connection between buffers of {data['buffer_mib']} MiB, which has "
            "the machine alone. CPU time is for a received byte in all processes." + ("" if quiet else busy),
            table(
                [
                    "receivers",
                    "bandwidth over one socket's",
                    "slowest over fastest receiver",
                    "CPU time over one socket's",
                    "GiB/s",
                ],
                cells,
            ),
            verdict(not short, f"together at least 70% of the bandwidth of one socket{where}")
            + verdict(
                uneven <= UNEVEN_TARGET,
                "no receiver takes more than 1.5 times as long as the fastest; the "
                f"largest median is {number(uneven)} times",
            ),
        ],
        {"fan_out": plot(series, "receivers", "bandwidth over that of one socket", log_x=True)},
        [
            f"Receivers of an update over the network, {row['receivers']}: {rounded(row['share_of_bound'])} of "
            f"the bandwidth of one socket; the target is {FAN_OUT_TARGET}. It takes {rounded(row['cpu_over_bound'])} "
            f"times the CPU time, on cores that sender and receivers share{'' if quiet else ' with other work'}."
            for row in short
        ]
        + (
            []
            if uneven <= UNEVEN_TARGET
            else [
                f"The slowest receiver of an update over the network takes {rounded(uneven)} times as long as the "
                f"fastest; the target is {UNEVEN_TARGET}."
            ]
        ),
    )


def adapter_update(data: Data) -> Section:
    """Adapter updates through memory, compared with files."""
    rows: Rows = data["runs"]
    lowest = {way: min(row[f"{way}_ratio"] for row in rows) for way in FILES}
    lowest_text = ", ".join(f"{words} {number(lowest[way])}" for way, words in FILES.items())
    highest = max(row[f"{way}_ratio"] for row in rows for way in FILES)
    met = min(lowest.values()) >= FILES_TARGET
    cells = [
        [
            row["rank"],
            number(row["megabytes"]),
            milliseconds(row, "memory_s"),
            *(with_range(row, f"{way}_ratio") for way in FILES),
            with_range(row, "tmpfs_over_swap"),
        ]
        for row in rows
    ]
    series = [
        *(Series(words, *points(rows, "rank", f"{way}_ratio")) for way, words in FILES.items()),
        Series("target", [row["rank"] for row in rows], [FILES_TARGET] * len(rows)),
    ]
    bounds = [row["tmpfs_over_swap"] for row in rows]
    buckets = [
        [row["buckets"], with_range(row, "ratio"), "yes" if row["same_picture"] else "no"] for row in data["buckets"]
    ]
    return Section(
        [
            f"An adapter of {data['modules']} modules, from the trainer to an engine that generates with it. Through "
            "memory: with digests, checks, and every matrix read back. Through files: saved and loaded without checks.",
            table(
                [
                    "rank",
                    "MB",
                    "through memory, ms",
                    *(f"{words}, over memory" for words in FILES.values()),
                    "files on tmpfs, over the swap alone",
                ],
                cells,
            ),
            verdict(met, f"at least 5 times as fast as files; the lowest ratios are {lowest_text}"),
            "The last column is the upper bound, vLLM-Omni's swap alone: an update with no other cost would be "
            f"{number(min(bounds))} to {number(max(bounds))} times as fast as files.",
            f"One swap per bucket (rank {data['buckets_rank']}), as in verl-omni, over one swap per update. It keeps "
            "only the last bucket's tensors, so the image differs:",
            table(["buckets", "time over one swap", "image of the whole adapter"], buckets),
        ],
        {"adapter_update": plot(series, "rank", "time over that through memory", log_x=True)},
        []
        if met
        else [
            f"An adapter update through memory is {rounded(min(lowest.values()))} to {rounded(highest)} times as fast "
            f"as through files; the target is {FILES_TARGET:.0f}. vLLM-Omni's adapter swap alone would be "
            f"{rounded(min(bounds))} to {rounded(max(bounds))} times as fast."
        ],
    )
