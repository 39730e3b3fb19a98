"""The folders of a federation: who gets which key, what is private, what is refused."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from filelock import FileLock

from deployment import flamma
from documented import ROOT
from flamma.cli import main
from flamma.data.sites import read_site
from flamma.deploy import loopback
from flamma.deploy.admission import MAX_CONNECTIONS
from flamma.deploy.hosts import ServerHost, SiteHost, read_host, read_hosts, read_server
from flamma.deploy.init import init
from flamma.deploy.keys import public_key_bytes
from flamma.deploy.runs import deployed_config, submit
from flamma.deploy.status import status
from flamma.errors import DataError, DeployError, FlammaError
from flamma.experiments.folder import RunFolder

DEPLOY_PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init") / "fed"
    arguments = ["--names", "north,south", "--host", "fl.example.org", "--host", "192.0.2.7"]
    assert main(["deploy", "init", str(folder), *arguments, "--split", "iid", "--seed", "5"]) == 0
    return folder


def test_every_host_has_its_own_folder_and_nobody_else_s_key(made):
    private = [path.relative_to(made).as_posix() for path in made.rglob("*.key")]
    assert sorted(private) == [
        "ca/ca.key",
        "server/server.key",
        "sites/north/site.key",
        "sites/south/site.key",
    ]
    secrets = {path.read_bytes() for path in made.rglob("*.secret")}
    assert len(secrets) == 3
    for path in [*made.rglob("*.key"), *made.rglob("*.secret")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (made / "ca", made / "server", made / "sites" / "north"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_server_s_certificate_has_its_names_and_is_signed_by_the_authority(made):
    authority = x509.load_pem_x509_certificate((made / "ca/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((made / "server/server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("192.0.2.7"),
        ipaddress.ip_address("127.0.0.1"),
    ]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server/server.pem", made / "server/server.key")
    for copy in ("server/ca.crt", "sites/north/ca.crt", "sites/south/ca.crt"):
        assert (made / copy).read_bytes() == (made / "ca/ca.crt").read_bytes()


def test_a_site_s_public_key_belongs_to_its_private_one(made):
    for name in ("north", "south"):
        content = (made / "sites" / name / "site.key").read_bytes()
        key = serialization.load_ssh_private_key(content, None)
        assert key.curve.name == "secp384r1"
        theirs = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        assert theirs == public_key_bytes(made / "server" / "keys" / f"{name}.pub")


def test_hosts_know_where_they_are(made):
    server, north, south = read_hosts(made)
    assert isinstance(server, ServerHost)
    assert (server.listen, server.port, server.control_port) == ("0.0.0.0", 8443, 8444)
    assert server.sites == ("north", "south")
    assert server.data["split"] == "iid"
    assert server.data["seed"] == 5
    assert isinstance(north, SiteHost)
    assert (north.name, north.server) == ("north", "fl.example.org:8443")
    assert isinstance(south, SiteHost)
    assert read_server(made / "server") == server
    assert "partition = 1\n" in (south.folder / "site.toml").read_text()


def test_the_page_and_the_units_have_the_commands(made):
    page = (made / "README.md").read_text()
    assert "flamma deploy start /opt/flamma/server" in page
    assert "flamma deploy start /opt/flamma/north" in page
    assert "FLWR_TELEMETRY_ENABLED=0" in page
    unit = (made / "sites/north/flamma-north.service").read_text()
    assert "ExecStart=/opt/flamma/venv/bin/flamma deploy start /opt/flamma/north" in unit
    container = (made / "server/Containerfile").read_text()
    assert container.count("EXPOSE 8443") == 1
    assert (
        "pip install --no-cache-dir --requirement /opt/flamma/server/requirements.txt" in container
    )
    [wheel] = (made / "server").glob("flamma_fl-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    expected = f"flamma-fl[flower] @ file:///opt/flamma/server/{wheel.name}#sha256={digest}"
    assert (made / "server/requirements.txt").read_text().splitlines()[-1] == expected


def test_a_service_s_user_is_made_and_its_runs_are_where_it_may_write(made):
    unit = (made / "server/flamma-server.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line[:20])
    assert settings["User"] == settings["Group"] == "flamma"
    assert int(settings["LimitNOFILE"]) > 2 * MAX_CONNECTIONS  # to sites and to the SuperLink
    page = (made / "README.md").read_text()
    for text in (page, unit, DEPLOY_PAGE):
        assert re.search(r"useradd --system .*--home-dir /opt/flamma/server .* flamma\n", text)
        assert "chown -R flamma:flamma /opt/flamma/server\n" in text
    for text in (page, DEPLOY_PAGE):
        runs = re.findall(r"deploy run /opt/flamma/server .*--out (\S+)", text)
        assert [Path(run).is_relative_to(settings["ReadWritePaths"]) for run in runs] == [True]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["server", "sites/north"])
def test_systemd_accepts_the_unit(made, tmp_path, name):
    [unit] = (made / name).glob("*.service")
    program = re.search(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE)[1]
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    here.write_text(here.read_text().replace("ProtectSystem=strict", "ProtectSystem=stric"))
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True)
    assert "protect system" in done.stderr, "what it does not know is told"


def test_another_user_than_the_server_s_cannot_submit(made, tmp_path, monkeypatch):
    server = read_server(made)
    server.state.mkdir()
    monkeypatch.setattr("os.geteuid", lambda: server.state.stat().st_uid + 1)
    config = deployed_config(server, None, {})
    with pytest.raises(DeployError, match=r"is used by the user .*: give the command as that user"):
        submit(server, RunFolder(tmp_path / "run"), config)
    assert not (tmp_path / "run").exists()


def test_nothing_is_overwritten(made, capsys):
    before = (made / "ca/ca.key").read_bytes()
    assert main(["deploy", "init", str(made)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (made / "ca/ca.key").read_bytes() == before


def test_sites_that_bring_their_own_data(tmp_path):
    words = ["--dataset", "own", "--sites", "2"]
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 0
    found = read_site(tmp_path / "fed/sites/site1/site.toml")
    assert (found.name, found.kind, found.source.npz) == ("site1", "npz", "data.npz")
    assert read_server(tmp_path / "fed").data["dataset"] == "own"


BAD = {
    "no sites": (["--sites", "0"], "from 1 to 1000"),
    "a path for a name": (["--names", "../x"], "small letters"),
    "the same name twice": (["--names", "a,a"], "different names"),
    "two counts": (["--names", "a,b", "--sites", "3"], "--names has 2"),
    "no port": (["--port", "70000"], "from 1 to 65535"),
    "one port for both": (["--port", "4000", "--control-port", "4000"], "two ports"),
    "no host": (["--host", "ä b"], "neither a host's name"),
    "unknown dataset": (["--dataset", "minst", "--set", "data.splt=1"], "did you mean --split"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_one_sentence(tmp_path, capsys, case):
    words, reason = BAD[case]
    assert main(["deploy", "init", str(tmp_path / "new"), *words]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert len(told.strip().splitlines()) == 1


def test_two_commands_do_not_start_one_federation_at_once(made, monkeypatch):
    """The second one would take what the first one starts for its own, and end it at a failure."""
    begun = []
    monkeypatch.setattr(loopback, "_start_all", lambda *_: begun.append(1))
    with FileLock(made / ".up.lock"), pytest.raises(DeployError, match="another command starts"):
        loopback.up(made, timeout=0.1)
    assert begun == []
    assert loopback.up(made, timeout=0.1).started == ("the server", "north", "south")


def test_what_is_not_up_says_so(made, capsys):
    assert loopback.down(made) == []
    found = status(made)
    assert not any(host["running"] for host in found["hosts"].values())
    assert set(found["sites"].values()) == {"unknown"}
    assert main(["deploy", "down", str(made)]) == 0
    assert "nothing to end" in capsys.readouterr().out
    assert main(["deploy", "run", str(made), "--out", str(made / "run")]) == 2
    assert "does not answer" in capsys.readouterr().err
    assert not (made / "run").exists()


def test_folders_of_something_else(tmp_path, made):
    with pytest.raises(DeployError, match="holds no deployment"):
        read_server(tmp_path)
    with pytest.raises(DeployError, match="not the folder of a host"):
        read_host(tmp_path)
    with pytest.raises(DeployError, match="is the folder of the site north"):
        read_server(made / "sites/north")
    with pytest.raises(DeployError, match="server's folder alone"):
        read_hosts(made / "server")


HOST = 'role = "server"\nlisten = "0.0.0.0"\nport = 1\ncontrol_port = 2\nsites = ["a", "b"]\n'
BAD_HOSTS = {
    "not TOML": (HOST + "port", "not valid TOML"),
    "no role": (HOST.replace('role = "server"', ""), "role must be server or site"),
    "unknown key": (HOST.replace("sites", "sits"), "did you mean sites"),
    "a key is missing": (HOST.replace("control_port = 2", ""), "control_port is missing"),
    "a text for a port": (HOST.replace("port = 1", 'port = "x"'), "port must be a whole number"),
    "true for a port": (HOST.replace("port = 1", "port = true"), "port must be a whole number"),
    "no port": (HOST.replace("port = 1", "port = 70000"), "port must be from 1 to 65535"),
    "one port for both": (HOST.replace("port = 2", "port = 1"), "two ports"),
    "the same name twice": (HOST.replace('"b"', '"a"'), "different names"),
    "a path for a name": (HOST.replace('"b"', '"../b"'), "small letters"),
    "data that are no table": (HOST + "data = 3\n", "data must be a table"),
    "a key of the other role": ('role = "site"\nname = "a"\nport = 1\n', "unknown key"),
}


@pytest.mark.parametrize("case", BAD_HOSTS)
def test_a_host_file_that_cannot_be_used_is_one_sentence_with_its_name(tmp_path, case):
    text, reason = BAD_HOSTS[case]
    (tmp_path / "host.toml").write_text(text)
    with pytest.raises(FlammaError, match=reason) as caught:
        read_host(tmp_path)
    assert str(tmp_path / "host.toml") in str(caught.value)


def test_a_host_file_has_defaults(tmp_path):
    (tmp_path / "host.toml").write_text(HOST)
    assert read_host(tmp_path).data == {}
    (tmp_path / "host.toml").write_text('role = "site"\nname = "a"\nserver = "h:1"\n')
    assert read_host(tmp_path).app == "flamma.engines.flower.client_app:app"


def test_a_split_s_own_options_reach_the_sites_and_the_runs(tmp_path):
    words = ["--split", "dirichlet", "--set", "data.alpha=0.3"]
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 0
    data = dict(read_server(tmp_path / "fed").data)
    assert (data["split"], data["alpha"]) == ("dirichlet", 0.3)
    assert "shards_per_client" not in data
    found = tomllib.loads((tmp_path / "fed/sites/site2/site.toml").read_text())["data"]
    assert (found["split"], found["alpha"], found["partition"]) == ("dirichlet", 0.3, 2)
    config = deployed_config(read_server(tmp_path / "fed"), None, {})
    assert config.data.as_table() | {"seed": 0} == config.data.as_table() | data
    assert (config.engine.name, config.data.split.options["alpha"]) == ("deployment", 0.3)


def test_a_port_in_use_is_one_sentence(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["deploy", "init", str(tmp_path / "fed"), "--port", str(port)]) == 0
        done = flamma("deploy", "up", tmp_path / "fed")
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


COLUMNS = 'target = "t"\nclasses = [0, 1]\n[[columns]]\nname = "age"\n'


def test_declared_classes_and_columns_go_to_every_host(tmp_path):
    (tmp_path / "own.toml").write_text(COLUMNS)
    folder, own = tmp_path / "fed", {"dataset": "own", "held_out": 0.2, "seed": 0}
    init(folder, ["a", "b"], own, columns=tmp_path / "own.toml")
    for place in ("server", "sites/a", "sites/b"):
        assert (folder / place / "columns.toml").read_text() == COLUMNS
    assert read_server(folder).columns == "columns.toml"
    site = read_site(folder / "sites" / "b" / "site.toml")
    assert (site.kind, site.source.columns) == ("table", "columns.toml")
    init(tmp_path / "other", ["a"], own, class_names=["ill", "well"])
    assert read_server(tmp_path / "other").class_names == ("ill", "well")
    site = read_site(tmp_path / "other" / "sites" / "a" / "site.toml")
    assert (site.kind, site.source.class_names) == ("folder", ("ill", "well"))


def test_what_is_declared_wrongly_leaves_no_folder_behind(tmp_path):
    own, slices = {"dataset": "own", "held_out": 0.2}, {"dataset": "digits"}
    (tmp_path / "own.toml").write_text(COLUMNS.replace("target", "traget"))
    with pytest.raises(DataError, match="did you mean target"):
        init(tmp_path / "fed", ["a"], own, columns=tmp_path / "own.toml")
    with pytest.raises(DeployError, match="add --dataset own"):
        init(tmp_path / "fed", ["a"], slices, class_names=["ill", "well"])
    assert not (tmp_path / "fed").exists()
