"""Raw data -> docs/figures-rollout.md and its plots.

    python benchmarks/page.py [--check]

Reads docs/figures/*.json alone, so the page says what was measured and nothing else. With `--check` it writes nothing
and fails if a committed file is not what the data make.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measured import FIGURES, ROOT
from plots import Series, plot

PAGE = ROOT / "docs" / "figures-rollout.md"
INTRODUCTION = (
    "Written by `python benchmarks/page.py` from the raw data in `docs/figures/`; `make bench` measures all of it "
    "again. Each figure is a ratio within one run, whose variants took turns: the median of the turns, with the lowest "
    "and the highest in brackets, after a turn that is not counted. They are of a processor alone and say nothing of "
    "an accelerator's seconds."
)
Data = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Section:
    """What the page says about one program's data: paragraphs and tables, and plots by the name of their file."""

    blocks: list[str]
    plots: dict[str, str] = field(default_factory=dict)


def batching(data: Data) -> Section:
    """Request batching."""
    rows: Rows = data["runs"]
    several = [row for row in rows if row["max_num_seqs"] > 1]
    levels = max(row["largest_difference"] for row in several)
    slower = [row for row in several if row["speedup_lowest"] <= 1]
    cells = [
        [
            row["pixels"], row["max_num_seqs"], spread(row, "speedup"),
            number((1 - row["equal"]) * 1e6), row["largest_difference"],
        ]
        for row in rows
    ]  # fmt: skip
    series = [
        Series(f"{pixels} x {pixels} pixels", *points(selected(rows, "pixels", pixels), "max_num_seqs", "speedup"))
        for pixels in sorted({row["pixels"] for row in rows})
    ]
    return Section(
        [
            f"Engines that differ in `max_num_seqs` alone draw {data['pictures']} pictures from the same seeds.",
            table(["resolution", "drawn at once", "times as fast as one", "values that differ, of a million",
                   "largest difference, of 255 levels"], cells),
            verdict(not slower, "fewer seconds in every turn")
            + verdict(levels <= 1, f"the same pixels but for rounding: at most {levels} of 255 levels apart"),
        ],
        {"batching": plot(series, "pictures drawn at once", "times as fast as one")},
    )  # fmt: skip


def reward_overlap(data: Data) -> Section:
    """Scores while other pictures are drawn."""
    rows: Rows = data["runs"]
    worst = max(row["over_ideal"] for row in rows)
    cells = [
        [row["reward_over_generation"], spread(row, "share"), *(number(row[name]) for name in ("ideal", "exact_ideal")),
         spread(row, "over_ideal")]
        for row in rows
    ]  # fmt: skip
    x = [row["reward_over_generation"] for row in rows]
    series = [
        Series("measured", *points(rows, "reward_over_generation", "share")),
        Series("max(g, r) / (g + r)", x, [row["ideal"] for row in rows]),
        Series("with the first and the last batch", x, [row["exact_ideal"] for row in rows]),
    ]
    return Section(
        [
            f"{data['pictures']} pictures of {data['pixels']} x {data['pixels']} and {data['steps']} denoising steps "
            f"through the agent loop, {data['max_num_seqs']} drawn at once, and one scorer that takes one picture at a "
            "time and sleeps. In "
            "sequence, all pictures are drawn (g seconds each) and then all are scored (r each); overlapped, a picture "
            "is scored while others are drawn. The exact ideal counts that nothing can be scored while the first batch "
            "is drawn, nor drawn while the last one is scored.",
            table(["r / g", "share of the sequence's seconds", "ideal max(g, r) / (g + r)", "exact ideal",
                   "measured over ideal"], cells),
            verdict(worst <= 1.1, f"within 10% of max(g, r) / (g + r): the largest median is {number(worst)} times it"),
        ],
        {"reward_overlap": plot(series, "seconds of a score over a picture's (r / g)", "share of the sequence")},
    )  # fmt: skip


