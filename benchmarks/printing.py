"""What is printed of the figures, as they come."""

from __future__ import annotations

from typing import Any


def print_model(name: str, row: dict[str, Any]) -> None:
    print(
        f"  {name:7} {row['ops']:5} ops  bare {row['bare_ms']:7.2f} ms  {_listed(row['ratios'])}",
        flush=True,
    )
    sampled = row["sampled"]
    print(
        f"        monitoring adds {row['monitoring_adds_ms']:.3f} ms a step "
        f"({_noise(row['monitoring_adds_quartiles_ms'], row['bare_quartiles_ms'])}), mean "
        f"{row['monitoring_mean_adds_ms']:+.3f}; "
        f"{sampled['steps']} steps sampled, {sampled['share']:.2%} of the time"
    )
    print(f"        {_again(row['bare_again'], row)}", flush=True)


def print_waits(waits: dict[str, dict[str, float]]) -> None:
    for way, counts in waits.items():
        each = ", ".join(f"{k} {v:.3g}" for k, v in counts.items())
        print(f"        {way} waits {sum(counts.values()):.3g} times a step: {each}")


def print_memory(peaks: dict[str, float]) -> None:
    print(f"        peak memory  {_listed(peaks)}", flush=True)


def print_script(row: dict[str, Any]) -> None:
    ratios = row["ratios"]
    print(
        f"        as a script  bare {row['bare_ms']:.2f} ms  watched {ratios['median']:.3f} "
        f"(mean {ratios['mean']:.3f}), {row['adds_ms']:+.3f} ms a step "
        f"({_noise(row['adds_quartiles_ms'], row['bare_quartiles_ms'])}), mean "
        f"{row['mean_adds_ms']:+.3f}; peak memory of the process "
        f"{ratios['peak']:.3f}; the first steps {row['first_steps_add_s']:+.2f} s",
        flush=True,
    )
    print(f"        {_again(ratios['again'], row)}", flush=True)


def print_long_run(quarters: dict[str, dict[str, float]]) -> None:
    print("  a long run of small steps:")
    for steps, row in quarters.items():
        print(
            f"    to step {steps:>6}  {row['ratio']:.2f} x bare, {row['adds_ms']:+.2f} ms a step, "
            f"memory {row['grown_mib']:+.1f} MiB",
            flush=True,
        )


def print_growth(per_op: dict[str, float]) -> None:
    lengths = _in_words([f"{int(length):,}".replace(",", " ") for length in per_op])
    shown = ", ".join(f"{v:.1f}" for v in per_op.values())
    print(f"  tracing, µs per op at {lengths} ops: {shown}")


def print_merging(sizes: dict[str, dict[str, float]]) -> None:
    print("  reports of many ranks, merged:")
    for ranks, row in sizes.items():
        print(f"    {ranks:>5} ranks  {row['seconds']:5.2f} s  {row['mib']:6.1f} MiB")


def print_sharded(row: dict[str, Any]) -> None:
    low, high = row["quartiles"]
    print(
        f"  FSDP2 on two ranks  bare {row['bare_ms']:.0f} ms  watched {row['ratio']:.3f} "
        f"(quartiles of the turns {low:.3f} and {high:.3f})",
        flush=True,
    )


def print_graph(graph: dict[str, dict[str, float]]) -> None:
    print("  gradient flow of one step, followed and judged:")
    for layers, row in graph.items():
        print(
            f"    {layers:>4} layers {row['ops']:6} ops  "
            f"{row['ratio']:.2f} x bare forward and backward  "
            f"{row['microseconds_per_op']:.1f} µs and {row['bytes_per_op']:.0f} bytes an op"
        )


def print_start_up(start_up: dict[str, float]) -> None:
    shown = "  ".join(f"{k} {v:.2f}" for k, v in start_up.items())
    print(f"  a tiny training, whole processes, over `python train.py`: {shown}")


def _again(ratio: float, row: dict[str, Any]) -> str:
    low, high = row["again_quartiles_ms"]
    return (
        f"noise of the machine: a second bare run {ratio:.3f}, {row['again_adds_ms']:+.3f} ms a "
        f"step (quartiles {low:.3f} and {high:.3f})"
    )


def _noise(added: list[float], bare: list[float]) -> str:
    (low, high), (lowest, highest) = added, bare
    return f"quartiles {low:.3f} and {high:.3f}; bare {lowest:.3f} and {highest:.3f}"


def _listed(ratios: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.3f}" for k, v in ratios.items() if k != "bare")


def _in_words(items: list[str]) -> str:
    *others, last = items
    return f"{', '.join(others)} and {last}" if others else last
