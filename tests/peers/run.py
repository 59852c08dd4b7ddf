#!/usr/bin/env python3
"""Measures scumble and two builds of stable-diffusion.cpp in turn; README.md says how to set them up.

Only the standard library is used here; the peer's own Python runs this file again as `--child`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS = ("load_text_s", "step_s", "decode_s", "peak_bytes")


def child(options):
    """Runs inside a peer's environment: one picture; writes its times as JSON to `options.report`."""
    from stable_diffusion_cpp import StableDiffusion

    marks = []
    begun = time.perf_counter()
    engine = StableDiffusion(model_path=str(options.model), n_threads=options.threads, verbose=False,
                             rng_type="cpu", vae_decode_only=True)
    opened = time.perf_counter() - begun
    note = lambda step, steps, seconds: marks.append((time.perf_counter(), step, steps))
    start = time.perf_counter()
    engine.generate_image("a mossy red brick wall", negative_prompt="blurry", width=options.size, height=options.size,
                          sample_steps=options.steps, sample_method="euler", cfg_scale=7.5, seed=42,
                          progress_callback=note)
    end = time.perf_counter()
    # Step 0 marks the beginning of sampling; the last steps + 1 calls are its own (loading may report as well).
    at = [when for when, _, steps in marks if steps == options.steps][-options.steps - 1 :]
    first, *later = [b - a for a, b in zip(at, at[1:])]
    step = statistics.median(later)
    report = {"load_text_s": opened + at[0] - start + max(0.0, first - step), "step_s": step,
              "decode_s": end - at[-1], "open_s": opened, "first_step_s": first}
    Path(options.report).write_text(json.dumps(report))


def run_child(command):
    """Run one command to its end: (stdout, peak resident bytes). Fails loudly."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command[0]} failed with {process.returncode}:\n{errors.decode(errors='replace')[-2000:]}")
        output.seek(0)
        return output.read().decode(), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peer(python, options):
    """One round of a peer."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        _, peak = run_child([python, __file__, "--child", "--report", str(report), "--model", str(options.model),
                             "--size", str(options.size), "--threads", str(options.threads), "--steps", str(options.steps)])
        return json.loads(report.read_text()) | {"peak_bytes": peak}


def measure_scumble(program, options):
    """One round of scumble."""
    text, peak = run_child([program, "bench", "step", "--model", str(options.model), "--width", str(options.size),
                            "--height", str(options.size), "--threads", str(options.threads), "--json"])
    found = json.loads(text)
    return {"load_text_s": found["load_s"] + found["text_s"], "step_s": found["step_s"],
            "decode_s": found["decode_s"], "peak_bytes": peak}


def table(results, options):
    """Medians as Markdown, with the range of the steps."""
    lines = [f"{options.model.name}, {options.size}×{options.size}, {options.threads} threads, "
             f"{options.rounds} rounds in turn, medians (step: least – most)", "",
             "| program | load + text, s | step with guidance, s | decode, s | peak, MB |", "|---|---|---|---|---|"]
    for name, rows in results.items():
        middle = {key: statistics.median(row[key] for row in rows) for key in COLUMNS}
        steps = sorted(row["step_s"] for row in rows)
        lines.append(f"| {name} | {middle['load_text_s']:.2f} | {middle['step_s']:.2f} ({steps[0]:.2f} – {steps[-1]:.2f}) "
                     f"| {middle['decode_s']:.2f} | {middle['peak_bytes'] / 1e6:.0f} |")
    return "\n".join(lines)


def main():
    """Parse, run all programs in every round, print the table; `--json` keeps every number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, required=True)
    add("--size", type=int, default=256)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=3)
    add("--steps", type=int, default=3, help="of the peers' pictures; two or more")
    add("--default", help="Python of the environment with the peer as it comes")
    add("--llamafile", help="Python of the environment with the peer built with GGML_LLAMAFILE=ON")
    add("--scumble", help="the scumble program")
    add("--json", type=Path, help="write every measurement here")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    add("--report", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be 2 or more: the first step is not counted")
    if options.child:
        return child(options)
    programs = {"stable-diffusion.cpp": (measure_peer, options.default),
                "stable-diffusion.cpp, llamafile": (measure_peer, options.llamafile),
                "scumble": (measure_scumble, options.scumble)}
    programs = {name: pair for name, pair in programs.items() if pair[1]}
    results = {name: [] for name in programs}
    for turn in range(options.rounds):
        for name, (measure, program) in programs.items():
            results[name].append(measure(program, options))
            print(f"round {turn + 1}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results, options))


if __name__ == "__main__":
    main()