def overhead(data: Data) -> Section:
    """The agent loop over the engine alone."""
    (row,) = data["runs"]
    return Section(
        [
            f"{data['pictures']} requests in flight at once, {data['max_num_seqs']} drawn at once: "
            "`AsyncOmni.generate` inside the server's process, against the whole way from rows to a `DataProto` in the "
            "driver (tokenizing, Ray to the worker, the router and the server, the output, and back).",
            f"The engine alone takes {spread(row, 'raw_ms_a_picture')} ms a picture; the agent loop adds "
            f"{spread(row, 'added_ms_a_picture')} ms, {percent(row['added_share'])} of pictures as small as these. Of "
            f"the processor's time it takes {spread(row, 'server_processor_ms_added')} ms a picture more in the "
            f"server's process, and {spread(row, 'worker_processor_ms')} ms in that of the agent loop.",
        ]
    )


def agent_loop(data: Data) -> Section:
    """The agent loop with an engine that answers at once."""
    rows: Rows = data["runs"]
    cells = [[row["samples"], spread(row, "ms_a_sample"), spread(row, "first_ms_a_sample")] for row in rows]
    highest = max(row["ms_a_sample"] for row in rows)
    many = [row["ms_a_sample"] for row in rows if row["samples"] >= 16]
    series = [Series("measured", *points(rows, "samples", "ms_a_sample"))]
    return Section(
        [
            "A worker with an engine and a reward worker that answer at once; the processor's time. Small batches come "
            "one after another; the first of them finds the processor's caches full of what ran before.",
            table(["samples", "ms a sample", "ms a sample of the first batch"], cells),
            verdict(highest < 1, f"under 1 ms a sample: at most {number(highest)} ms")
            + verdict(
                max(many) <= 2 * min(many),
                f"linear: from 16 samples on, the dearest costs {number(max(many) / min(many))} times the cheapest, "
                "2 at most",
            ),
        ],
        {"agent_loop": plot(series, "samples in a batch", "ms of the processor a sample", log_x=True)},
    )


def payload(data: Data) -> Section:
    """Pixels on their way to the trainer."""
    rows: Rows = data["runs"]
    cells = [
        [
            row["pictures"],
            row["variant"],
            number(row["megabytes"]),
            spread(row, "relative"),
            milliseconds(row, "seconds"),
        ]
        for row in rows
    ]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    series = [
        Series(variant, *points(selected(rows, "variant", variant), "pictures", "seconds")) for variant in variants
    ]
    return Section(
        [
            f"Pictures of {data['resolution']} x {data['resolution']} from {data['workers']} workers: Ray's put and "
            "get, and `DataProto.concat`. Pixels are uint8 by default (`pipeline.pixel_dtype`); training steps leave "
            "them behind (`carry_responses`, [rollout-server.md](rollout-server.md)).",
            table(["pictures", "pixels", "megabytes", "seconds over those of float32", "ms"], cells),
        ],
        {"payload": plot(series, "pictures in a batch", "seconds", log_x=True, log_y=True)},
    )


def growth(data: Data) -> Section:
    """Batch, resolution, replicas."""
    rows: Rows = data["runs"]
    blocks = [
        f"Seconds a picture over those of the smallest: of {data['pictures']}, by how many are drawn at once; of "
        f"{data['pictures_of_resolutions']}, drawn as one batch, by their resolution; of {data['pictures']}, "
        f"{data['max_num_seqs_of_replicas']} drawn at once by each replica, by the replicas that share them, each a "
        "process of its own on the same machine."
    ]
    plots = {}
    words = {"batch": "pictures drawn at once", "resolution": "pixels on a side", "replicas": "replicas"}
    for kind, axis in words.items():
        found = selected(rows, "kind", kind)
        blocks.append(
            table([axis, "seconds a picture, over the smallest's", "ms a picture"],
                  [[row["size"], spread(row, "relative"), milliseconds(row, "seconds_a_picture")] for row in found])
        )  # fmt: skip
        sizes = [row["size"] for row in found]
        ideal = {
            "batch": [],
            "resolution": [Series("as the number of pixels", sizes, [(size / sizes[0]) ** 2 for size in sizes])],
            "replicas": [Series("one over the number of replicas", sizes, [1 / size for size in sizes])],
        }
        series = [Series("measured", *points(found, "size", "relative")), *ideal[kind]]
        plots[f"growth_{kind}"] = plot(
            series, axis, "seconds a picture, relative", log_x=kind == "batch", log_y=kind == "resolution"
        )
    return Section(blocks, plots)


