"""``flamma deploy fetch``: the model of a finished run, at a site."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from flamma.cli.deploy_verbs import add_verb
from flamma.cli.parser import Parser


def register(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma deploy fetch`` to the command line."""
    fetch = add_verb(
        verbs,
        "fetch",
        run_fetch,
        "copy the model of a finished run, at a site",
        "Copy the model that the server sent this site at the end of a run, verified.",
        folder="the site's own folder",
        metavar="SITE_FOLDER",
        json="print JSON instead of a line",
    )
    fetch.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where to: FILE.safetensors"
    )
    fetch.add_argument(
        "--run-id", default="", metavar="RUN", help="of this run (the last one that ended)"
    )


def run_fetch(options: argparse.Namespace) -> None:
    """Run ``flamma deploy fetch``."""
    from flamma.deploy.hosts import SiteHost, read_host
    from flamma.engines.flower.final_model import fetch_final_model
    from flamma.errors import DeployError

    host = read_host(options.dir)
    if not isinstance(host, SiteHost):
        raise DeployError(
            f"{options.dir} is the server's folder; at the server, flamma export writes the model."
        )
    final = fetch_final_model(host.state, options.out, options.run_id)
    if options.json:
        print(json.dumps({"path": str(options.out), **asdict(final)}, indent=2))
        return
    print(
        f"{options.out}: the model of run {final.run} after round {final.round}\n"
        f"SHA-256 of the file     {final.sha256}\n"
        f"SHA-256 of the weights  {final.params_sha256}"
    )
