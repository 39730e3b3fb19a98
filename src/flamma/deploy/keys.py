"""The keys and certificates of a federation: one authority, one server, one key per site.

The authority signs the server's certificate, so that sites can verify the server. A site
authenticates with its own key: an elliptic-curve key on P-384, which Flower requires.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.hosts import LOOPBACK_NAMES
from flamma.errors import DeployError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CERTIFICATE_YEARS = 10
"""How long certificates are valid."""
_SECRET_BYTES = 48


def make_authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make a certificate authority and write ``ca.key`` (private) and ``ca.crt``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name("FLamma federation authority")
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    certificate = builder.sign(key, hashes.SHA384())
    _write_private(folder / "ca.key", _pem(key))
    write_public(folder / "ca.crt", _certificate_pem(certificate))
    return key, certificate


def make_server_certificate(
    folder: Path,
    authority: tuple[ec.EllipticCurvePrivateKey, x509.Certificate],
    hosts: Sequence[str],
) -> None:
    """Write ``server.key`` (private), ``server.pem`` and ``ca.crt`` for a server of these names.

    Raises
    ------
    DeployError
        If a name is neither a host's name nor an address.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca_key, ca = authority
    key = _new_key()
    # Processes on the server's own host connect over loopback.
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK_NAMES])]
    builder = _builder(_name("FLamma federation server"), ca.subject, key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    certificate = builder.sign(ca_key, hashes.SHA384())
    _write_private(folder / "server.key", _pem(key))
    write_public(folder / "server.pem", _certificate_pem(certificate))
    write_public(folder / "ca.crt", _certificate_pem(ca))


def make_site_key(private: Path, public: Path, name: str) -> None:
    """Write a site's private key, and its public key for the server, in OpenSSH's format."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = _new_key()
    _write_private(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_public(public, line + f" {name}\n".encode())


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return a site's public key from a file in OpenSSH's format.

    Raises
    ------
    DeployError
        If there is no such key in the file.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("it is not an elliptic-curve key")
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} is not the public key of a site: {error}.") from error
    return key


def public_key_bytes(path: Path) -> bytes:
    """Return a public key as PEM, as Flower stores it, from a file in OpenSSH's format."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return load_public_key(path).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def make_secret(path: Path) -> None:
    """Write the secret by which the processes of one host authenticate to each other."""
    _write_private(path, secrets.token_hex(_SECRET_BYTES).encode())


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write_private(path: Path, content: bytes) -> None:
    """Write a new file that is readable by its owner only, from the moment it exists."""
    _write(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """Write a new file that every user may read."""
    _write(path, content, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
    except FileExistsError:
        raise DeployError(f"{path} is there already: name a new folder.") from None
    except OSError as error:
        raise DeployError(f"cannot write {path}: {error.strerror}.") from error


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # A day earlier, for sites whose clocks are behind.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _CERTIFICATE_YEARS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise DeployError(f"{host!r} is neither a host's name nor an address.") from None
