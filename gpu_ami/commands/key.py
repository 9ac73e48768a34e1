"""`gpu-ami key`: makes the keys that sign certificates, and prints public keys."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
examples:
  gpu-ami key new release.key                              an ed25519 key: release.key (0600) and release.key.pub
  gpu-ami key public awskms:///alias/gpu-ami-release --where aws.yml   the public part of a KMS key, as PEM

Keep the private key out of the repository and of the image; whoever has it can sign. A KMS key has
no private file. Give release.key.pub to those who verify. See docs/release.md.
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "key", help="create a key that signs certificates, or print a public key", epilog=_EPILOG
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help="details: gpu-ami key VERB --help")
    new = verbs.add_parser("new", help="create an ed25519 key: PATH and PATH.pub")
    new.add_argument("path", type=Path, metavar="PATH", help="file of the private key; the public key is PATH.pub")
    new.set_defaults(execute=_new)
    public = verbs.add_parser("public", help="print the public part of a key as PEM")
    public.add_argument("key", metavar="KEY", help="private key file, or awskms:///ID")
    options.add_where(public)
    public.set_defaults(execute=_public)


def _new(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.release import keys

    public = keys.new_key(args.path)
    key_id = keys.load_public(str(public)).keyid
    text = f"private key {args.path} (readable only by you)\npublic key  {public}\nkey id      {key_id}"
    return Outcome(text, {"private": str(args.path), "public": str(public), "key_id": key_id})


def _public(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.cloud import load_place
    from gpu_ami.release import keys

    place = load_place(args.where) if args.where else None
    public: Any = keys.load_signer(args.key, place).public_key
    pem = keys.public_pem(public).decode("ascii")
    return Outcome(pem.rstrip("\n"), {"public": pem, "key_id": public.keyid})
