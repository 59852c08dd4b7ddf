#!/usr/bin/env python3
"""Applies known faults to the engine one by one; each must make a test fail.

Run through `tests/run --mutations`, which makes the fixtures first; further arguments to this script
are names of mutations to try. The tree must be clean in the files that are mutated. A fault that no
test notices, or whose text is no longer found, is an error.
"""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def tests_fail(arguments):
    """Whether the tests, which must build, fail."""
    build = subprocess.run(["cargo", "test", "--locked", "--quiet", "--no-run", *arguments], cwd=ROOT, capture_output=True, text=True)
    if build.returncode:
        sys.exit(f"a mutation does not build:\n{build.stderr}")
    return subprocess.run(["cargo", "test", "--locked", "--quiet", *arguments], cwd=ROOT, capture_output=True).returncode != 0


def main():
    mutations = json.loads((HERE / "mutations.json").read_text())
    wanted = sys.argv[1:]
    unknown = set(wanted) - {mutation["name"] for mutation in mutations}
    if unknown:
        sys.exit(f"no such mutation: {', '.join(sorted(unknown))}")
    survivors = 0
    tried = 0
    for mutation in mutations:
        if wanted and mutation["name"] not in wanted:
            continue
        path = ROOT / mutation["file"]
        text = path.read_text()
        if text.count(mutation["find"]) < 1:
            sys.exit(f"{mutation['name']}: the text is not in {mutation['file']}")
        tried += 1
        try:
            path.write_text(text.replace(mutation["find"], mutation["replace"], 1))
            noticed = tests_fail(mutation["test"].split())
        finally:
            path.write_text(text)
        survivors += not noticed
        print(f"{'noticed ' if noticed else 'SURVIVED'}  {mutation['name']}", flush=True)
    print(f"{tried - survivors} of {tried} faults noticed")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
