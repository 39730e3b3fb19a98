"""Sites that join and leave, and new keys and certificates, in the files of a federation."""

from __future__ import annotations

import datetime
import json
import shutil
import ssl
import stat
import tomllib

import pytest
from cryptography import x509

from flamma.cli import main
from flamma.deploy import certificates
from flamma.deploy.certificates import expiries, server_names, warnings_of
from flamma.deploy.hosts import read_hosts, read_server
from flamma.deploy.init import init
from flamma.deploy.keys import make_site_key, public_key_bytes
from flamma.deploy.liveness import SignGiver, Signs
from flamma.deploy.membership import add_site, remove_site
from flamma.deploy.rotation import rotate_authority, rotate_own_key, rotate_server, rotate_site
from flamma.deploy.status import status
from flamma.deploy.traffic import _TRAFFIC_FILE, ProxyTraffic, _SiteTraffic
from flamma.deploy.watch import Watch, keys_digest, proxy_state, site_keys
from flamma.errors import DeployError
from flamma.io import stamp

OWN = {"dataset": "own", "held_out": 0.2, "seed": 0}
COLUMNS = 'target = "t"\nclasses = [0, 1]\n[[columns]]\nname = "age"\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("membership")
    (folder / "own.toml").write_text(COLUMNS)
    names = ["fl.example.org", "192.0.2.7"]
    init(folder / "fed", ["north", "south"], OWN, names, columns=folder / "own.toml")
    host = folder / "fed/server/host.toml"
    host.write_text(host.read_text() + "\n[samples]\nsouth = 12\n")
    return folder / "fed"


@pytest.fixture
def fed(made, tmp_path):
    return shutil.copytree(made, tmp_path / "fed")


