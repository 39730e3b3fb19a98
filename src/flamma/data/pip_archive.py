"""Downloads a source archive of a Python package, and runs nothing of it.

``pip download`` asks a source archive for its metadata, and to answer it runs the archive's
``setup.py``, whatever its options are. So pip is asked only where the file is and to transfer it,
which keeps the user's index, proxy, certificates and credentials. These are pip's internal
functions, for it has no public ones: they run in a process of their own,
``python -m flamma.data.pip_archive FILENAME``, which says in one line what went wrong.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from flamma.data.fetch import LARGEST_DOWNLOAD


def _download_archive(filename: str, into: Path) -> None:
    """Download the file of this name from the indexes that pip is configured for.

    Raises
    ------
    LookupError
        If no index has it, or it is too large.
    """
    commands = import_module("pip._internal.commands")
    command = commands.create_command("download", isolated=False)
    options, _ = command.parse_args(["--quiet", "--retries", "1"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        found = finder.find_all_candidates(filename.rpartition("-")[0])
        links = [candidate.link for candidate in found if candidate.link.filename == filename]
        if not links:
            raise LookupError(f"no index that pip is configured for has {filename}")
        _transfer(session, links[0].url_without_fragment, into / filename)


def _transfer(session: Any, url: str, target: Path) -> None:
    answer = session.get(url, headers={"Accept-Encoding": "identity"}, stream=True)
    answer.raise_for_status()
    taken = 0
    with target.open("wb") as file:
        while chunk := answer.raw.read(1 << 20):
            taken += len(chunk)
            if taken > LARGEST_DOWNLOAD:
                raise LookupError(f"{target.name} is larger than {LARGEST_DOWNLOAD:,} bytes")
            file.write(chunk)


def main(filename: str) -> int:
    """Download into the working directory; return 0, or 1 with the reason printed."""
    try:
        _download_archive(filename, Path.cwd())
    except LookupError as error:
        print(error.args[0])
    except (ImportError, AttributeError, TypeError):
        print("pip is missing or of a version that cannot be asked for source archives")
    except Exception as error:  # pip raises many kinds, and all of them mean no archive
        print(f"nothing downloaded ({type(error).__name__}: {error})".splitlines()[0])
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
