"""Makes the keys, certificates and kubeconfigs of one box; `components.py` names them to processes.

Every box has a certificate authority of its own, so that the clients of one box never take another
for theirs, whatever port it answers on.
"""

import base64
import datetime
import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=365)  # a box lives for minutes, seldom for weeks
CLOCK_SKEW = datetime.timedelta(hours=1)
CONTEXT = "lastmile-box"  # the context, cluster and user that a box's kubeconfig holds
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a client at the API server.

    Attributes:
        user: its name in RBAC.
        groups: its groups in RBAC.
    """

    user: str
    groups: tuple[str, ...] = ()


ADMIN = Identity(user="lastmile-admin", groups=("system:masters",))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A key and its certificate, both PEM."""

    key: bytes
    certificate: bytes


class Authority:
    """A certificate authority that exists in this process only, but for its certificate."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _build_name("lastmile-box-ca", ())
        builder = _build_certificate(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(_build_key_usage(authority=True), True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def issue_client(self, identity: Identity) -> KeyPair:
        """Return key and certificate of a client with this identity."""
        name = _build_name(identity.user, identity.groups)
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def issue_server(self, addresses: tuple[str, ...]) -> KeyPair:
        """Return key and certificate of this box's servers on these IP addresses."""
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        name = _build_name("lastmile-box", ())
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return self._issue(name, usage, x509.SubjectAlternativeName(names))

    def _issue(
        self,
        name: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _build_certificate(name, self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_build_key_usage(authority=False), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        if names is not None:
            builder = builder.add_extension(names, False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(
            key=_encode_key(key),
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
        )


def _build_name(user: str, groups: tuple[str, ...]) -> x509.Name:
    """Kubernetes reads the user from the common name, the groups from the organisations."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _build_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _build_key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def build_service_account_keys() -> tuple[bytes, bytes]:
    """Return the private and the public key (PEM) that service account tokens are signed by."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _encode_key(key), public


def build_kubeconfig(server: str, authority: bytes, client: KeyPair) -> str:
    """Return a kubeconfig that contains its keys, so that it can be copied anywhere.

    Args:
        server: URL of the API server.
        authority: certificate (PEM) that verifies the server.
        client: key and certificate of the client.
    """
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {
        "client-certificate-data": _base64(client.certificate),
        "client-key-data": _base64(client.key),
    }
    context = {"cluster": CONTEXT, "user": CONTEXT}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": context}],
    }
    return json.dumps(config, indent=2) + "\n"  # JSON is YAML


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
