"""``vllm bench serve`` where vLLM's CPU package is installed: its command looks for a distribution of another name and fails.

.venv/bin/python benchmarks/vllm_bench_serve.py --backend openai-chat --base-url http://127.0.0.1:8000 ... [--then ...]

Takes the command's own arguments; ``--then`` begins another run, so that vLLM is imported once. docs/load-clients.md has whole commands.
"""

import argparse
import sys
from itertools import groupby

from vllm.benchmarks.serve import add_cli_args, main

SEPARATOR = "--then"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cli_args(parser)
    for separates, arguments in groupby(sys.argv[1:], lambda argument: argument == SEPARATOR):
        if not separates:
            main(parser.parse_args(list(arguments)))
