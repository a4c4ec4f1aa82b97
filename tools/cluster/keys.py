"""Writes the keys, certificates and kubeconfigs of one box into its folder.

`certificates.py` makes them; `components.py` names them to the processes.
"""

from collections.abc import Mapping

from tools.cluster import certificates
from tools.cluster.certificates import ADMIN, Authority, Identity
from tools.cluster.components import SERVICE_ADDRESS, Layout


def write_keys(
    layout: Layout, address: str, apiserver_port: int, identities: Mapping[str, Identity]
) -> None:
    """Write the credentials of a box's processes and of its administrator.

    Args:
        layout: of its folder.
        address: the address of its servers.
        apiserver_port: the port of the API server.
        identities: each component's identity at the API server, by its name.
    """
    authority = Authority()
    admin = authority.issue_client(ADMIN)
    serving = authority.issue_server((address, SERVICE_ADDRESS))
    private, public = certificates.build_service_account_keys()
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
        certificates.write_secret(layout.pki / name, content)
    server = f"https://{address}:{apiserver_port}"
    for path, client in clients.items():
        kubeconfig = certificates.build_kubeconfig(server, authority.certificate, client)
        certificates.write_secret(path, kubeconfig.encode())