def test_a_site_joins_with_all_that_a_host_needs(fed):
    assert not add_site(fed, "west"), "no server runs here"
    server, north, _, west = read_hosts(fed)
    assert server.sites == ("north", "south", "west")
    assert server.samples == {"south": 12}
    assert west.server == north.server == "fl.example.org:8443"
    ours = {path.name for path in north.folder.iterdir()}
    theirs = {path.name.replace("west", "north") for path in west.folder.iterdir()}
    assert theirs == ours
    assert "columns.toml" in theirs
    assert any(name.endswith(".whl") for name in theirs)
    assert stat.S_IMODE(west.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(west.folder.stat().st_mode) == 0o700
    assert len({public_key_bytes(path) for path in site_keys(server).values()}) == 3


def test_a_site_of_a_known_dataset_gets_one_more_slice(tmp_path):
    data = {"dataset": "digits", "split": "iid", "clients": 2, "seed": 0}
    init(tmp_path / "fed", ["a", "b"], data)
    add_site(tmp_path / "fed", "c")
    found = tomllib.loads((tmp_path / "fed/sites/c/site.toml").read_text())["data"]
    assert (found["partition"], found["partitions"]) == (2, 3)


def test_a_site_leaves_and_its_key_with_it(fed):
    remove_site(fed, "south")
    server = read_server(fed)
    assert server.sites == ("north",)
    assert server.samples == {}
    assert not server.public_key("south").exists()
    assert (fed / "sites/south/site.key").exists(), "its folder stays"
    with pytest.raises(DeployError, match="is there already, and keys are never overwritten"):
        add_site(fed, "south")
    assert read_server(fed).sites == ("north",)
    with pytest.raises(DeployError, match="is the only site"):
        remove_site(fed, "north")


def test_on_the_server_s_host_a_public_key_is_enough(fed, tmp_path):
    make_site_key(tmp_path / "west.key", tmp_path / "west.pub", "west")
    with pytest.raises(DeployError, match=r"the server's folder alone.*--key"):
        add_site(fed / "server", "west")
    add_site(fed / "server", "west", key=tmp_path / "west.pub")
    server = read_server(fed / "server")
    assert public_key_bytes(server.public_key("west")) == public_key_bytes(tmp_path / "west.pub")
    assert not (fed / "sites/west").exists()
    with pytest.raises(DeployError, match="is the key of west already"):
        add_site(fed / "server", "east", key=tmp_path / "west.pub")
    with pytest.raises(DeployError, match="is the key of west already"):
        rotate_site(fed / "server", "north", key=tmp_path / "west.pub")


BAD = {
    "a name twice": (["add-site", "north"], "there is a site north already"),
    "a path for a name": (["add-site", "../x"], "small letters"),
    "no such site": (["remove-site", "nort"], "did you mean north"),
    "nothing to rotate": (["rotate"], "name a site whose key"),
    "no such key": (["rotate", "noth"], "did you mean north"),
    "two things": (["rotate", "north", "--server"], "are not for a site"),
    "no such host": (["stop", "--host", "serve"], "did you mean server"),
    "a whole deployment": (["stop"], "is not the folder of a host"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_one_sentence(fed, capsys, case):
    (verb, *words), reason = BAD[case]
    before = (fed / "server/host.toml").read_bytes()
    assert main(["deploy", verb, str(fed), *words]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert len(told.strip().splitlines()) == 1
    assert (fed / "server/host.toml").read_bytes() == before


def test_commands_say_what_is_left_to_do(fed, capsys):
    assert main(["deploy", "add-site", str(fed), "west"]) == 0
    assert "add-site SERVER-FOLDER west --key west.pub" in capsys.readouterr().out
    assert main(["deploy", "rotate", str(fed), "west", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(fed),
        "name": "west",
        "in_force": False,
    }
    assert main(["deploy", "remove-site", str(fed), "west"]) == 0
    assert "its key is revoked" in capsys.readouterr().out
    assert main(["deploy", "stop", str(fed), "--host", "server"]) == 0
    assert "nothing to end" in capsys.readouterr().out


def key_pair(fed, name):
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    key = load_ssh_private_key((fed / "sites" / name / "site.key").read_bytes(), None)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem, public_key_bytes(read_server(fed).public_key(name))


def test_a_new_key_belongs_to_the_site_and_is_another_one(fed):
    before, known = key_pair(fed, "north")
    assert before == known
    rotate_site(fed, "north")
    after, known = key_pair(fed, "north")
    assert after == known != before
    assert (
        sorted(path.name for path in (fed / "sites/north").iterdir() if ".new" in path.name) == []
    )


def test_a_site_makes_its_own_key_and_the_private_one_stays_there(fed):
    site = read_hosts(fed)[1]
    public = rotate_own_key(site)
    with pytest.raises(DeployError, match="private key of north is not in"):
        rotate_site(fed / "server", "north")
    rotate_site(fed / "server", "north", key=public)
    after, known = key_pair(fed, "north")
    assert after == known


def test_a_revoked_key_is_not_taken_again(fed, tmp_path):
    server = read_server(fed)
    for name in ("north", "south"):
        shutil.copy(server.public_key(name), tmp_path / f"{name}.pub")
    rotate_site(fed, "north")
    remove_site(fed, "south")
    for name in ("north", "south"):
        with pytest.raises(DeployError, match=r"was revoked, which is for good"):
            add_site(fed / "server", "west", key=tmp_path / f"{name}.pub")
    assert read_server(fed).sites == ("north",)


def test_a_new_server_certificate_has_the_old_names(fed):
    server = read_server(fed)
    before = server.certificate.read_bytes()
    names, trusted = server_names(server.certificate), stamp(server.authority)
    rotate_server(fed)
    assert stamp(server.authority) == trusted, "so that no run is disturbed"
    assert server.certificate.read_bytes() != before
    assert (
        server_names(server.certificate)
        == names
        == [
            "fl.example.org",
            "192.0.2.7",
            "localhost",
            "127.0.0.1",
        ]
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.certificate_key)
    assert stat.S_IMODE(server.certificate_key.stat().st_mode) == 0o600
    with pytest.raises(DeployError, match="there is no authority in"):
        rotate_server(fed / "server")


def trusts(host, certificate):
    """Return whether a host's authorities have issued a certificate."""
    for authority in x509.load_pem_x509_certificates(host.authority.read_bytes()):
        try:
            certificate.verify_directly_issued_by(authority)
            return True
        except Exception:
            continue
    return False


def test_a_new_authority_is_trusted_beside_the_old_one_until_the_server_has_changed(fed):
    hosts = read_hosts(fed)
    certificate = hosts[0].certificate
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    rotate_authority(fed)
    assert all(trusts(host, old) for host in hosts), "before the server changes"
    bundles = [host.authority.read_bytes() for host in hosts]
    rotate_server(fed)
    new = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert all(trusts(host, new) and not trusts(host, old) for host in hosts)
    hosts[1].authority.write_bytes(bundles[1])  # a site that has not got the last file yet
    assert trusts(hosts[1], new)


def test_expiry_is_told_from_a_month_before(fed, monkeypatch):
    hosts = {host.title: host for host in read_hosts(fed)}
    found = expiries(hosts)
    assert set(found) == {"server", "authority"}
    end = found["server"]
    day = datetime.timedelta(days=1)
    assert warnings_of(found, fed, end - 40 * day) == []
    first, second = warnings_of(found, fed, end - 20 * day)
    assert first == (
        f"the certificate of the server expires on {end:%Y-%m-%d}: flamma deploy rotate {fed} "
        f"--server makes a new one."
    )
    assert "--ca" in second
    assert "expired on" in warnings_of(found, fed, end + day)[0]
    assert status(fed)["certificates"]["server"] == end.date().isoformat()
    monkeypatch.setattr(certificates, "_WARN_DAYS", 5000)
    assert len(status(fed)["warnings"]) == 2
    assert len(status(fed / "sites/north")["warnings"]) == 1


def test_the_time_of_the_last_sign_is_told(fed, capsys):
    server, north, _ = read_hosts(fed)
    server.state.mkdir()
    seen = {"south": 1e9, "gone": 1.0, "north": 0.0}
    ProxyTraffic(
        server.state / _TRAFFIC_FILE, sites={n: _SiteTraffic(seen=t) for n, t in seen.items()}
    ).save()
    SignGiver(north.state / "supernode.json").is_answered()
    found = status(fed)["seen"]
    assert found["south"] == "2001-09-09T01:46:40+00:00"
    assert set(found) == {"north", "south"}
    assert main(["deploy", "status", str(fed)]) == 0
    assert "s ago" in capsys.readouterr().out
    assert status(fed / "sites/north")["seen"]["north"] == found["north"] is not None


def test_signs_of_life_are_kept_in_a_file(tmp_path):
    path = tmp_path / "state" / "signs.json"
    assert Signs.read(path) is None
    giver = SignGiver(path)
    giver.asks()
    assert Signs.read(path).answered is None
    first = Signs.read(path).asked
    giver.asks()
    assert Signs.read(path).asked > first
    path.write_text('{"asked": "x"}')
    assert Signs.read(path) is None


class StandIn:
    """What a watch does to a proxy."""

    def __init__(self, host):
        from flamma.deploy.admission import SiteKeys
        from flamma.deploy.denials import Denials
        from flamma.deploy.orders import SentOrders

        self.keys, self.orders, self.denials = (
            SiteKeys(site_keys(host)),
            SentOrders(),
            Denials(host),
        )
        self.connections = self.answers = self
        self.cut, self.dropped = set(), []

    def cut_off(self, sites):
        self.cut |= set(sites)

    def drop(self, site):
        self.dropped.append(site)


def test_the_proxy_takes_over_what_changes(fed):
    host = read_server(fed)
    own, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    proxy = StandIn(host)
    looking = Watch(host, proxy, own, trusted)
    looking.look()
    before = proxy_state(host)["keys"]
    rotate_site(fed, "north")
    looking.look()
    assert (proxy.cut, proxy.dropped) == ({"north"}, ["north"])
    add_site(fed, "west")
    looking.look()
    assert set(proxy.keys.known()) == {"north", "south", "west"}
    assert proxy.cut == {"north"}, "others are not disturbed"
    remove_site(fed, "south")
    looking.look()
    assert proxy.cut == {"north", "south"}
    assert proxy_state(host)["keys"] == keys_digest(proxy.keys.known()) != before
    assert proxy.denials.host.sites == ("north", "west")
    (fed / "server/host.toml").write_text("sites = 3")
    looking.look()
    assert set(proxy.keys.known()) == {"north", "west"}, (
        "a file that cannot be read changes nothing"
    )