def weight_transfer(data: Data) -> Section:
    """Weights through shared memory."""
    rows: Rows = data["runs"]
    short = [row["bucket_mib"] for row in rows if row["share_of_memcpy"] < 0.6]
    cells = [
        [row["bucket_mib"], row["tensor_kib"], row["total_mib"],
         *(spread(row, name) for name in ("share_of_memcpy", "sender_alone", "gib_per_s", "memcpy_gib_per_s"))]
        for row in rows
    ]  # fmt: skip
    series = [
        Series("measured", *points(rows, "bucket_mib", "share_of_memcpy")),
        Series("the goal", [row["bucket_mib"] for row in rows], [0.6] * len(rows)),
    ]
    missed = f": not with {' and '.join(f'{bucket} MiB' for bucket in short)}" if short else ""
    return Section(
        [
            "From the first tensor to the last confirmation, with a digest of every tensor made and compared, into "
            "the memory of a model in another process; against `torch.Tensor.copy_` of the same tensors within one "
            "process, one thread each. The sender alone has a receiver that needs no time: more than that cannot be.",
            table(["bucket, MiB", "tensors, KiB", "sent, MiB", "share of memcpy's bandwidth", "the sender alone",
                   "GiB/s", "memcpy, GiB/s"], cells),
            verdict(not short, f"at least 60% of `memcpy`{missed}"),
            f"Shared memory takes {data['enough_mib']} MiB of a bucket at most where tensors fit into half of that: "
            "fresh pages cost several times what copying them does. Both ends read and write memory at the same time, "
            "and single turns differ by what else the machine's memory does. A message, and the words about a tensor, "
            "cost the same for any size: it is the buckets of 1 MiB, of two tensors a half, where that is more than "
            "the copying.",
        ],
        {"weight_transfer": plot(series, "bucket, MiB", "share of memcpy's bandwidth", log_x=True)},
    )  # fmt: skip


FILES = {"tmpfs": "files on a tmpfs", "disk": "files on a disk", "forced": "files forced onto a disk"}


def adapter_update(data: Data) -> Section:
    """An adapter in memory, against files."""
    rows: Rows = data["runs"]
    lowest = {way: min(row[f"{way}_ratio"] for row in rows) for way in FILES}
    said = ", ".join(f"{words} {number(lowest[way])}" for way, words in FILES.items())
    cells = [
        [row["rank"], number(row["megabytes"]), milliseconds(row, "memory_s"),
         *(spread(row, f"{way}_ratio") for way in FILES), spread(row, "tmpfs_over_swap")]
        for row in rows
    ]  # fmt: skip
    series = [
        *(Series(words, *points(rows, "rank", f"{way}_ratio")) for way, words in FILES.items()),
        Series("the goal", [row["rank"] for row in rows], [5.0] * len(rows)),
    ]
    bounds = [row["tmpfs_over_swap"] for row in rows]
    buckets = [
        [row["buckets"], spread(row, "ratio"), "yes" if row["same_picture"] else "no"] for row in data["buckets"]
    ]
    return Section(
        [
            f"An adapter of {data['modules']} modules, from tensors in the trainer to an engine that draws with them. "
            "In memory: digests, checks of names, shapes and values, one swap, every matrix read back. Files: saved, "
            "and loaded and attached by one call of the worker, which checks nothing.",
            table(["rank", "MB", "in memory, ms", *(f"{words}, over memory" for words in FILES.values()),
                   "files on a tmpfs, over the swap alone"], cells),
            verdict(min(lowest.values()) >= 5, f"at least 5 times as fast as files: the lowest ratios are {said}"),
            "A file on a tmpfs is memory, and one that was just written to a disk is still there: these ways copy as "
            "often as the transfer does. The last column says what cannot be beaten: the swap alone is vLLM-Omni's own "
            "part, with the tensors in the engine's process before, and nothing sent or checked. An update that took "
            f"no time but that would be {number(min(bounds))} to {number(max(bounds))} times as fast as files.",
            f"One swap against a swap for each bucket, as the reference does it (rank {data['buckets_rank']}). What "
            "came before the last bucket is lost there, and the picture is another:",
            table(["buckets", "seconds over those of one swap", "the adapter's picture"], buckets),
        ],
        {"adapter_update": plot(series, "rank", "seconds over those in memory", log_x=True)},
    )  # fmt: skip


