"""Keys, certificates and kubeconfigs of one box, which `write_keys` writes into its folder.

Every box has a certificate authority of its own, so that a client of one box never mistakes another
for it, whatever port that answers on. `components.py` passes the files to the processes.
"""

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tools.cluster.box import Layout
from tools.cluster.components import SERVICE_ADDRESS

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
    """A certificate authority whose key exists in this process only."""

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
    """Return a name as Kubernetes reads it: the user is the common name, groups organisations."""
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
    """Return the private and the public key (PEM) that sign service account tokens."""
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


def write_keys(
    layout: Layout, address: str, apiserver_port: int, identities: Mapping[str, Identity]
) -> None:
    """Write the credentials of a box's processes and of its administrator.

    Args:
        layout: the map of the box's folder.
        address: the address of its servers.
        apiserver_port: the port of the API server.
        identities: the identity of each component at the API server, by its name.
    """
    authority = Authority()
    admin = authority.issue_client(ADMIN)
    serving = authority.issue_server((address, SERVICE_ADDRESS))
    private, public = build_service_account_keys()
    contents = {
        "ca.crt": authority.certificate,
        "server.crt": serving.certificate,
        "server.key": serving.key,
        "client.crt": admin.certificate,
        "client.key": admin.key,
        "service-accounts.key": private,
        "service-accounts.pub": public,
    }
    clients = {layout.kubeconfig: admin}
    for name, identity in identities.items():
        clients[layout.kubeconfig_of(name)] = authority.issue_client(identity)
    for name, content in contents.items():
        write_secret(layout.pki / name, content)
    server = f"https://{address}:{apiserver_port}"
    for path, client in clients.items():
        kubeconfig = build_kubeconfig(server, authority.certificate, client)
        write_secret(path, kubeconfig.encode())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
