"""``flamma deploy add-site``, ``remove-site`` and ``rotate``: sites come and go, keys change."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flamma.cli.deploy_verbs import add_verb
from flamma.cli.parser import Parser

WHERE = "the deployment's folder, or the server's own on its host"


def register(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to ``flamma deploy``."""
    add = add_verb(
        verbs,
        "add-site",
        run_add,
        "let a site join",
        "Make a site's key and folder, and let the server know its public key.",
        folder=WHERE,
        epilog="The others are not stopped. The site takes part in runs that begin afterwards.",
    )
    add.add_argument("name", metavar="NAME", help="the site's name")
    add.add_argument("--wheel", type=Path, metavar="FILE", help="the wheel that the site installs")
    remove = add_verb(
        verbs,
        "remove-site",
        run_remove,
        "let a site leave, and revoke its key",
        "Take a site off the list: its key opens nothing from now on.",
        folder=WHERE,
        epilog="A run that goes on treats it as a site that is gone.",
    )
    remove.add_argument("name", metavar="NAME", help="the site's name")
    rotate = add_verb(
        verbs,
        "rotate",
        run_rotate,
        "replace keys and certificates",
        "Replace a site's key, the server's certificate, or the authority.",
        folder=f"{WHERE}, or a site's own",
        epilog="In a site's own folder, it makes the site a new key and tells what to do with it.",
    )
    rotate.add_argument("name", nargs="?", metavar="NAME", help="the site")
    kinds = rotate.add_mutually_exclusive_group()
    kinds.add_argument("--server", action="store_true", help="the server's certificate")
    kinds.add_argument("--ca", action="store_true", help="the authority, and then --server")
    for parser in (add, rotate):
        parser.add_argument(
            "--key", type=Path, metavar="FILE", help="a public key that the site has made itself"
        )


def run_add(options: argparse.Namespace) -> None:
    """Run ``flamma deploy add-site``."""
    from flamma.deploy.membership import add_site

    name, folder = options.name, options.dir
    taken = add_site(folder, name, options.key, options.wheel)
    lines = [f"{name} is a site of {folder}."]
    if options.key is None:
        lines.append(f"Its host needs {folder / 'sites' / name}; here, flamma deploy up {folder}.")
    _tell(options, taken, lines, f"add-site {{server}} {name} --key {name}.pub")


def run_remove(options: argparse.Namespace) -> None:
    """Run ``flamma deploy remove-site``."""
    from flamma.deploy.membership import remove_site

    name = options.name
    taken = remove_site(options.dir, name)
    lines = [f"{name} is no site of {options.dir} any more; its key is revoked."]
    _tell(options, taken, lines, f"remove-site {{server}} {name}")


def run_rotate(options: argparse.Namespace) -> None:
    """Run ``flamma deploy rotate``."""
    from flamma.deploy.hosts import HOST, SiteHost, read_host
    from flamma.deploy.rotation import rotate_authority, rotate_own_key, rotate_server, rotate_site
    from flamma.errors import DeployError

    folder, name = options.dir, options.name
    host = read_host(folder) if (folder / HOST).exists() else None
    if (options.server or options.ca) and (name or options.key):
        raise DeployError("--server and --ca are not for a site: leave its name and key out.")
    if options.server:
        rotate_server(folder)
        _tell(options, None, [SERVER_DONE.format(folder=folder)])
    elif options.ca:
        rotate_authority(folder)
        _tell(options, None, [AUTHORITY_DONE.format(folder=folder)])
    elif isinstance(host, SiteHost):
        public = rotate_own_key(host)
        _tell(options, None, [OWN_KEY_DONE.format(name=host.name, public=public)])
    elif name is None:
        raise DeployError("name a site whose key is to be replaced, or add --server or --ca.")
    else:
        taken = rotate_site(folder, name, options.key)
        lines = [f"{name} has a new key; the old one opens nothing any more."]
        if options.key is None:
            lines.append(f"Its host needs {folder / 'sites' / name / 'site.key'}.")
        _tell(options, taken, lines, f"rotate {{server}} {name} --key {name}.pub")


SERVER_DONE = """\
The server has a new certificate. If it runs elsewhere, replace server.key and server.pem there by
those in {folder}/server; it takes them over, and no site is stopped."""
AUTHORITY_DONE = """\
There is a new authority, which hosts trust beside the old one. Give each host that is elsewhere the
ca.crt of its folder in {folder}; it takes it over. Then: flamma deploy rotate {folder} --server"""
OWN_KEY_DONE = """\
{name} has a new key. Give {public} to the server's operator, who lets the site in again by
flamma deploy rotate SERVER-FOLDER {name} --key site.pub"""


def _tell(
    options: argparse.Namespace, taken: bool | None, lines: list[str], there: str = ""
) -> None:
    """Print what was done, and what is left to do on the server's host if it is elsewhere."""
    if options.json:
        told = {} if taken is None else {"in_force": taken}
        print(json.dumps({"path": str(options.dir), "name": options.name, **told}, indent=2))
        return
    if taken:
        lines.append("The running server goes by it already.")
    elif taken is False:
        again = "flamma deploy " + there.format(server="SERVER-FOLDER")
        lines.append(f"No server runs here; if it runs elsewhere, on its host: {again}")
    print("\n".join(lines))