SECTIONS: dict[str, tuple[str, Callable[[Data], Section]]] = {
    "batching": ("Requests drawn as a batch", batching),
    "reward_overlap": ("Scores while pictures are drawn", reward_overlap),
    "overhead": ("The agent loop over the engine alone", overhead),
    "agent_loop": ("The agent loop alone", agent_loop),
    "payload": ("Pixels on their way", payload),
    "growth": ("Batch, resolution, replicas", growth),
    "weight_transfer": ("Weights through shared memory", weight_transfer),
    "adapter_update": ("An adapter in memory, against files", adapter_update),
}


def number(value: float) -> str:
    """Three significant digits; no exponent."""
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 or not value else f"{value:.1g}"
    )


def milliseconds(row: dict[str, Any], name: str) -> str:
    """A column of seconds."""
    return number(row[name] * 1e3)


def selected(rows: Rows, column: str, value: Any) -> Rows:
    """Rows that have a value."""
    return [row for row in rows if row[column] == value]


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{value * 100:.0f}%"


def brackets(middle: float, low: float, high: float) -> str:
    """A median and how far turns lie from it."""
    return f"{number(middle)} ({number(low)} to {number(high)})"


def spread(row: dict[str, Any], name: str) -> str:
    """What `measured.spread` wrote."""
    return brackets(row[name], row[f"{name}_lowest"], row[f"{name}_highest"])


def points(rows: Rows, x: str, y: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """The columns of a `Series` that was measured."""
    return [row[x] for row in rows], *([row[name] for row in rows] for name in (y, f"{y}_lowest", f"{y}_highest"))  # type: ignore[return-value]


def verdict(holds: bool, goal: str) -> str:
    """A goal, and whether these data reach it."""
    return f"- **{'Reached' if holds else 'Not reached'}**: {goal}.\n"


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def made(figures: Path) -> dict[str, str]:
    """The page and its plots, as text, by their path in docs/."""
    parts = ["# Figures of the rollout", wrapped(INTRODUCTION)]
    files: dict[str, str] = {}
    for name, (title, section) in SECTIONS.items():
        parts.append(f"## {title}")
        file = figures / f"{name}.json"
        if not file.is_file():
            parts.append(f"Not measured yet (`python benchmarks/{name}.py`).")
            continue
        data = json.loads(file.read_text(encoding="utf-8"))
        found = section(data)
        parts.append(f"`python benchmarks/{name}.py`, on {data['machine']}.")
        parts += [wrapped(block) for block in found.blocks]
        parts += [f"![{title}](figures/{plot_name}.svg)" for plot_name in found.plots]
        files |= {f"figures/{plot_name}.svg": text for plot_name, text in found.plots.items()}
    return {PAGE.name: "\n\n".join(parts) + "\n", **files}


def wrapped(block: str) -> str:
    """A paragraph or list in lines of one width; a table as it is."""
    if block.startswith("|"):
        return block
    return "\n".join(
        textwrap.fill(
            line, 120, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False, break_long_words=False
        )
        for line in block.strip().splitlines()
    )


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    docs = FIGURES.parent
    files = made(FIGURES)
    if chosen.check:
        stale = [name for name, text in files.items() if not _is(docs / name, text)]
        print("\n".join(f"docs/{name} is not what its data make: run python benchmarks/page.py" for name in stale))
        return 1 if stale else 0
    for name, text in files.items():
        (docs / name).write_text(text, encoding="utf-8")
    return 0


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
