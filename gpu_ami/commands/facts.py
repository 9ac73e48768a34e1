"""`gpu-ami facts`: what the tables know, with sources."""

from __future__ import annotations

import argparse

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

_EPILOG = """\
examples:
  gpu-ami facts p5.48xlarge             an instance type: its GPUs, EFA, and the drivers and CUDA that fit
  gpu-ami facts p5                      a family
  gpu-ami facts --driver 580            a driver branch or release: modules, end of support, CUDA, GPUs
  gpu-ami facts --cuda 13.0             a CUDA toolkit: drivers, cuDNN, NCCL
  gpu-ami facts --efa 1.49.0            what is in an EFA installer
  gpu-ami facts --os al2023             an operating system

The tables are variables/facts/*.yml; each row has its source and date, and says where it is not verified.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "facts", help="what is known of instance types, drivers, CUDA, EFA", description="Answers from the tables.",
        epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("instance_type", nargs="?", metavar="TYPE", help="an instance type or family")
    asked = parser.add_mutually_exclusive_group()
    for name, text in (
        ("driver", "a driver branch or release"),
        ("cuda", "a CUDA toolkit"),
        ("efa", "an EFA installer"),
        ("os", "an operating system"),
    ):
        asked.add_argument(f"--{name}", metavar="VERSION" if name != "os" else "NAME", help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import fact_queries, load_facts

    facts = load_facts()
    asked = {
        fact_queries.about_instance_type: args.instance_type,
        fact_queries.about_driver: args.driver,
        fact_queries.about_cuda: args.cuda,
        fact_queries.about_efa: args.efa,
        fact_queries.about_os: args.os,
    }
    given = [(answer, name) for answer, name in asked.items() if name]
    if len(given) != 1:
        raise UsageError("ask for one thing", hint="gpu-ami facts p5.48xlarge, or gpu-ami facts --driver 580")
    answer, name = given[0]
    found = answer(facts, name)
    return Outcome(fact_queries.as_text(found), found)
