"""The metrics of a server for Prometheus, on the loopback address of its host.

Everything is read from what is on disk: the records of runs, the proxy's counts, the supervisor's
list of processes. So nothing is forgotten when a ServerApp, or this process, is restarted.

Run as ``python -m flamma.deploy.metrics FOLDER``.
"""

from __future__ import annotations

import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import flamma
from flamma.deploy.exposition import CONTENT_TYPE, MetricFamily, exposition
from flamma.deploy.hosts import LOOPBACK_NAMES, ServerHost, read_server
from flamma.deploy.known_runs import KnownRun, known_runs
from flamma.deploy.run_metrics import RunFigures, run_families
from flamma.deploy.supervisor import recorded
from flamma.deploy.traffic import ABSENT_SECONDS, read_traffic
from flamma.experiments.folder import ABOUT, ROUNDS, SITES
from flamma.io import Stamp, stamp

_METRICS_PATH = "/metrics"
_MAX_MEASURED_RUNS = 10
"""How many runs are told, those that were submitted last."""


class _ServerMetrics:
    """The metrics of a server as they are at this moment.

    Parameters
    ----------
    host : ServerHost
        The server.
    """

    def __init__(self, host: ServerHost) -> None:
        self.host = host
        self._read: dict[Path, tuple[Stamp, RunFigures]] = {}

    def page(self) -> str:
        """Return all metrics in Prometheus' text format."""
        runs = known_runs(self.host)[-_MAX_MEASURED_RUNS:]
        figures = [self._figures(run) for run in runs]
        self._read = {run.path: self._read[run.path] for run in runs}
        build = MetricFamily("flamma_build_info", "gauge", "The version of FLamma.")
        build.add(1, version=flamma.__version__)
        hosts = [build, *self._process_families(), *self._site_families()]
        return exposition([*hosts, *run_families(figures)])

    def _figures(self, run: KnownRun) -> RunFigures:
        """Return the figures of a run, read again only if its records have changed."""
        mark = stamp(*(run.path / name for name in (ROUNDS, ABOUT, SITES)))
        known = self._read.get(run.path)
        if known is None or known[0] != mark:
            known = (mark, RunFigures.read(run))
            self._read[run.path] = known
        return known[1]

    def _process_families(self) -> list[MetricFamily]:
        running = MetricFamily("flamma_process_running", "gauge", "Whether a process runs.")
        restarts = MetricFamily(
            "flamma_process_restarts_total", "counter", "How often a process was restarted."
        )
        _, processes, counts = recorded(self.host)
        for name, process in processes.items():
            running.add(float(process.alive), process=name)
            restarts.add(counts[name], process=name)
        return [running, restarts]

    def _site_families(self) -> list[MetricFamily]:
        connected = MetricFamily(
            "flamma_site_connected",
            "gauge",
            "Whether a site has sent a request just now.",
        )
        seen = MetricFamily(
            "flamma_site_seen_timestamp_seconds", "gauge", "When a site has sent its last request."
        )
        bytes_passed = MetricFamily(
            "flamma_proxy_bytes_total", "counter", "Bytes of requests of sites and of the answers."
        )
        refused = MetricFamily(
            "flamma_proxy_refusals_total", "counter", "Requests that the proxy refused, by status."
        )
        sites, refusals = read_traffic(self.host)
        now = time.time()
        for name in self.host.sites:
            about = sites.get(name)
            connected.add(float(about is not None and now - about.seen < ABSENT_SECONDS), site=name)
            if about is not None:
                seen.add(about.seen, site=name)
                bytes_passed.add(about.bytes_up, site=name, direction="up")
                bytes_passed.add(about.bytes_down, site=name, direction="down")
        for status in sorted(refusals):
            refused.add(refusals[status], status=str(status))
        return [connected, seen, bytes_passed, refused]


def _serve_metrics(host: ServerHost) -> ThreadingHTTPServer:
    """Return a server of the metrics, on the loopback address only; its caller lets it serve."""
    metrics = _ServerMetrics(host)

    class Handler(BaseHTTPRequestHandler):
        server_version = "flamma"
        sys_version = ""
        timeout = 10

        def do_GET(self) -> None:
            # Another name is that of a page elsewhere which wants a browser here to read this.
            name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if self.path != _METRICS_PATH or name not in LOOPBACK_NAMES:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            content = metrics.page().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write no line for every question."""

    server = ThreadingHTTPServer(("127.0.0.1", host.metrics_port), Handler)
    server.daemon_threads = True
    return server


def main() -> None:
    """Serve the metrics of the server whose folder is the first argument."""
    _serve_metrics(read_server(Path(sys.argv[1]))).serve_forever()


if __name__ == "__main__":
    main()
