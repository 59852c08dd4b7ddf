"""Compares two safetensors files: relative L2 and dB per key.

    compare.py FOUND EXPECTED [--peak 1]

Exit code 1 when keys or shapes differ. The peak for dB is 1 with `--peak 1` (pictures), else the largest
expected value.
"""

import argparse
import sys

import torch
from safetensors.torch import load_file

from storing import decibels, relative_l2


def main():
    """Print one line a key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found")
    parser.add_argument("expected")
    parser.add_argument("--peak", type=float)
    options = parser.parse_args()
    found, expected = load_file(options.found), load_file(options.expected)
    fault = False
    for name in sorted(set(found) | set(expected)):
        if name not in found or name not in expected:
            print(f"{name:40} only in {'expected' if name in expected else 'found'}")
            fault = True
        elif found[name].shape != expected[name].shape:
            print(f"{name:40} shapes {list(found[name].shape)} and {list(expected[name].shape)}")
            fault = True
        elif torch.equal(found[name], expected[name]):
            print(f"{name:40} equal")
        else:
            print(f"{name:40} relative L2 {relative_l2(found[name], expected[name]):.2e}"
                  f"   {decibels(found[name], expected[name], options.peak):6.1f} dB")
    sys.exit(1 if fault else 0)


if __name__ == "__main__":
    main()
